"""Writes many rows in one statement, and finds the few that keep it from being written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

import asyncpg

from pulse.errors import ContestedError
from pulse.store.pool import is_bad_row
from pulse.store.store import Store


class Row(Protocol):
    """What is written belongs to one job."""

    @property
    def id(self) -> bytes:
        """Of the job."""
        ...


T = TypeVar("T", bound=Row)


async def _nothing_bad(_row: object, _error: asyncpg.PostgresError) -> None:
    """For rows that hold nothing which could not be stored: a bad one is left as it is."""


async def write_merged(
    store: Store,
    rows: Sequence[T],
    together: Callable[[Sequence[T]], Awaitable[None]],
    alone: Callable[[T, asyncpg.PostgresError], Awaitable[None]] = _nothing_bad,
) -> list[T]:
    """
    Write *rows* in one statement.

    Where one of them cannot be stored, in halves, until the bad one is alone. Where somebody else holds a lock on some,
    the others without them. Where the statement took too long, in halves.

    Args:
        store: Knows which rows are locked.
        rows: What to write.
        together: Writes rows in one statement.
        alone: Deals with a row that cannot be stored; without it, it stays unwritten.

    Returns:
        Rows that are locked by somebody else: not written.

    Raises:
        UnavailableError: The database is away; some rows may have been written.
    """
    if not rows:
        return []
    try:
        await together(rows)
    except ContestedError:
        free = await store.lockable([row.id for row in rows])
        locked = [row for row in rows if row.id not in free]
        if len(rows) == 1:
            return list(rows)
        if locked:
            return locked + await write_merged(store, [row for row in rows if row.id in free], together, alone)
    except asyncpg.PostgresError as error:
        if not is_bad_row(error):
            raise
        if len(rows) == 1:
            await alone(rows[0], error)
            return []
    else:
        return []
    middle = len(rows) // 2
    locked = await write_merged(store, rows[:middle], together, alone)
    return locked + await write_merged(store, rows[middle:], together, alone)
