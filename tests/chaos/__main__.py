"""``python -m tests.chaos``: a system under load, and a nemesis that breaks it at random, for as long as you like."""

from __future__ import annotations

import re
import secrets
import sys
from argparse import ArgumentParser, ArgumentTypeError
from pathlib import Path
from typing import Final

from tests.chaos.faults.faults import FAULTS
from tests.chaos.nemesis import Nemesis

UNITS_S: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}


def duration_s(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if match is None:
        raise ArgumentTypeError(f"{text!r}: a number with s, m or h is allowed, as in 30m")
    return float(match[1]) * UNITS_S[match[2]]


def chosen(text: str) -> list[str]:
    """The faults of a list of names and row numbers, in the order of the catalogue."""
    words = {word.strip() for word in text.split(",") if word.strip()}
    found = [name for name, kind in FAULTS.items() if name in words or str(kind.row) in words]
    strangers = words - set(found) - {str(FAULTS[name].row) for name in found}
    if strangers or not found:
        raise ArgumentTypeError(
            f"no such fault: {', '.join(sorted(strangers)) or 'none'}; there are {', '.join(FAULTS)}"
        )
    return found


def main() -> int:
    """Run it; 0: all holds, 1: an invariant or bar does not, or a fault or the load gave up, 2: bad usage."""
    parser = ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, help="of all choices; the same seed makes the same plan")
    parser.add_argument("--duration", type=duration_s, default="30m", help="as in 90s, 30m, 2h (default: 30m)")
    parser.add_argument("--faults", type=chosen, default=list(FAULTS), help="names or row numbers, with commas")
    parser.add_argument("--keep", type=Path, help="a directory for ledgers, logs and tables of every epoch")
    words = parser.parse_args()
    seed = secrets.randbelow(10**9) if words.seed is None else words.seed
    show(f"seed {seed}: {len(words.faults)} kinds of faults, {words.duration:.0f} s")
    summary = Nemesis(seed, words.faults, words.duration, words.keep, show).run()
    show("")
    for line in summary.lines():
        show(line)
    if not summary.wrong:
        return 0
    for one in summary.wrong:
        show(f"WRONG: {one}")
    show(f"again: make chaos ARGS='--seed {seed} --faults {','.join(words.faults)}'")
    return 1


def show(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
