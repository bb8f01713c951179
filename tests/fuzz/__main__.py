"""``python -m tests.fuzz``: a million frames, right and wrong, against a system at work; and what became of it."""

from __future__ import annotations

import dataclasses
import json
import secrets
import shutil
import sys
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.chaos.database import Embedded
from tests.fuzz.live.gauges import percentile
from tests.fuzz.live.scene import SETTINGS, Plan, Scene
from tests.fuzz.live.verdict import Measured, Rule, judge
from tests.support.systems.system_kit import place


def count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ArgumentTypeError(f"{text} is too small; 0 or more is allowed")
    return number


def main() -> int:
    """Run it; 0: every rule holds, 1: one does not, 2: bad usage."""
    parser = ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--frames", type=count, default=1_000_000, help="how many to send (default: a million)")
    parser.add_argument("--connections", type=count, default=10_000, help="opened and dropped (default: 10000)")
    parser.add_argument("--seed", type=int, help="of all choices; the same seed makes the same frames")
    parser.add_argument("--rate", type=float, default=400.0, help="frames a second (default: 400; 0: no bound)")
    parser.add_argument("--visits", type=float, default=50.0, help="connections a second (default: 50; 0: no bound)")
    parser.add_argument("--slots", type=count, default=48, help="connections that attack at once (default: 48)")
    parser.add_argument("--attack-s", type=float, default=180.0, help="up to the next rest, seconds (default: 180)")
    parser.add_argument("--quiet-s", type=float, default=20.0, help="each quiet time, seconds (default: 20)")
    parser.add_argument("--json", type=Path, help="a file for all that was measured")
    parser.add_argument("--keep", type=Path, help="a directory for logs and notes")
    words = parser.parse_args()
    seed = secrets.randbelow(10**6) if words.seed is None else words.seed
    show(f"seed {seed}: {words.frames:,} frames, {words.connections:,} connections")
    plan = Plan(
        seed, words.frames, words.rate or None, words.visits or None, words.quiet_s, words.attack_s,
        words.connections, max(3, words.slots),
    )  # fmt: skip
    with place(None, **SETTINGS) as whole:
        whole.dsn = Embedded(whole.directory / "state").dsn
        try:
            found = Scene(whole, plan, show).run()
        finally:
            if words.keep is not None:
                shutil.copytree(whole.directory / "fuzz", words.keep, dirs_exist_ok=True)
                shutil.copy(whole.errors, words.keep / "log")
    rules = judge(found)
    show("")
    for rule in rules:
        show(rule.line())
    if words.json is not None:
        words.json.write_text(json.dumps(document(found, rules), indent=1) + "\n", "utf-8")
    wrong = [rule for rule in rules if not rule.holds]
    show(f"\n{'every rule holds' if not wrong else f'{len(wrong)} rules are broken; again: --seed {seed}'}")
    return 1 if wrong else 0


def document(found: Measured, rules: Sequence[Rule]) -> dict[str, Any]:
    return {
        "rules": [dataclasses.asdict(rule) for rule in rules],
        "frames": found.frames,
        "connections": found.connections,
        "memory": {
            name: {"before": dataclasses.asdict(use), "after": dataclasses.asdict(found.after[name])}
            for name, use in found.before.items()
        },
        "dispatcher_peak_bytes": found.peak_bytes,
        "latencies_s": {
            phase: {what: summary(some) for what, some in by_operation.items()}
            for phase, by_operation in {"quiet": found.quiet, **found.attacked}.items()
        },
        "complaints": list(found.complaints)[:100],
        "unforeseen": list(found.unforeseen)[:100],
        "jobs": list(found.jobs)[:100],
        "checked": list(found.checked),
        **found.details,
    }


def summary(some: Sequence[float]) -> dict[str, float]:
    return {"count": len(some), **{f"p{share}": percentile(some, share / 100) for share in (50, 90, 99, 100)}}


def show(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
