"""``python -m tests.failover``: a PostgreSQL cluster under Patroni fails over, in every way, below a system at work."""

from __future__ import annotations

import sys
import tempfile
from argparse import ArgumentParser
from pathlib import Path

from tests.failover.cluster import why_not
from tests.failover.run import play
from tests.failover.scenes import SCENES


def main() -> int:
    """Run it; 0: all holds, 1: an invariant or bar does not, 2: bad usage, 3: it cannot run here."""
    parser = ArgumentParser(prog="python -m tests.failover", description=__doc__)
    parser.add_argument("scenes", nargs="*", help=f"of {', '.join(SCENES)} (default: all)")
    words = parser.parse_args()
    chosen: list[str] = words.scenes or list(SCENES)
    for name in chosen:
        if name not in SCENES:
            parser.error(f"no scene {name!r}; there are {', '.join(SCENES)}")
    if (why := why_not()) is not None:
        show(f"cannot run here: {why}")
        return 3
    keep = Path(tempfile.mkdtemp(prefix="pulse-failover-"))
    ledger = play(chosen, show, keep)
    show("")
    for line in (*ledger.lines(), *(f"WRONG: {one}" for one in ledger.wrong)):
        show(line)
    if ledger.wrong:
        return 1
    keep.rmdir()
    return 0


def show(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
