"""
A raw worker in a process of its own, for tests of what happens to processes.

It says hello, takes jobs, prints them as one line of JSON, names some of them as started, and then only beats, if
*beat_s* is set; it obeys no cancel. It gives back jobs on recall, and ends at the end of its stdin.
"""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from tests.support.systems.peers import DEADLINE_S, Worker

ROOT: Final = Path(__file__).parents[3]


@dataclass(frozen=True, slots=True)
class Manner:
    """
    How it behaves.

    Attributes:
        take: Jobs that it waits for; its capacity.
        start: How many of them it names as started.
        beat_s: Pause between two heartbeats; None: it never beats.
        deaf: Ignores SIGTERM.
    """

    topic: str
    take: int = 1
    start: int = 1
    beat_s: float | None = None
    deaf: bool = True
    handlers: dict[str, dict[str, object]] = field(default_factory=dict[str, dict[str, object]])


@contextmanager
def lone_worker(
    path: Path, name: str, manner: Manner
) -> Iterator[tuple[subprocess.Popen[bytes], list[tuple[bytes, int]]]]:
    """The process, and the attempts that it took, those that it started first."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.systems.lone_worker", str(path), name, json.dumps(asdict(manner))],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], DEADLINE_S)[0], "it took nothing"
        pairs = [(bytes.fromhex(one), attempt) for one, attempt in json.loads(process.stdout.readline())]
        yield process, pairs
    finally:
        process.kill()
        process.communicate()


def main(path: str, name: str, manner: Manner) -> None:
    if manner.deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    words: dict[str, object] = {"topics": [manner.topic], "capacity": manner.take, "handlers": manner.handlers}
    with Worker(Path(path), name, **words) as worker:
        held = [(one[0], one[1]) for one in worker.jobs(manner.take)]
        worker.send("started", jobs=held[: manner.start])
        worker.call("ping")
        sys.stdout.write(json.dumps([(one.hex(), attempt) for one, attempt in held]) + "\n")
        sys.stdout.flush()
        beat_s = time.monotonic()
        while not select.select([sys.stdin], [], [], 0.02)[0]:
            for order in _recalled(worker):
                if order in held[manner.start :]:
                    held.remove(order)
                    worker.report([*order, "release", None])
            if manner.beat_s is not None and time.monotonic() >= beat_s:
                beat_s = time.monotonic() + manner.beat_s
                worker.beat(*held)


def _recalled(worker: Worker) -> list[tuple[bytes, int]]:
    orders = worker.arrived("stop")
    return [(one, attempt) for body in orders for one, attempt, reason in body["jobs"] if reason == "recall"]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Manner(**json.loads(sys.argv[3])))
