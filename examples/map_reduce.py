"""
Map and reduce: the most frequent words of many files, counted by a job for each file.

    pulse-supervisor &
    pulse worker examples.map_reduce:app --processes 2 &
    python -m examples.map_reduce docs/*.md
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import UUID

import pulse

app = pulse.App()


@app.handler("words.count", topic="files", retry_on={FileNotFoundError: pulse.Discard})
def count(path: str) -> dict[str, int]:
    """Map: the words of one file. What cannot be read now is tried again, what is not there is not."""
    return Counter(re.findall(r"[a-z]{4,}", Path(path).read_text("utf-8").lower()))


@app.handler("words.merge")
async def merge(ctx: pulse.Context) -> dict[str, Any]:
    """Reduce: runs when all files have been counted or given up, and reads the results page by page."""
    total, missing = Counter[str](), list[str]()
    async for parent in ctx.parents():
        if parent.status == pulse.Status.COMPLETED:
            total.update(parent.result_as(dict[str, int]))
        else:
            missing.append(str(parent.last_error).partition("\n")[0])
    return {"words": total.most_common(10), "missing": missing}


@app.handler("words.split")
def split(ctx: pulse.Context, paths: list[str]) -> str:
    """Submits the others. If its worker is killed, the next attempt submits the same jobs, so none is there twice."""
    batch = pulse.Batch()
    for path in paths:
        batch.add(pulse.call(count, path), id=ctx.child_id(path))
    merged = batch.then(pulse.call(merge), on_failure="run", id=ctx.child_id("merge"))
    with pulse.Client() as client:
        client.submit_batch(batch)
    return str(merged)


def main(paths: list[str]) -> None:
    """Submit, wait, and print what was counted."""
    with pulse.Client() as client:
        merged = client.result(client.submit(pulse.call(split, paths)), UUID, timeout_s=60)
        found = client.result(merged, dict[str, Any], timeout_s=600)
    for word, times in found["words"]:
        print(f"{times:6} {word}")
    for reason in found["missing"]:
        print("missing:", reason)


if __name__ == "__main__":
    main(sys.argv[1:])
