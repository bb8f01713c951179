"""
Finds out which ends of attempts were written before: by a statement whose answer was lost, or by a report that its
worker repeats because it has not heard of the first one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pulse.store.arguments import fence_columns
from pulse.store.rows import Ended, Ending, ended_row
from pulse.store.statements import STATEMENTS

if TYPE_CHECKING:
    from pulse.store.connections.pool import Pool


class EndingReader:
    """
    Reads ends of attempts.

    Args:
        pool: The connections whose plans do not depend on statistics.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def written(self, endings: Sequence[Ending]) -> list[Ended]:
        """
        Those of *endings* that were written before.

        Returns:
            What has become of their jobs, as after ``Store.end``; without those that have started again since.
        """
        if not endings:
            return []
        kinds = [one.kind.value for one in endings]
        async with self._pool.connection() as connection:
            rows = await connection.fetch(STATEMENTS["ended_at_attempt"].sql, *fence_columns(endings), kinds)
        return [ended_row(row) for row in rows]
