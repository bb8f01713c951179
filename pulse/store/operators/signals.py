"""Signals: what the world tells jobs, and what handlers that wait for it have not had yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pulse.errors import ConflictError, NotFoundError, StatementError
from pulse.store.arguments import uuids
from pulse.store.failures import FOREIGN_KEY_VIOLATION
from pulse.store.statements import STATEMENTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pulse.store.connections.pool import Pool

SHOWN_BYTES: Final = 48 * 1024  # of payloads beside a job, whose texts take nearly all of a frame
HAS_ENDED: Final = "23000"  # integrity_constraint_violation, as pulse.signal raises it


class SignalStore:
    """
    The table of signals.

    Args:
        pool: Its connections.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def send(self, job: bytes, name: str, payload: str, key: str | None) -> bool:
        """
        Send a signal; returns whether it is new.

        Args:
            payload: JSON text.
            key: The same name and key are the same signal.

        Raises:
            NotFoundError: There is no such job.
            ConflictError: It was completed or canceled.
            StatementError: The signal cannot be stored, or there are too many.
        """
        try:
            async with self._pool.connection() as connection:
                is_new: bool = await connection.fetchval(
                    STATEMENTS["send_signal"].sql, *uuids([job]), name, payload, key
                )
        except StatementError as error:
            if error.sqlstate == FOREIGN_KEY_VIOLATION:
                raise NotFoundError(error.message) from error
            if error.sqlstate == HAS_ENDED:
                raise ConflictError(error.message) from error
            raise
        return is_new

    async def next(self, job: bytes, name: str, had: Sequence[int]) -> dict[str, object] | None:
        """
        The first signal of that name which is not among those that the handler has *had*.

        Returns:
            ``signal`` (None: there is none), how many were ``sent``, ``is_over``: the time of the wait that the last
            attempt ended with has passed, and ``now``; None: there is no such job.
        """
        async with self._pool.connection() as connection:
            row = await connection.fetchrow(STATEMENTS["next_signal"].sql, *uuids([job]), name, had, None)
        if row is None:
            return None
        found = None if row["id"] is None else {key: row[key] for key in ("id", "payload", "sent_at")}
        return {"signal": found, **{key: row[key] for key in ("sent", "is_over", "now")}}

    async def of_job(self, job: bytes, limit: int) -> list[dict[str, object]]:
        """The first *limit* signals that were sent to a job, in the order in which its handler gets them."""
        sql = STATEMENTS["signals_of_job"].sql
        async with self._pool.connection() as connection:
            return [dict(row) for row in await connection.fetch(sql, *uuids([job]), limit, SHOWN_BYTES)]
