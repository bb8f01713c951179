"""One attempt that this process holds, from its assignment until the server has taken its result."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, Protocol, TypeAlias

import msgspec

from pulse.app.context import Previous
from pulse.app.handler import Handler
from pulse.app.outcome import RELEASED, Discard, Outcome, RetryAfter, classify, stalled, timed_out
from pulse.app.retry_on import retried
from pulse.common import json_text
from pulse.common.json_text import JsonValue
from pulse.protocol import Assignment
from pulse.security.codec import UnreadableError, seal, unseal

__all__ = ["HUNG", "Attempt", "Pair", "Phase", "StopReason", "Task", "wants_isolation"]

Pair: TypeAlias = "tuple[bytes, int]"
StopReason: TypeAlias = Literal["canceled", "lost", "timeout", "stalled", "drain"]
HUNG: Final = frozenset({"timeout", "stalled"})  # reasons that somebody will look into: where was it?


class Task(Protocol):
    """What runs a handler."""

    def cancel(self) -> object:
        """Make it end."""

    def get_coro(self) -> object:
        """The coroutine that waits for the handler; None where there is none."""


class Phase(enum.IntEnum):
    """How far an attempt is."""

    QUEUED = 0
    STARTED = 1  # named to the server; its handler is running, or will be called in this turn of the loop
    ENDED = 2  # its result waits to be sent, or to be taken


class Attempt:
    """
    What is known of one (id, attempt). Mutable: it is the hot path, and the ledger alone changes it.

    Attributes:
        named: The server was told that it started.
        stopped: Why the handler was asked to end; the first reason stays.
        lost: The server said that this attempt no longer holds its job.
        progress: The newest progress as JSON text.
        progress_sent: The progress that the server has for certain.
        checkpoint: The newest checkpoint as JSON text.
        checkpoint_saved: The checkpoint that the server has for certain.
        task: Runs the handler; None when nothing does.
        begun: The handler was called; before that, cancelling its task would lose the result.
        isolated: It runs in a process of its own.
        thread: The thread that runs the handler, where that is a plain one in a thread.
        told_s: When it last told progress or checkpoint, monotonic.
        stall_s: Longest time without progress: its handler's, else its topic's; None: no limit.
        stack: Where the handler was when it had run, or been silent, for too long.
    """

    __slots__ = (
        "begun",
        "checkpoint",
        "checkpoint_saved",
        "handler",
        "isolated",
        "job",
        "lease_until_s",
        "lost",
        "named",
        "pair",
        "phase",
        "progress",
        "progress_sent",
        "stack",
        "stall_s",
        "stopped",
        "task",
        "thread",
        "told_s",
    )

    thread: int  # these two are set where they are needed, and nowhere else: nearly no job does
    told_s: float

    def __init__(self, job: Assignment, handler: Handler | None, now_s: float) -> None:
        self.job: Final = job
        self.pair: Final[Pair] = (job.id, job.attempt)
        self.handler = handler
        self.lease_until_s = now_s + job.lease_s
        self.phase = Phase.QUEUED
        self.named = False
        self.stopped: StopReason | None = None
        self.lost = False
        self.progress: str | None = None
        self.progress_sent: str | None = None
        self.checkpoint: str | None = None
        self.checkpoint_saved: str | None = None
        self.task: Task | None = None
        self.begun = False
        self.isolated = False
        self.stack: str | None = None
        self.stall_s = None if handler is None else handler.stall_s
        if job.extra is not None and self.stall_s is None and "stall_s" in job.extra:
            of_topic = _decode(job.extra["stall_s"])
            self.stall_s = float(of_topic) if isinstance(of_topic, int | float) else None

    @property
    def is_saved(self) -> bool:
        """Whether the server has its newest checkpoint, or there is none."""
        return self.checkpoint is self.checkpoint_saved

    def ending(self, value: object) -> Outcome:
        """What the attempt came to, *value* being what the handler returned or the exception that ended it."""
        ending = self._ending(value)
        codec = None if self.handler is None else self.handler.codec
        if codec is None or ending.outcome != "ok" or not isinstance(ending.detail, str):
            return ending
        try:
            return Outcome("ok", seal(codec, self.job.name, ending.detail))
        except UnreadableError as error:
            return Outcome("error", f"the result cannot be encrypted: {error}")

    def _ending(self, value: object) -> Outcome:
        if self.stopped is None or not isinstance(value, BaseException) or isinstance(value, Discard | RetryAfter):
            ending = classify(value)
            retry_on = None if self.handler is None else self.handler.retry_on
            if retry_on is None or ending.outcome != "error" or not isinstance(value, BaseException):
                return ending
            return retried(retry_on, value, ending, self.tries())
        # It was interrupted, and went: with the cancellation itself, or with what it made of it.
        return self.interrupted(value if isinstance(value, Exception) else None)

    def interrupted(self, error: Exception | None = None) -> Outcome:
        """What it came to because it was stopped; *error*: how the handler took it."""
        if self.stopped == "timeout":
            return timed_out(self.job.timeout_s or 0.0, error)
        if self.stopped == "stalled":
            return stalled(self.stall_s or 0.0, error)
        return RELEASED

    def tries(self) -> int:
        """Charged tries, with this one."""
        raw = (self.job.extra or {}).get("tries")
        tries = None if raw is None else _decode(raw)
        return tries if isinstance(tries, int) else self.job.attempt

    def deadline(self) -> datetime | None:
        """When the timeout of a handler that is called now will be over."""
        timeout_s = self.job.timeout_s
        return None if timeout_s is None else datetime.now(UTC) + timedelta(seconds=timeout_s)

    def occurrence(self) -> datetime | None:
        """Of the schedule that fired the job."""
        raw = (self.job.extra or {}).get("occurrence")
        seconds = None if raw is None else _decode(raw)
        return datetime.fromtimestamp(seconds, UTC) if isinstance(seconds, int | float) else None

    def previous(self) -> Previous | None:
        """
        How the attempt before ended.

        Raises:
            UnreadableError: Its checkpoint is in an envelope that cannot be opened here.
        """
        raw = (self.job.extra or {}).get("previous")
        found = None if raw is None else _decode(raw)
        if not isinstance(found, dict):
            return None
        return Previous(
            outcome=_text(found.get("outcome")),
            reason=_text(found.get("reason")),
            worker=_text(found.get("worker")),
            progress=_json(found.get("progress")),
            checkpoint=self._opened(_json(found.get("checkpoint"))),
        )

    def _opened(self, checkpoint: JsonValue) -> JsonValue:
        try:
            return unseal(None if self.handler is None else self.handler.codec, self.job.name, checkpoint)
        except UnreadableError as error:
            raise UnreadableError(f"the checkpoint is {error}") from None


def wants_isolation(extra: Mapping[str, msgspec.Raw]) -> bool:
    """Whether the server wants this attempt to run in a process of its own, whatever its handler says."""
    raw = extra.get("isolate")
    return raw is not None and _decode(raw) is True


def _decode(raw: msgspec.Raw) -> JsonValue:
    try:
        value: JsonValue = msgspec.msgpack.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None  # what a newer server adds must not stop an older worker
    return value


def _text(value: JsonValue) -> str | None:
    return value if isinstance(value, str) else None


def _json(value: JsonValue) -> JsonValue:
    try:
        return json_text.loads(value) if isinstance(value, str) else None
    except ValueError:
        return None  # as in _decode
