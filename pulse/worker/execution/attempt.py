"""One attempt that this process holds, from its assignment until the server has its result."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias
from uuid import UUID

import msgspec

from pulse.app.context import CURRENT, Context, Previous, steps_of
from pulse.app.handler import Handler
from pulse.app.outcome import DONE, RELEASED, Discard, Outcome, RetryAfter, classify, stalled, timed_out
from pulse.app.retry_on import retried
from pulse.app.transactions.fence import AttemptFence, FencePhase
from pulse.app.workflows.link import Link
from pulse.app.workflows.steps import Steps
from pulse.common import json_text
from pulse.common.json_text import JsonValue
from pulse.logs import LOGGED
from pulse.protocol import Assignment
from pulse.security.codec import BY, Codec, UnreadableError, seal, unseal
from pulse.security.schema_name import DEFAULT
from pulse.worker.execution.late_endings import note_late
from pulse.worker.execution.previous import previous_from

if TYPE_CHECKING:
    from pulse.worker.execution.batch import BatchCall

__all__ = [
    "HUNG",
    "Attempt",
    "HandlerCall",
    "Pair",
    "Phase",
    "StopReason",
    "Task",
    "arguments_for",
    "decoded_args",
    "runs_alone",
    "wants_isolation",
]

Pair: TypeAlias = "tuple[bytes, int]"
StopReason: TypeAlias = Literal["canceled", "lost", "timeout", "stalled", "drain"]
HUNG: Final = frozenset({"timeout", "stalled"})  # reasons for which people want to see the stack
_MAKING: Final = threading.Lock()
_NO_SLEEP: Final = "a handler of batches cannot sleep: all jobs of its call would"
_NO_ARGS: Final[Mapping[str, Any]] = MappingProxyType({})


class Task(Protocol):
    """The task of a handler."""

    def cancel(self) -> object:
        """End it."""

    def get_coro(self) -> object:
        """The coroutine that waits for the handler; None: there is none."""


class Phase:
    """The phase of an attempt. No enum: Python 3.11 takes ten times as long to look up a member, for each job."""

    QUEUED: Final = 0
    STARTED: Final = 1  # the server has its name; its handler runs, or is called in this turn of the loop
    ENDED: Final = 2  # its result waits to be sent, or to be acknowledged


class HandlerCall:
    """
    A handler that is called, or will be.

    Attributes:
        task: Runs the handler; None: nothing does.
        begun: Whether the handler was called; before, cancelling its task would lose the result.
        in_thread: Whether it waits for a thread, which cannot be interrupted.
        thread: The thread that runs the handler, if a thread does.
    """

    __slots__ = ("begun", "in_thread", "task", "thread")

    thread: int

    def __init__(self) -> None:
        self.task: Task | None = None
        self.begun = False
        self.in_thread = False

    def await_thread(self) -> None:
        """From now on a thread runs its handler."""
        self.in_thread = True

    def enter_thread(self) -> None:
        """Called in that thread."""
        self.thread = threading.get_ident()

    def leave_thread(self) -> None:
        """The thread has ended."""
        self.in_thread = False

    def runs_in(self, task: Task) -> None:
        """Its handler is called, in *task*."""
        self.begun, self.task = True, task


class Attempt(HandlerCall):
    """
    The state of one (id, attempt). Mutable, since it is on the hot path; only the ledger changes it.

    Attributes:
        named: Whether the server has been sent that it started.
        stopped: Why the handler must end; the first reason stays.
        lost: Whether the server said that this attempt no longer holds its job.
        progress: The newest progress as JSON text.
        progress_sent: The progress that the server is known to have.
        checkpoint: The newest checkpoint as JSON text.
        checkpoint_saved: The checkpoint that the server is known to have.
        isolated: Whether it runs in a process of its own.
        args: The arguments of its handler, once they are decoded.
        make_link: Makes the link of its context.
        called_s: When its handler was called, Unix time; set where there is a time limit.
        told_s: When it last reported progress or a checkpoint, monotonic.
        stall_s: Longest time without progress: its handler's, else its topic's; None: no limit.
        stack: The stack of a handler that passed a limit.
        fence: What its fenced transactions have come to; None: its handler has asked for none.
        batch: The call that it shares with others, if its handler takes batches.
    """

    __slots__ = (
        "_context",
        "_steps",
        "args",
        "batch",
        "called_s",
        "checkpoint",
        "checkpoint_saved",
        "fence",
        "handler",
        "isolated",
        "job",
        "lease_until_s",
        "lost",
        "make_link",
        "named",
        "pair",
        "phase",
        "progress",
        "progress_sent",
        "stack",
        "stall_s",
        "stopped",
        "told_s",
    )

    told_s: float  # these are set only where needed: hardly any job does
    called_s: float
    _context: Context
    _steps: Steps
    make_link: Callable[[Attempt], Link]  # set when the handler is called

    def __init__(self, job: Assignment, handler: Handler | None, now_s: float) -> None:
        self.task: Task | None = None  # without a call of super(), for each job
        self.begun = self.in_thread = False
        self.job: Final = job
        self.pair: Final[Pair] = (job.id, job.attempt)
        self.handler = handler
        self.lease_until_s = now_s + job.lease_s
        self.phase: int = Phase.QUEUED
        self.named = False
        self.stopped: StopReason | None = None
        self.lost = False
        self.progress: str | None = None
        self.progress_sent: str | None = None
        self.checkpoint: str | None = None
        self.checkpoint_saved: str | None = None
        self.isolated = False
        self.args: Mapping[str, Any] = _NO_ARGS
        self.stack: str | None = None
        self.fence: AttemptFence | None = None
        self.batch: BatchCall | None = None
        self.stall_s = None if handler is None else handler.stall_s
        if job.extra is not None and self.stall_s is None and "stall_s" in job.extra:
            of_topic = _decode(job.extra["stall_s"])
            self.stall_s = float(of_topic) if isinstance(of_topic, int | float) else None

    @property
    def context(self) -> Context:
        """What its handler knows about it; made when it is needed first."""
        try:
            return self._context
        except AttributeError:
            self._context = made = _AttemptContext(self)
            return made

    def begin(self, make_link: Callable[[Attempt], Link]) -> None:
        """Its handler is called now: what runs in this context from now on belongs to it."""
        self.begun = True
        self.make_link = make_link
        if self.job.timeout_s is not None:
            self.called_s = time.time()
        LOGGED.set(self.job)
        CURRENT.set(self)

    def join(self, batch: BatchCall) -> None:
        """Its handler is called for all of *batch*."""
        self.batch = batch

    def start(self) -> None:
        """From now on it counts as running."""
        self.phase = Phase.STARTED

    def keep_args(self, args: Mapping[str, Any]) -> None:
        """What its context shows of them."""
        self.args = args

    def keep_stack(self, stack: str | None) -> None:
        """Where its handler was when it passed a limit."""
        self.stack = stack

    @property
    def is_saved(self) -> bool:
        """Whether the server has its newest checkpoint, or there is none."""
        return self.checkpoint is self.checkpoint_saved

    def stop(self, reason: StopReason) -> None:
        """Its handler must end; the first reason stays."""
        self.stopped = self.stopped or reason
        self.lost = self.lost or reason == "lost"

    @property
    def is_completed(self) -> bool:
        """Whether its handler has completed the job by a fenced transaction."""
        return self.fence is not None and self.fence.phase == "completed"

    def fence_for(
        self,
        worker: str,
        told: Callable[[Attempt, FencePhase], None],
        holds: Callable[[], bool] | None = None,
        schema: str = DEFAULT,
    ) -> AttemptFence:
        """
        The fence for its transactions, made when it is first wanted.

        Args:
            worker: Identity of the worker.
            told: Called with each new phase.
            holds: Whether it holds its job, where no database knows; see ``AttemptFence``.
            schema: The schema that has the job.
        """
        if self.fence is None:
            self.fence = AttemptFence(worker, lambda: self.progress, partial(told, self), holds=holds, schema=schema)
        return self.fence

    def fenced_apart(self, phase: FencePhase) -> None:
        """Its process has told how far a fenced transaction has come."""
        self.fence_for("", _nobody).move(phase)

    def keep_progress(self, text: str) -> None:
        """Its handler, in a process of its own, has reported progress."""
        self.progress = text

    def ending(self, value: object) -> Outcome:
        """The outcome, from what the handler returned, or the exception that ended it."""
        if value is None:
            return DONE  # as it comes to below; nearly every job
        if self.is_completed:
            note_late(self.job.name, value)
            return DONE
        ending = self._ending(value)
        codec = self.codec
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
        # It was interrupted, and ended: with the cancellation itself, or with an error of its own.
        return self.interrupted(value if isinstance(value, Exception) else None)

    @property
    def codec(self) -> Codec | None:
        """Encrypts and decrypts what its handler keeps; None: nothing does."""
        return None if self.handler is None else self.handler.codec

    def interrupted(self, error: Exception | None = None) -> Outcome:
        """The outcome of a stopped attempt; *error*: what the handler raised."""
        if self.stopped == "timeout":
            return timed_out(self.job.timeout_s or 0.0, error)
        if self.stopped == "stalled":
            return stalled(self.stall_s or 0.0, error)
        return RELEASED

    def tries(self) -> int:
        """Charged tries, including this one."""
        raw = (self.job.extra or {}).get("tries")
        tries = None if raw is None else _decode(raw)
        return tries if isinstance(tries, int) else self.job.attempt

    def deadline(self) -> datetime | None:
        """When its handler will time out; it has been called."""
        timeout_s = self.job.timeout_s
        return None if timeout_s is None else datetime.fromtimestamp(self.called_s + timeout_s, UTC)

    def occurrence(self) -> datetime | None:
        """The occurrence of the schedule that fired the job."""
        raw = (self.job.extra or {}).get("occurrence")
        seconds = None if raw is None else _decode(raw)
        return datetime.fromtimestamp(seconds, UTC) if isinstance(seconds, int | float) else None

    def previous(self) -> Previous | None:
        """
        The end of the attempt before.

        Raises:
            UnreadableError: Its checkpoint is encrypted with a key that is missing here.
        """
        raw = (self.job.extra or {}).get("previous")
        return None if raw is None else previous_from(_decode(raw), self.codec, self.job.name)

    def steps(self) -> Steps:
        """Its steps: the same in every thread that asks."""
        with _MAKING:
            try:
                return self._steps
            except AttributeError:
                job, why = self.job, None if self.batch is None else _NO_SLEEP
                self._steps = made = steps_of(job.attempt, job.name, self.context.previous, self.codec, why)
                return made


def arguments_for(attempt: Attempt, handler: Handler, values: Mapping[Any, Any]) -> dict[str, Any]:
    """
    The arguments for the handler.

    Args:
        values: Those of the app's lifespans, by type.

    Raises:
        ValueError: The job's args are not JSON.
        TypeError: They are not an object.
        ArgumentError: The handler does not take them.
        UnreadableError: They, or its checkpoint, are encrypted with a key that is missing here.
    """
    attempt.args = given = handler.parameters.decoded(decoded_args(attempt, handler))
    if handler.provided:
        given = {**given, **{name: values[kind] for name, kind in handler.provided.items()}}
    if handler.context_parameter is not None:
        context = attempt.context
        _ = context.previous  # here, and not in the handler, it shows whether it can be read
        given = {**given, handler.context_parameter: context}
    return given


def decoded_args(attempt: Attempt, handler: Handler) -> dict[str, Any]:
    """
    The args of the job, in JSON; raises as ``arguments_for`` does.

    Raises:
        ValueError: They are not JSON.
        TypeError: They are not an object.
        UnreadableError: They are encrypted with a key that is missing here.
    """
    arguments = json_text.loads(attempt.job.args)
    if isinstance(arguments, dict) and BY in arguments:
        try:
            arguments = unseal(handler.codec, handler.name, arguments)
        except UnreadableError as error:
            raise UnreadableError(f"args are {error}") from None
    if not isinstance(arguments, dict):
        raise TypeError("args are not an object")
    return arguments


class _AttemptContext(Context):
    """
    A context whose fields are made when they are read.

    Middleware gets one for each job, and reads hardly any of it: to make them all would cost more than the middleware.
    """

    __slots__ = ("_attempt",)

    def __init__(self, attempt: Attempt) -> None:
        object.__setattr__(self, "_attempt", attempt)

    def __getattr__(self, name: str) -> object:
        make = _FIELDS.get(name)
        if make is None:
            raise AttributeError(f"the context of a handler has no {name!r}", name=name, obj=self)
        value = make(object.__getattribute__(self, "_attempt"))
        object.__setattr__(self, name, value)
        return value


for _name in ("attempt", "name", "topic"):  # these are as quickly read as made
    setattr(_AttemptContext, _name, property(attrgetter(f"_attempt.job.{_name}")))

_FIELDS: Final[Mapping[str, Callable[[Attempt], object]]] = {
    "job_id": lambda attempt: UUID(bytes=attempt.job.id),
    "deadline": Attempt.deadline,
    "occurrence": Attempt.occurrence,
    "previous": Attempt.previous,
    "args": lambda attempt: MappingProxyType(attempt.args),
    "link": lambda attempt: attempt.make_link(attempt),
    "batch": lambda _: (),
    "steps": Attempt.steps,
    "codec": lambda attempt: attempt.codec,
}


def _nobody(_attempt: Attempt, _phase: FencePhase) -> None:
    """It is not told on."""


def wants_isolation(extra: Mapping[str, msgspec.Raw]) -> bool:
    """Whether the server wants this attempt in a process of its own, whatever its handler says."""
    raw = extra.get("isolate")
    return raw is not None and _decode(raw) is True


def runs_alone(attempt: Attempt) -> bool:
    """Whether it was tried before: if its job is what fails, or kills its process, it must not hurt others again."""
    return attempt.tries() > 1 or "crashes" in (attempt.job.extra or {})


def _decode(raw: msgspec.Raw) -> JsonValue:
    try:
        value: JsonValue = msgspec.msgpack.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None  # additions of a newer server must not stop an older worker
    return value
