"""What ``pulse.testing`` does to databases: empties them after a test, lets the time pass, and reads a test's jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from pulse.store.statements import STATEMENTS

if TYPE_CHECKING:
    from datetime import datetime

    from pulse.store.operators.jobs import Connections

# For connections of a test's own, whatever their driver: without asyncpg this module can be imported, too.
SEE_JOBS: Final = STATEMENTS["see_jobs"].sql
END_IN_TEST: Final = STATEMENTS["end_in_test"].sql


class NextOccurrence(NamedTuple):
    """When a schedule occurs next, None: never; and whether the scheduler still computes times."""

    due_at: datetime | None
    reckon: bool


class DatabaseOfTesting:
    """
    Statements for a database in which nobody but one test works.

    Args:
        pool: The query connections.
    """

    def __init__(self, pool: Connections) -> None:
        self._pool = pool

    async def forget(self) -> None:
        """Remove what a test has left; declared schedules begin anew, and wait."""
        async with self._pool.connection() as connection:
            await connection.execute(STATEMENTS["forget_test"].sql)

    async def advance(self, seconds: float) -> None:
        """Let so many seconds pass for jobs that wait."""
        async with self._pool.connection() as connection:
            await connection.execute(STATEMENTS["advance_jobs"].sql, seconds)

    async def unfinished(self, names: Sequence[str]) -> int:
        """How many jobs run, or are due and have one of these names."""
        async with self._pool.connection() as connection:
            return int(await connection.fetchval(STATEMENTS["count_unfinished"].sql, list(names)) or 0)

    async def next_occurrence(self) -> NextOccurrence:
        """When a schedule occurs next."""
        async with self._pool.connection() as connection:
            row = await connection.fetchrow(STATEMENTS["next_occurrence"].sql)
        return NextOccurrence(None, reckon=False) if row is None else NextOccurrence(*row)

    async def hold_declared(self, *, held: bool) -> None:
        """Let the schedules that an application declares wait, or not."""
        async with self._pool.connection() as connection:
            await connection.execute(STATEMENTS["hold_declared"].sql, held)
