"""What of the doctor's questions a running server asks, while somebody looks: few, bounded, each by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pulse.errors import UnavailableError
from pulse.store.admin.doctor import QUESTIONS

if TYPE_CHECKING:
    from pulse.store.connections.pool import Pool

__all__ = ["ASKED", "IncidentStore"]

ASKED: Final = ("xmin", "queue_attempts", "queue_hosts", "queue_epochs", "queue_set_aside")  # statements of doctor.sql
DEADLINE_S: Final = 1.5  # of which the server takes a third


class IncidentStore:
    """
    Asks what may be wrong.

    Args:
        pool: One connection, whose statements end soon.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def ask(self, question: str) -> list[Mapping[str, Any]] | None:
        """The rows of one of ``ASKED``; None: the database is away, or took too long."""
        try:
            async with self._pool.connection(deadline_s=DEADLINE_S) as connection:
                return [dict(row) for row in await connection.fetch(QUESTIONS[question].sql)]
        except UnavailableError:
            return None
