"""What was found, as a table for people and as a document for machines."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

from rich.table import Table

from bench.peers.peer import Facts

COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "drain\njobs/s": ("drain",),
    "steady\njobs/s": ("steady",),
    "pinned snapshot\nfirst → last": ("pinned_first", "pinned_last"),
    "bulk enqueue\njobs/s": ("enqueue",),
    "latency, ms\np50 / p95 / p99": ("p50", "p95", "p99"),
}
SPREAD: Final = 1.5  # rounds that differ by more than this are shown with their range
_SMALL: Final = 100.0  # figures below it are shown with a decimal


@dataclass(slots=True)
class Record:
    """
    All turns of one peer.

    Attributes:
        rounds: The figures of the turns that gave some.
        failures: Why the others gave none.
        skipped: Why there was no turn at all.
    """

    facts: Facts
    rounds: list[dict[str, float]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    skipped: str = ""

    def medians(self) -> dict[str, float]:
        """Of each figure over the rounds."""
        if not self.rounds:
            return {}
        return {key: statistics.median(one[key] for one in self.rounds) for key in self.rounds[0]}

    def document(self) -> dict[str, object]:
        """All of it."""
        return {**asdict(self), "median": self.medians()}


def table(records: Sequence[Record]) -> Table:
    """A line for each peer."""
    made = Table("peer", *COLUMNS, "fence", "keeps")
    for column in made.columns[1 : 1 + len(COLUMNS)]:
        column.justify = "right"
    for record in records:
        name = f"{record.facts.name} {record.facts.version}"
        if record.rounds:
            made.add_row(name, *cells(record), record.facts.fence, record.facts.keeps)
        else:
            reason = record.skipped or next(iter(record.failures), "no turn")
            made.add_row(name, f"skipped: {reason.splitlines()[0]}")
    return made


def cells(record: Record) -> list[str]:
    """The figures of each column, as they are shown."""
    return [
        ranged([one[keys[0]] for one in record.rounds])
        if len(keys) == 1
        else (" → " if len(keys) == 2 else " / ").join(shown(record.medians()[key]) for key in keys)  # noqa: PLR2004
        for keys in COLUMNS.values()
    ]


def ranged(values: Sequence[float]) -> str:
    """The median, and the range where that says too little."""
    least, most = min(values), max(values)
    middle = shown(statistics.median(values))
    return f"{middle} ({shown(least)} … {shown(most)})" if most > SPREAD * least else middle


def shown(value: float) -> str:
    """Three digits and what comes before them."""
    return f"{value:.1f}" if value < _SMALL else f"{round(value, 3 - len(str(int(value)))):,.0f}"
