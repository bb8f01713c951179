"""Whom isolated attempts are run for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pulse.app.outcome import Ending
from pulse.worker.execution.attempt import Attempt

__all__ = ["CellRunOwner", "CellsOwner"]


class CellRunOwner(Protocol):
    """Hears what becomes of one."""

    def begun(self, attempt: Attempt) -> None:
        """The handler is called now."""
        ...

    def ended_apart(self, attempt: Attempt, ending: Ending, used: Mapping[str, object]) -> None:
        """The handler, and the process that it had, have really ended."""
        ...

    def lease_lost(self, attempt: Attempt) -> bool:
        """Whether the attempt no longer holds its job, or its lease has passed unanswered."""
        ...

    def progressed(self, attempt: Attempt, text: str) -> None:
        """The handler told how far it is."""
        ...

    def checkpointed(self, attempt: Attempt, text: str) -> None:
        """The handler saved its state."""
        ...


class CellsOwner(CellRunOwner, Protocol):
    """Whom the cells belong to."""

    def cells_ready(self) -> None:
        """From now on cells can be made."""
        ...

    def cells_gone(self) -> None:
        """None can be made at the moment."""
        ...

    def cells_failed(self, reason: str) -> None:
        """None can be made: what waits for one fails."""
        ...

    def waits_for_cells(self) -> bool:
        """Whether attempts wait for cells."""
        ...
