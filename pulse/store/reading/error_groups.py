"""Dead letters by topic, handler and error, among the newest: a bounded number of them, however many there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pulse.common.text import VARIES
from pulse.store.reading.jobs import wire_row
from pulse.store.reading.page_size import Row
from pulse.store.statements import STATEMENTS

if TYPE_CHECKING:
    from pulse.store.connections.pool import Pool

ERROR_CHARACTERS: Final = 8000  # of the newest error of a group
MOST_GROUPS: Final = 200
_PATTERN: Final = VARIES.replace(r"\b", r"\y")  # PostgreSQL's word for the edge of a word


class ErrorGroups:
    """
    Groups dead letters.

    Args:
        pool: The query connections.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def read(self, topic: str | None, rows: int) -> tuple[list[Row], bool]:
        """The groups among the newest *rows* dead letters, the largest first, and whether there are no older ones."""
        async with (
            self._pool.connection() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            await connection.execute(STATEMENTS["list_limits"].sql)
            found = await connection.fetch(
                STATEMENTS["group_errors"].sql, topic, rows, _PATTERN, MOST_GROUPS, ERROR_CHARACTERS
            )
        made = [{key: value for key, value in wire_row(row).items() if key != "walked"} for row in found]
        return [row for row in made if row["number"]], found[0]["walked"] < rows
