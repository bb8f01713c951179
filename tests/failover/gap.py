"""
A failover that loses what was acknowledged: what may be gone, and what pulse must say about it.

The judge of the ledger has no rule for acknowledgements that are lost. So it reads the ledger without what the database
cannot know any more; what is left out has rules of its own here.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from pulse_actors.shared.epochs import STEP
from tests.chaos import verdict
from tests.chaos.load.ledger import Line
from tests.chaos.site import Site
from tests.chaos.verdict import RETURNS, Database, Pair

LAG_S: Final = 0.5  # a standby that gets all of it is behind all the same, and what a handler returned is written later
_EPOCHS: Final = "SELECT detail FROM pulse.epochs WHERE epoch > 1"
_TOLD: Final = ("unknown_running", "unknown_finished")
# Of these rules the database is no part: they hold for the whole ledger.
EVEN_SO: Final = ("I5 an attempt starts once", "I18 no two attempts of a job at the same time")


@dataclass(frozen=True, slots=True)
class Gap:
    """From when on the standbys got nothing, and when one of them was promoted; monotonic."""

    cut_s: float
    promoted_s: float

    def holds(self, line: Line) -> bool:
        return self.begins_s <= line.at_s < self.promoted_s

    @property
    def begins_s(self) -> float:
        """From here on something may be lost."""
        return self.cut_s - LAG_S


def wrong(lines: Sequence[Line], database: Database, gap: Gap, told: Collection[UUID]) -> list[str]:
    """
    What does not hold.

    Args:
        lines: The whole ledger.
        told: The jobs that the epoch names as unknown to the database.
    """
    missing = {line.job for line in lines if line.act == "intent"} - database.jobs.keys()
    found = [*_outside(lines, gap, missing), *_untold(lines, gap, missing, told)]
    rows = {job: row for job in told if (row := database.jobs.get(job))}  # a schedule fires again, under the same id
    found += [f"{job} is told to be gone, and is there" for job, row in rows.items() if not row.is_scheduled]
    whole = verdict.judge(lines, database).wrong
    rest = verdict.judge(_known(lines, database, gap, missing), database).wrong
    for rule, some in [*((rule, whole[rule]) for rule in EVEN_SO if rule in whole), *rest.items()]:
        found.append(f"{rule}: {len(some)}: {list(some[:5])}")
    return found


def judged(site: Site, gap: Gap) -> tuple[list[str], dict[str, int]]:
    """What does not hold, and how many acknowledged jobs are gone, by who names them."""
    lines, database = site.lines(), site.snapshot()
    details: list[Mapping[str, list[str]]] = [json.loads(row["detail"]) for row in site.sql.rows(_EPOCHS)]
    told = {name: {UUID(job) for detail in details for job in detail.get(name, ())} for name in _TOLD}
    found = wrong(lines, database, gap, set[UUID]().union(*told.values()))
    missing = gone(lines, database)
    if not missing:
        found.append("the gap lost nothing: nothing was tested")
    return found, {
        "acknowledged, and gone with the gap": missing,
        "  named: workers had them": len(told["unknown_running"]),
        "  named: finished": len(told["unknown_finished"]),
    }


def gone(lines: Sequence[Line], database: Database) -> int:
    """How many acknowledged jobs the database does not have."""
    return len({line.job for line in lines if line.act == "acked"} - database.jobs.keys())


def _outside(lines: Sequence[Line], gap: Gap, missing: Collection[UUID]) -> Iterator[str]:
    for line in lines:
        if line.act == "acked" and line.job in missing and not gap.holds(line):
            yield f"{line.job} was acknowledged {line.at_s - gap.cut_s:+.3f} s after the cut, and is not there"


def _untold(lines: Sequence[Line], gap: Gap, missing: Collection[UUID], told: Collection[UUID]) -> Iterator[str]:
    """Lost jobs that a worker ran, or had done, in the gap, and that nobody names."""
    last: dict[UUID, Line] = {}
    name: dict[UUID, object] = {}
    for line in lines:
        if line.job in missing and line.act in {"start", "end"} and gap.holds(line):
            last[line.job] = line
            name[line.job] = line.facts.get("name", name.get(line.job))
    for job, line in last.items():
        is_done = line.facts.get("how") == "ok" and name[job] not in RETURNS
        if job not in told and (line.act == "start" or is_done):
            yield f"{job} ({name[job]}) is gone, a worker has its {line.act}, and nobody tells of it"


def _is_ended_by_epoch(line: Line, database: Database) -> bool:
    return line.attempt <= STEP and database.history.get((line.job, line.attempt)) == "released"


def _known(lines: Sequence[Line], database: Database, gap: Gap, missing: Collection[UUID]) -> list[Line]:
    """The ledger without what was lost: jobs, claims and ends of the gap, and ends of attempts that the epoch ended."""
    lost: set[Pair] = {
        (line.job, line.attempt)
        for line in lines
        if line.act == "start" and gap.holds(line) and (line.job, line.attempt) not in database.claims
    }
    return [
        line
        for line in lines
        if line.job not in missing
        and (line.job, line.attempt) not in lost
        and not (line.act == "end" and line.at_s >= gap.begins_s and _is_ended_by_epoch(line, database))
    ]
