"""What the fenced transactions of one attempt have come to. Used from any thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, TypeAlias

from pulse.errors import TransactionError
from pulse.security.schema_name import DEFAULT

__all__ = ["AttemptFence", "FencePhase"]

# "commits": COMMIT is under way, with the job completed in it; from then on only the database knows what became of it.
FencePhase: TypeAlias = Literal["", "commits", "completed"]


class AttemptFence:
    """
    The fence of one attempt: who holds it, and whether a transaction has completed its job.

    Args:
        worker: Identity of the worker that holds it, as in the job's ``locked_by``.
        progress: Returns the newest progress as JSON text, which the transaction stores.
        told: Called with each new phase.
        holds: Whether the attempt holds its job, of a test whose jobs are in memory; None: the database knows.
        schema: The schema that has the job.

    Attributes:
        phase: Whether a transaction completes the job, or has.
    """

    def __init__(
        self,
        worker: str,
        progress: Callable[[], str | None] = lambda: None,
        told: Callable[[FencePhase], None] = lambda _: None,
        holds: Callable[[], bool] | None = None,
        schema: str = DEFAULT,
    ) -> None:
        self.worker: Final = worker
        self.schema: Final = schema
        self.progress: Final = progress
        self.holds: Final = holds
        self.phase: FencePhase = ""
        self._told = told
        self._is_open = False
        self._completes = False
        self._result: str | None = None
        self._has_result = False

    def open(self, *, completes: bool) -> None:
        """
        A block begins.

        Raises:
            TransactionError: Another one is open, or has completed the job.
        """
        if self._is_open:
            raise TransactionError("a block of ctx.transaction is open already: an attempt has one at a time")
        if self.phase:
            raise TransactionError("a block of ctx.transaction has completed the job already")
        self._is_open, self._completes = True, completes
        self._result, self._has_result = None, False

    def close(self) -> None:
        """The block is over."""
        self._is_open = False

    def put(self, result: str) -> None:
        """
        The result of the job, as JSON text.

        Raises:
            TransactionError: No block is open that completes the job, or it has a result.
        """
        if not self._is_open:
            raise TransactionError("ctx.complete is for a block of ctx.transaction; outside of one, return the result")
        if not self._completes:
            raise TransactionError("ctx.complete: this block does not complete the job (complete=False)")
        if self._has_result:
            raise TransactionError("ctx.complete was called before in this block")
        self._result, self._has_result = result, True

    @property
    def result(self) -> str | None:
        """The result that the block stores, as JSON text."""
        return self._result

    def move(self, phase: FencePhase) -> None:
        """The transaction of the block has come that far."""
        self.phase = phase
        self._told(phase)
