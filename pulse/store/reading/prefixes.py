"""
Finds jobs and schedules by what a person types for them: the first digits of an id, or the key of a schedule.

Each search reads a range of the primary key, a few rows of it, however many jobs there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from asyncpg.pgproto.pgproto import UUID

from pulse.common.ids import hex_digits
from pulse.store.reading.damaged_jobs import legible_jobs
from pulse.store.reading.jobs import wire_row
from pulse.store.reading.page_size import Row
from pulse.store.statements import STATEMENTS

if TYPE_CHECKING:
    from pulse.store.connections.pool import Pool

MOST: Final = 11  # that are found for one prefix: ten to show, and one that says that there are more
_DIGITS: Final = 32


def id_range(digits: str) -> tuple[UUID, UUID]:
    """The first and the last id that begin with these hexadecimal digits."""
    return UUID(bytes.fromhex(digits.ljust(_DIGITS, "0"))), UUID(bytes.fromhex(digits.ljust(_DIGITS, "f")))


class PrefixSearch:
    """
    Searches for ids that begin with given digits.

    Args:
        pool: The query connections.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def jobs(self, prefixes: Sequence[str]) -> list[Row]:
        """The jobs that each of *prefixes* may mean, without long columns; in the order of the prefixes and ids."""
        lows, highs = zip(*map(id_range, prefixes), strict=True)
        async with self._pool.connection() as connection:
            found = await connection.fetch(STATEMENTS["find_jobs"].sql, lows, highs, MOST)
            ids = list(dict.fromkeys(row["id"] for row in found))
            rows = {row["id"]: row for row in await legible_jobs(connection, ids, "jobs_in_brief")}
        return [wire_row(rows[one.bytes]) for one in ids if one.bytes in rows]  # one may be deleted meanwhile

    async def schedules(self, words: Sequence[str]) -> list[Row]:
        """The schedules that each of *words* may mean, by key or else by the first digits of the id."""
        ranges = [(None, None) if (digits := hex_digits(word)) is None else id_range(digits) for word in words]
        lows, highs = zip(*ranges, strict=True)
        async with self._pool.connection() as connection:
            found = await connection.fetch(STATEMENTS["find_schedules"].sql, list(words), lows, highs, MOST)
        return [wire_row(row) for row in found]
