"""
The faults of the product that were repaired last: each repair is undone in turn, and a test must notice.

``make mutants ARGS=--repairs`` tries them. The page ``docs/repairs.md`` is written from ``tables/repairs.toml``.

usage: python -m tests.mutants.repairs        writes the page
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from tests.mutants.judging.forks import HUNG, KILLED
from tests.mutants.source import ROOT, Mutant
from tests.mutants.tables import tabled
from tests.mutants.trial import Trial

PAGE: Final = ROOT / "docs" / "repairs.md"
_TABLE: Final = Path(__file__).parent / "tables" / "repairs.toml"
_BEGIN: Final = "<!-- the repairs: python -m tests.mutants.repairs -->\n"


class Repair(NamedTuple):
    """One commit that repaired a fault; *reversals*: the changes that bring the fault back, each by itself."""

    date: str
    subject: str
    fault: str
    reversals: list[Mutant]


@cache
def repairs() -> list[Repair]:
    rows = tomllib.loads(_TABLE.read_text("utf-8"))["repair"]
    return [
        Repair(
            date=str(row["date"]), subject=row["subject"], fault=row["fault"],
            reversals=[tabled.mutant(*undo) for undo in row["undo"]],
        )
        for row in rows
    ]  # fmt: skip


def reversals_of(where: Collection[str]) -> list[Mutant]:
    return [one for repair in repairs() for one in repair.reversals if one.where in where]


def report(trial: Trial) -> tuple[list[str], str]:
    """The reversals that no test noticed, and the same for people, with the test that noticed each of the others."""
    unnoticed: list[str] = []
    told: list[str] = []
    left_out: list[str] = []
    for repair in repairs():
        for one in repair.reversals:
            end = trial.end_of(one)
            if end is None:
                left_out.append(one.key)
                continue
            status, test = end
            if status in {KILLED, HUNG}:
                told.append(f"{test}{' (hung)' * (status == HUNG)}: {one.key}")
            else:
                unnoticed.append(f"{repair.date} {repair.subject}: {one.key}")
    told += [f"nobody notices: {one}" for one in unnoticed]
    told.append(f"{len(told)} reversals tried, {len(unnoticed)} unnoticed, {len(left_out)} left out")
    return unnoticed, "\n".join(told)


def page() -> str:
    head, begin, _ = PAGE.read_text("utf-8").partition(_BEGIN)
    rows = [f"| {repair.date} | {repair.fault} | {_tests(repair)} |" for repair in repairs()]
    return "\n".join([f"{head}{begin}", "| repaired | fault | noticed by |", "|---|---|---|", *rows, ""])


def _tests(repair: Repair) -> str:
    return "<br>".join(dict.fromkeys(f"`{one.killer.removeprefix('tests/')}`" for one in repair.reversals))


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
