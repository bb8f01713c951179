"""
How many jobs match a filter, by state: for the tabs over a list of jobs.

Each state is counted among a bounded number of rows, so that a filter costs no more where there are millions of jobs:
then a count is a least one, and that is said.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pulse.store.reading.listing import BUDGET_S, JobFilter
from pulse.store.statements import STATEMENTS

if TYPE_CHECKING:
    from asyncpg import Connection, Record

    from pulse.store.connections.pool import Pool

ROWS: Final = 5000  # of each part that are looked at: 10 ms
LONG_ROWS: Final = 1000  # where an error is looked for: errors may be long
# Part of the table -> the states whose jobs are all in it.
_STATES: Final[Mapping[str, Sequence[str]]] = {
    "waiting": ("ready", "scheduled", "retrying", "unhandled"),
    "running": ("running",),
    "dead": ("dead_lettered",),
    "canceled": ("canceled",),
}
STATES: Final = (*(state for states in _STATES.values() for state in states), "completed")


class FilterCounts:
    """
    Counts jobs that match a filter.

    Args:
        pool: The query connections.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def read(
        self, wanted: JobFilter, *, rows: int | None = None, budget_s: float = BUDGET_S
    ) -> tuple[Mapping[str, int], Sequence[str]]:
        """
        Count the jobs in each state; a status in *wanted* does not count, nor whether they are due.

        Args:
            wanted: The filter.
            rows: Most rows of a part that are looked at.
            budget_s: Time after which no other part is begun.

        Returns:
            The number in each state, and the states in which there may be more.
        """
        until_s = time.monotonic() + budget_s
        wanted = dataclasses.replace(wanted, statuses=None, due=None)
        most = rows or (LONG_ROWS if wanted.error else ROWS)
        async with (
            self._pool.connection() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            await connection.execute(STATEMENTS["list_limits"].sql)
            only = wanted.parts()
            counts, is_all = await _look(connection, only[0] if only else "newest", wanted, most)
            if is_all:
                return counts, ()
            least = set(STATES)
            for part, states in _STATES.items() if not only else ():
                if time.monotonic() >= until_s:
                    break
                found, is_whole = await _look(connection, part, wanted, most)
                counts |= {state: max(found[state], counts[state]) for state in states}
                least -= set(states) if is_whole else set()
        return counts, sorted(least)


async def _look(connection: Connection[Record], part: str, wanted: JobFilter, most: int) -> tuple[dict[str, int], bool]:
    """How many jobs of a part match, and whether all of the part was looked at."""
    found = Counter[str]()
    walked = 0
    columns = (*wanted.columns(), wanted.older_s, wanted.newer_s)
    for row in await connection.fetch(STATEMENTS["count_found"].sql, part, most, *columns):
        state = _state(row["status"], is_due=row["is_due"], is_unhandled=row["is_unhandled"])
        found[state] += row["found"]
        walked += row["walked"]
    return {state: found[state] for state in STATES}, walked < most


def _state(status: str, *, is_due: bool, is_unhandled: bool) -> str:
    if is_unhandled:
        return "unhandled"
    if status in {"PENDING", "RETRYING"}:
        return "ready" if is_due else "scheduled" if status == "PENDING" else "retrying"
    return status.lower()
