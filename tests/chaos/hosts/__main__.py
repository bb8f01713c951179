"""``python -m tests.chaos.hosts``: hosts as network namespaces, one fault after the other, and a ledger of them all."""

from __future__ import annotations

import secrets
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Sequence
from typing import Final

from tests.chaos.__main__ import show
from tests.chaos.hosts.cluster import cluster
from tests.chaos.hosts.faults import FAULTS
from tests.chaos.hosts.machine import why_not
from tests.chaos.hosts.ordeal import Ordeal, Outcome, standing
from tests.chaos.hosts.restore import NAME as RESTORE
from tests.chaos.hosts.restore import restore
from tests.chaos.summary import Summary

ALL: Final = [*FAULTS, RESTORE]  # which is the last: its ledger has a gap
CANNOT: Final = 2


class Run:
    """All faults that were asked for, up to the first that finds something wrong."""

    def __init__(self, seed: int) -> None:
        self.summary = Summary(seed, epochs=1, catalogue=FAULTS)
        self.table = [f"{'fault':<20}{'host':<6}{'held':>5}{'ended after':>13}{'whole after':>13}{'overlaps':>10}"]
        self._began_s = time.monotonic()
        self._overlaps = 0

    def go_through(self, names: Sequence[str]) -> None:
        try:
            with cluster() as site:
                site.start()
                self.tell("all hosts work")
                with standing(site, self.summary.seed) as ordeal:
                    for name in names:
                        if not self.summary.wrong:
                            (self._go_back(ordeal) if name == RESTORE else self._suffer(ordeal, name))
        except AssertionError as error:
            self.summary.wrong.append(str(error))
        self.summary.lasted_s = time.monotonic() - self._began_s

    def tell(self, text: str) -> None:
        show(f"[{time.monotonic() - self._began_s:6.1f} s] {text}")

    def _suffer(self, ordeal: Ordeal, name: str) -> None:
        kind = FAULTS[name]
        if why := kind.missing(ordeal.site):
            self.summary.left_out[name] = why
            return
        done = ordeal.suffer(kind, self.tell)
        self.summary.count([done.fault], done.whole_s)
        self.summary.wrong += [f"{name}: {one}" for one in (*done.wrong, *done.report.wrong)]
        self._note(done)

    def _go_back(self, ordeal: Ordeal) -> None:
        done = restore(ordeal, self.tell)
        self.summary.wrong += [f"{RESTORE}: {one}" for one in done.wrong]
        self.table.append(f"{RESTORE:<20}{'db':<6}{'':>18}{done.whole_s:>11.1f} s")
        self.table += ["", f"the database went back by {done.lost_s:.1f} s"]
        self.table += [f"{name:<36}{count:>8,}" for name, count in done.counts.items()]

    def _note(self, done: Outcome) -> None:
        """The report is of all so far."""
        verdict, overlaps = done.report.verdict, done.report.verdict.counts.get("overlaps", 0)
        self.summary.counts.clear()
        self.summary.counts.update(verdict.counts)
        self.summary.duplicates.clear()
        self.summary.duplicates.update(verdict.duplicates.values())
        ended = f"{done.ended_s:.1f} s" if done.ended_s else ""
        figures = f"{done.held:>5}{ended:>13}{done.whole_s:>11.1f} s{overlaps - self._overlaps:>10}"
        self.table.append(f"{done.fault.name:<20}{done.fault.victim.name:<6}{figures}")
        self._overlaps = overlaps


def chosen(text: str) -> list[str]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    strangers = [word for word in words if word not in ALL]
    if strangers or not words:
        raise ArgumentTypeError(f"no such fault: {', '.join(strangers) or 'none'}; there are {', '.join(ALL)}")
    return sorted(words, key=lambda word: word == RESTORE)


def main() -> int:
    """Run it; 0: all holds, 1: something does not, 2: bad usage, or there can be no hosts here."""
    parser = ArgumentParser(prog="python -m tests.chaos.hosts", description=__doc__)
    parser.add_argument("--seed", type=int, help="of all choices")
    parser.add_argument("--faults", type=chosen, default=ALL, help="names, with commas")
    words = parser.parse_args()
    if why := why_not():
        show(why)
        return CANNOT
    run = Run(secrets.randbelow(10**9) if words.seed is None else words.seed)
    show(f"seed {run.summary.seed}: {len(words.faults)} faults")
    run.go_through(words.faults)
    for line in ("", *run.table, "", *run.summary.lines()):
        show(line)
    for one in run.summary.wrong:
        show(f"WRONG: {one}")
    return 1 if run.summary.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
