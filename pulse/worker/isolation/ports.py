"""Whom isolated attempts are run for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pulse.app.outcome import Ending
from pulse.worker.execution.attempt import Attempt
from pulse.worker.execution.runner import AttemptOwner

__all__ = ["CellRunOwner", "CellsOwner"]


class CellRunOwner(AttemptOwner, Protocol):
    """Whom the run of a cell works for."""

    def begun(self, attempt: Attempt) -> None:
        """The handler is called now."""

    def ended_apart(self, attempt: Attempt, ending: Ending, used: Mapping[str, object]) -> None:
        """The handler, and the process that it had, have really ended."""


class CellsOwner(CellRunOwner, Protocol):
    """Whom the cells belong to."""

    def cells_ready(self) -> None:
        """From now on cells can be made."""

    def cells_gone(self) -> None:
        """None can be made at the moment."""

    def cells_failed(self, reason: str) -> None:
        """None can be made: what waits for one fails."""

    def waits_for_cells(self) -> bool:
        """Whether attempts wait for cells."""
