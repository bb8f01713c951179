"""What a run of the nemesis came to, as a table for people."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.chaos.faults.fault import Fault
from tests.chaos.faults.faults import FAULTS

_WIDTH: Final = 24


@dataclass(slots=True)
class Summary:
    """
    What a run found.

    Attributes:
        catalogue: The faults that there are, by name.
        counts: What the ledgers say, of all epochs together.
        duplicates: Reap -> how many jobs were done again because of it.
        recoveries_s: Fault -> seconds until the system was whole and completed a job.
        over: Fault -> how many of them took longer than the bar, of two faults together the longer one.
        left_out: Fault -> why.
        gave_up: How often the supervisor ended because a child died too often, and was started anew.
        wrong: What does not hold: invariants, bars, and whatever a fault or a producer could not do.
    """

    seed: int
    epochs: int = 0
    lasted_s: float = 0.0
    counts: Counter[str] = field(default_factory=Counter[str])
    duplicates: Counter[str] = field(default_factory=Counter[str])
    recoveries_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    over: Counter[str] = field(default_factory=Counter[str])
    left_out: dict[str, str] = field(default_factory=dict)
    gave_up: int = 0
    wrong: list[str] = field(default_factory=list)
    catalogue: Mapping[str, type[Fault]] = field(default_factory=lambda: FAULTS)

    def count(self, faults: Sequence[Fault], took_s: float) -> None:
        """Note what became of *faults* that struck together; *took_s*: until the system completed a job."""
        bar_s = max(fault.bar_s for fault in faults)
        for fault in faults:
            if not fault.gave_up:
                self.recoveries_s[fault.name].append(took_s)
                self.over[fault.name] += took_s > bar_s
            elif len(faults) > 1:  # the other one kept it from striking
                self.left_out.setdefault(fault.name, fault.gave_up)
            else:
                self.wrong.append(f"{fault.name} did not strike: {fault.gave_up}")
        if took_s > bar_s:
            names = " and ".join(fault.name for fault in faults)
            self.wrong.append(f"{names}: whole again after {took_s:.1f} s, the bar is {bar_s:.0f} s")

    def lines(self) -> Iterator[str]:
        yield f"seed {self.seed}, {self.epochs} epochs, {self.lasted_s:.0f} s"
        yield ""
        for name, count in self.counts.items():
            yield f"{name:<{_WIDTH}}{count:>10,}"
        for reap, count in sorted(self.duplicates.items()):
            yield f"{'  done again after ' + reap:<{_WIDTH}}{count:>10,}"
        yield ""
        yield f"{'row  fault':<{_WIDTH + 5}}{'times':>6}{'p50':>9}{'p99':>9}{'max':>9}{'bar':>7}  over"
        for name, kind in self.catalogue.items():
            took_s = sorted(self.recoveries_s.get(name, ()))
            if took_s:
                figures = "".join(f"{quantile(took_s, q):>7.2f} s" for q in (0.5, 0.99, 1.0))
                bar = f"{kind.bar_s:>5.0f} s{self.over[name]:>6}"
                yield f"{kind.row:>3}  {name:<{_WIDTH}}{len(took_s):>6}{figures}{bar}"
        yield ""
        never = {name: why for name, why in self.left_out.items() if name not in self.recoveries_s}
        yield from (f"left out: {name}: {why}" for name, why in never.items())
        if self.gave_up:
            yield f"the supervisor gave up {self.gave_up} times because a child died too often, and was started again"
        yield "every invariant holds" if not self.wrong else f"{len(self.wrong)} invariants or bars do not hold"

    def document(self) -> Mapping[str, object]:
        return {
            "seed": self.seed, "epochs": self.epochs, "lasted_s": round(self.lasted_s, 1),
            "counts": dict(self.counts), "duplicates": dict(self.duplicates),
            "recoveries_s": {name: [round(one, 3) for one in took] for name, took in self.recoveries_s.items()},
            "over": dict(self.over), "left_out": self.left_out, "gave_up": self.gave_up, "wrong": self.wrong,
        }  # fmt: skip


def quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
