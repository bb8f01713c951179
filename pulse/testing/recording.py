"""What a handler reports while it runs, kept for the test that looks at it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from uuid import UUID

from pulse.app.context import Context
from pulse.app.transactions.fence import AttemptFence
from pulse.app.workflows.parents import ParentPage
from pulse.app.workflows.receipt import Receipt
from pulse.app.workflows.steps import NextSignal, split
from pulse.common import json_text
from pulse.common.ids import uuid7
from pulse.common.json_text import JsonValue
from pulse.job import Job, Signal
from pulse.protocol.workflows import SignalInfo
from pulse.security.codec import Codec, unseal

__all__ = ["InlineJob", "Recording", "RecordingContext"]


class Recording:
    """
    What a handler reported, and what its context says.

    Attributes:
        progress_reports: Each value of ``ctx.progress``, the oldest first.
        checkpoints: Each value of ``ctx.checkpoint``; encrypted ones as they are.
        stored: What the next attempt finds: the newest checkpoint, and what the steps returned.
        cancelled: What ``ctx.cancelled`` says; may be set.
        lease_lost: What ``ctx.lease_lost`` says; may be set.
        fence: What ``ctx.transaction`` asks, and what it has come to.
        parent_jobs: What ``ctx.parents()`` finds; may be set.
        signals: What ``ctx.wait_for`` gets, the oldest first; may be set.
        now_s: The time for waits, Unix seconds; None: what the clock says.
    """

    worker: str | None = None

    def __init__(self) -> None:
        self.fence: AttemptFence | None = AttemptFence("", holds=lambda: not self.lease_lost)
        self.progress_reports: list[JsonValue] = []
        self.checkpoints: list[JsonValue] = []
        self.stored: JsonValue = None
        self.parent_jobs: Sequence[Job] = ()
        self.signals: list[Signal] = []
        self.now_s: float | None = None
        self._codec: Codec | None = None
        self.cancelled = False
        self.lease_lost = False

    def stop(self, *, cancelled: bool, lease_lost: bool = False) -> None:
        """Let the context say so."""
        self.cancelled, self.lease_lost = cancelled, lease_lost

    def begin(self, fence: AttemptFence, parents: Sequence[Job], codec: Codec | None, now_s: float) -> None:
        """An attempt begins, with a fence of its own; its job has waited for *parents*."""
        self.fence, self.parent_jobs, self._codec, self.now_s = fence, parents, codec, now_s

    def receive(self, sent: SignalInfo) -> None:
        """A signal was sent to the job."""
        payload = None if sent.payload is None else json_text.loads(sent.payload)
        self.signals.append(
            Signal(name=sent.signal, payload=payload, sent_at=datetime.fromtimestamp(sent.sent_at, UTC))
        )

    def progress(self, text: str) -> None:
        """Keep a report."""
        self.progress_reports.append(json_text.loads(text))

    def checkpoint(self, text: str) -> None:
        """Keep a checkpoint."""
        self.stored = json_text.loads(text)
        self.checkpoints.append(split(self.stored)[1])

    def save(self, text: str) -> Receipt:
        """Keep what the steps returned."""
        receipt = Receipt()
        if not self.lease_lost:
            self.stored = json_text.loads(text)
        receipt.settle("lost" if self.lease_lost else "kept")
        return receipt

    def parents(self, after: str | None) -> ParentPage:
        """The jobs in ``parent_jobs``."""
        del after
        return self.parent_jobs, None

    def next_signal(self, name: str, had: Sequence[int]) -> NextSignal:
        """The first of ``signals`` that has that name and whose number, from 1 on, is not among those."""
        sent, now_s = len(self.signals), time.time() if self.now_s is None else self.now_s
        for number, signal in enumerate(self.signals, 1):
            if signal.name == name and number not in had:
                opened = replace(signal, payload=unseal(self._codec, name, signal.payload))
                return NextSignal(opened, number, sent=sent, now_s=now_s)
        return NextSignal(None, sent=sent, now_s=now_s)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RecordingContext(Context):
    """
    A context to call a handler with, as a function.

    Attributes:
        link: What the handler reported with it, and what it says.

    Example:
        ::

            ctx = RecordingContext(attempt=2)
            ctx.link.cancelled = True
            crunch(10, ctx)
            assert ctx.link.progress_reports == [{"value": 0.1}]
    """

    job_id: UUID = field(default_factory=uuid7)
    attempt: int = 1
    name: str = "test"
    topic: str = "default"
    link: Recording = field(default_factory=Recording, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class InlineJob(Job):
    """
    A job that ran in memory.

    Attributes:
        error: What its last attempt raised; None: it returned.
        delays_s: The wait before each next try, seconds.
        progress_reports: Each value of ``ctx.progress``, of all attempts.
        checkpoint: The newest value of ``ctx.checkpoint``.
    """

    error: BaseException | None = field(default=None, repr=False)
    delays_s: tuple[float, ...] = ()
    progress_reports: tuple[JsonValue, ...] = ()
    checkpoint: JsonValue = None
