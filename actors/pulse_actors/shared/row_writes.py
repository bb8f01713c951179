"""Writes many rows in one statement, and finds the few that make it fail."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from pulse.errors import StatementError, StatementTimeoutError, UnavailableError
from pulse.store.failures import IN_VAIN, refusal_of
from pulse.store.store import Store

MOST_BLAMED: Final = 200  # jobs that are set aside in all if every one is refused: the cause may be the disk


class Row(Protocol):
    """A row to write; it belongs to one job."""

    @property
    def id(self) -> bytes:
        """Id of the job."""
        ...


S = TypeVar("S")
T = TypeVar("T", bound=Row)


@dataclass(frozen=True, slots=True)
class UnwrittenRow(Generic[T]):
    """
    A row that was not written.

    Attributes:
        error: Why the database refuses it; None: another transaction has locked it.
        is_blamed: Whether the row itself is the cause; False if none was written and many were refused.
    """

    row: T
    error: StatementError | None = None
    is_blamed: bool = True


def spread(rows: Sequence[S]) -> list[S]:
    """*rows* in an order that begins with a sample: refused rows may be next to each other."""
    stride = max(1, len(rows) // IN_VAIN)
    return [row for first in range(stride) for row in rows[first::stride]]


async def _leave(_row: object, _error: StatementError) -> None:
    """For rows whose values can always be stored: a bad one is left as it is."""


async def write_merged(
    store: Store,
    rows: Sequence[T],
    together: Callable[[Sequence[T]], Awaitable[None]],
    alone: Callable[[T, StatementError], Awaitable[None]] = _leave,
    *,
    raises: bool = True,
) -> list[UnwrittenRow[T]]:
    """
    Write *rows* in one statement.

    If the database refuses it, in halves, until the refused row is alone. If others have locked some rows, without
    these. If the statement took too long, in halves.

    Args:
        rows: What to write.
        together: Writes rows in one statement.
        alone: Handles a row whose values cannot be stored; without it, the row stays unwritten.
        raises: Whether to raise if every row is refused; else all of them are left.

    Returns:
        Rows that were not written, and may be later: locked, or refused.

    Raises:
        UnavailableError: The database is away, or refuses every row; some rows may have been written.
    """
    writing = _Writing(store, together, alone)
    try:
        await writing.write(rows)
    except StatementError as error:
        if raises:
            raise
        locked = [one for one in writing.left if one.error is None]
        known = {id(row) for row in writing.written} | {id(one.row) for one in locked}
        return [*locked, *(UnwrittenRow(row, error, is_blamed=False) for row in rows if id(row) not in known)]
    return writing.left


class _Writing(Generic[T]):
    """The state of one such write."""

    def __init__(
        self,
        store: Store,
        together: Callable[[Sequence[T]], Awaitable[None]],
        alone: Callable[[T, StatementError], Awaitable[None]],
    ) -> None:
        self._store = store
        self._together = together
        self._alone = alone
        self._has_written = False
        self._is_split = False
        self._refused = 0
        self.left: list[UnwrittenRow[T]] = []
        self.written: list[T] = []

    async def write(self, rows: Sequence[T]) -> None:
        if not rows:
            return
        try:
            await self._together(rows)
        except StatementTimeoutError:
            if len(rows) == 1:
                self.left.append(UnwrittenRow(rows[0]))
                return
            free = await self._store.lockable([row.id for row in rows])
            locked = [row for row in rows if row.id not in free]
            if locked:
                self.left += map(UnwrittenRow, locked)
                await self.write([row for row in rows if row.id in free])
                return
        except UnavailableError as error:
            refusal = refusal_of(error) if self._is_split else error
            if not isinstance(refusal, StatementError):
                raise
            if len(rows) == 1:
                await self._refuse(rows[0], refusal)
                return
        else:
            self._has_written = True
            self.written += rows
            return
        if not self._is_split:
            self._is_split, rows = True, spread(rows)
        middle = len(rows) // 2
        await self.write(rows[:middle])
        await self.write(rows[middle:])

    async def _refuse(self, row: T, error: StatementError) -> None:
        if error.is_value:
            try:
                await self._alone(row, error)
            except StatementError as again:
                error = again
            else:
                self.written.append(row)
                return
        self.left.append(UnwrittenRow(row, error))
        self._refused += 1
        if self._refused >= IN_VAIN and not self._has_written:
            raise error
