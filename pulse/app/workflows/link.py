"""What connects the context of a handler to the worker that runs it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from pulse.app.transactions.fence import AttemptFence
from pulse.app.workflows.parents import ParentPage
from pulse.app.workflows.receipt import Receipt
from pulse.app.workflows.steps import NextSignal

__all__ = ["Link", "LocalLink"]


class Link(Protocol):
    """Connects a context to the worker that runs the handler; callable from any thread."""

    @property
    def worker(self) -> str | None:
        """Identity of the worker; None: no worker runs this attempt, or its server does not tell."""
        ...

    @property
    def fence(self) -> AttemptFence | None:
        """The fence of this attempt; None: there is no worker."""
        ...

    @property
    def lease_lost(self) -> bool:
        """Whether this attempt no longer holds the job."""
        ...

    @property
    def cancelled(self) -> bool:
        """Whether the handler must end."""
        ...

    def progress(self, text: str) -> None:
        """Send this JSON text with the next heartbeat."""
        ...

    def checkpoint(self, text: str) -> None:
        """Keep this JSON text for the next attempt."""
        ...

    def save(self, text: str) -> Receipt:
        """The same; the receipt says when the server has it."""
        ...

    def parents(self, after: str | None) -> ParentPage:
        """A page of the jobs that the job has waited for; blocks."""
        ...

    def next_signal(self, name: str, had: Sequence[int]) -> NextSignal:
        """The first signal of that name whose id is not among those; blocks."""
        ...


class LocalLink:
    """The link of a context that was made by hand, to call a handler in a test: reports go nowhere."""

    worker = None
    fence = None
    lease_lost = False
    cancelled = False

    def progress(self, text: str) -> None:
        """Nobody reads it."""

    def checkpoint(self, text: str) -> None:
        """Nobody keeps it."""

    def save(self, text: str) -> Receipt:
        """Settled at once."""
        del text
        receipt = Receipt()
        receipt.settle()
        return receipt

    def parents(self, after: str | None) -> ParentPage:
        """None."""
        del after
        return (), None

    def next_signal(self, name: str, had: Sequence[int]) -> NextSignal:
        """None."""
        del name, had
        return NextSignal(None, now_s=time.time())
