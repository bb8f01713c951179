"""What a server and its handlers say of themselves, for submits by SQL to find."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from pulse.store.statements import STATEMENTS

if TYPE_CHECKING:
    from pulse.protocol import HandlerInfo
    from pulse.store.operators.jobs import Connections


class Defaults(ABC):
    """A part of the store."""

    @property
    @abstractmethod
    def lender(self) -> Connections:
        """Where its statements get their connections."""

    async def note_handlers(self, handlers: dict[str, HandlerInfo]) -> None:
        """Remember what a worker said of its handlers."""
        names = sorted(handlers)
        infos = [handlers[name] for name in names]
        async with self.lender.connection() as connection:
            await connection.execute(
                STATEMENTS["note_handlers"].sql,
                names,
                [info.topic for info in infos],
                [info.max_attempts for info in infos],
                [info.timeout_s for info in infos],
                [info.max_crashes for info in infos],
                [info.stall_s for info in infos],
                [info.backoff for info in infos],
            )

    async def set_server_defaults(self, max_attempts: int, max_crashes: int, backoff: str = "quadratic") -> None:
        """Write the server's defaults where SQL submits find them."""
        async with self.lender.connection() as connection:
            await connection.execute(STATEMENTS["set_server_defaults"].sql, max_attempts, max_crashes, backoff)
