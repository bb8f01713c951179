"""Connects the context of a handler to the worker that runs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pulse.app.transactions.fence import AttemptFence, FencePhase
from pulse.app.workflows.parents import ParentPage
from pulse.app.workflows.receipt import Receipt
from pulse.app.workflows.steps import NextSignal
from pulse.worker.execution.attempt import Attempt
from pulse.worker.execution.server_reader import ServerReader

__all__ = ["AttemptLink", "AttemptOwner"]


class AttemptOwner(Protocol):
    """The owner of a handler's context; may be called from any thread."""

    @property
    def identity(self) -> str | None:
        """Identity of this worker by the server; None: the server does not tell."""
        ...

    @property
    def schema(self) -> str:
        """The schema of the database in which the server has the jobs."""
        ...

    def lease_lost(self, attempt: Attempt) -> bool:
        """Whether the attempt no longer holds its job, or its lease has passed unanswered."""
        ...

    def fenced(self, attempt: Attempt, phase: FencePhase) -> None:
        """A fenced transaction of the handler has come that far."""

    def progressed(self, attempt: Attempt, text: str) -> None:
        """The handler reported progress."""

    def checkpointed(self, attempt: Attempt, text: str, receipt: Receipt | None = None) -> None:
        """The handler saved a checkpoint; *receipt* is settled when the server has it."""

    @property
    def reader(self) -> ServerReader:
        """Asks the server what the handler wants to know."""
        ...


class AttemptLink:
    """
    The link of one attempt's context; see ``pulse.app.context.Link``.

    Args:
        owner: The owner of its handler.
    """

    __slots__ = ("_attempt", "_job", "_owner", "_reader")

    def __init__(self, owner: AttemptOwner, attempt: Attempt) -> None:
        self._attempt = attempt
        self._job = attempt.pair[0]
        self._owner = owner
        self._reader = owner.reader

    @property
    def worker(self) -> str | None:
        """Identity of the worker."""
        return self._owner.identity

    @property
    def fence(self) -> AttemptFence | None:
        """The fence of this attempt, made when it is first wanted; None: the server has not named this worker."""
        if self.worker is None:
            return None
        return self._attempt.fence_for(self.worker, self._owner.fenced, schema=self._owner.schema)

    @property
    def lease_lost(self) -> bool:
        """Whether this attempt no longer holds the job."""
        return self._owner.lease_lost(self._attempt)

    @property
    def cancelled(self) -> bool:
        """Whether the handler must end."""
        return self._attempt.stopped is not None

    def progress(self, text: str) -> None:
        """Send this JSON text with the next heartbeat."""
        self._owner.progressed(self._attempt, text)

    def checkpoint(self, text: str) -> None:
        """Keep this JSON text for the next attempt."""
        self._owner.checkpointed(self._attempt, text)

    def save(self, text: str) -> Receipt:
        """The same; the receipt says when the server has it."""
        receipt = Receipt()
        self._owner.checkpointed(self._attempt, text, receipt)
        return receipt

    def parents(self, after: str | None) -> ParentPage:
        """A page of the jobs that the job has waited for."""
        return self._reader.parents(self._job, after)

    def next_signal(self, name: str, had: Sequence[int]) -> NextSignal:
        """The first signal of that name that is not among those."""
        return self._reader.next_signal(self._job, name, had)
