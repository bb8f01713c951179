"""A handler's view of its job, and its reports to the server while it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar
from uuid import UUID, uuid5

from pulse.app.transactions.fence import AttemptFence
from pulse.app.workflows.link import Link, LocalLink
from pulse.app.workflows.parents import Parents
from pulse.app.workflows.receipt import Sent
from pulse.app.workflows.steps import Steps, fitting
from pulse.common import json_text
from pulse.common.json_text import JsonValue
from pulse.errors import HandlerError, NoHandlerError, StaleAttemptError, TransactionError
from pulse.security.codec import Codec, seal

if TYPE_CHECKING:
    from pulse.app.transactions.transaction import Transaction

__all__ = ["CURRENT", "BatchJob", "Context", "Previous", "current"]

ArgsT = TypeVar("ArgsT")

PROGRESS_MAX_BYTES: Final = 16 * 1024  # it travels in every heartbeat
RESULT_MAX_BYTES: Final = 4 * 1024 * 1024  # as of a returned one


class ContextOwner(Protocol):
    """An attempt."""

    @property
    def context(self) -> Context:
        """Its context."""
        ...


CURRENT: Final[ContextVar[ContextOwner]] = ContextVar("pulse_current")  # whose handler runs here


_SENT: Final = Sent()


@dataclass(frozen=True, slots=True, kw_only=True)
class Previous:
    """
    How the attempt before this one ended.

    Attributes:
        outcome: As in the history: ``error``, ``lease_expired``, ``released`` ...
        reason: Its error text.
        worker: Identity of the worker that ran it.
        progress: The last progress that it reported.
        checkpoint: The last checkpoint that it saved with ``ctx.checkpoint``.
        steps: What the steps that have finished returned, by their names.
    """

    outcome: str | None = None
    reason: str | None = None
    worker: str | None = None
    progress: JsonValue = None
    checkpoint: JsonValue = None
    steps: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Context:
    """
    Given to a handler that has a parameter annotated ``pulse.Context``.

    Attributes:
        job_id: Id of the job; with ``attempt`` the key to deduplicate side effects on.
        attempt: Number of this attempt; grows with every claim: by 1, but after the database went back.
        name: Name that the job was submitted under.
        topic: Where the job waited.
        deadline: When ``timeout_s`` ends, aware; None without one.
        occurrence: The occurrence of the schedule that fired the job, aware; None for other jobs.
        previous: How the attempt before ended, if the server knows.
        args: The arguments, as the handler gets them.
        batch: For middleware around a handler of batches: the jobs of its call; all else is then of the first job.
    """

    job_id: UUID
    attempt: int
    name: str
    topic: str
    deadline: datetime | None = None
    occurrence: datetime | None = None
    previous: Previous | None = None
    args: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)  # they may be secrets
    link: Link = field(default_factory=LocalLink, repr=False)
    codec: Codec | None = field(default=None, repr=False)
    batch: tuple[BatchJob[Any], ...] = field(default=(), repr=False)
    steps: Steps = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """The steps of a context that was made by hand."""
        object.__setattr__(self, "steps", steps_of(self.attempt, self.name, self.previous, self.codec))

    @property
    def worker(self) -> str | None:
        """Identity of the worker that holds this attempt, as in ``pulse.jobs.locked_by``; None: no worker runs it."""
        return self.link.worker

    @property
    def lease_lost(self) -> bool:
        """
        Whether this attempt no longer holds the job, or its lease has passed without an answer from the server.

        From then on another attempt may run at the same time, and do everything again.
        """
        return self.link.lease_lost

    @property
    def cancelled(self) -> bool:
        """Whether the handler must end; a plain ``def`` has to check this, an ``async def`` is interrupted."""
        return self.link.cancelled

    def progress(self, value: JsonValue, text: str | None = None) -> Sent:
        """
        Report progress: a fraction and a text, or any JSON value; the newest wins.

        Call it with ``await`` in ``async def`` handlers and without in plain ``def`` ones. It does not wait for the
        server: progress travels with the heartbeats, at most one a second.

        Args:
            value: A number, stored as ``{"value": 0.5}``, or an object, stored as it is.
            text: Stored beside it as ``"text"``.

        Raises:
            ValueError: *value* is not JSON.
            TooLargeError: It is more than 16 KiB.
        """
        shown: dict[str, JsonValue] = dict(value) if isinstance(value, dict) else {"value": value}
        if text is not None:
            shown["text"] = text
        self.link.progress(_json("progress", shown, PROGRESS_MAX_BYTES))
        return _SENT

    def checkpoint(self, data: JsonValue) -> Sent:
        """
        Save small resumable state: the next attempt finds it in ``ctx.previous.checkpoint``.

        Call it with ``await`` in ``async def`` handlers and without in plain ``def`` ones.

        Args:
            data: Any JSON value.

        Raises:
            ValueError: *data* is not JSON.
            TooLargeError: It is more than 1 MiB.
        """
        self.steps.checkpoint(data, self.link.checkpoint)
        return _SENT

    def step(self, name: str, function: Callable[..., Any], /, *args: object, **kwargs: object) -> Any:  # noqa: ANN401
        """
        Call *function*, and remember its result for the attempts after this one: they get that, and do not call it.

        Call it with ``await`` in ``async def`` handlers, where an async *function* is awaited and a plain one runs in a
        thread; without in plain ``def`` ones. It returns when the server has the result, in JSON. If the attempt dies
        before, the next one calls *function* again: at least once.

        Args:
            name: Of the step; each one of the handler has its own.
            function: Called with the other arguments.

        Raises:
            HandlerError: The name is not allowed or was used, or this is the context of a batch.
            StaleAttemptError: The attempt no longer holds its job.
            TooLargeError: All steps with the checkpoint are more than 1 MiB.
            ValueError: The result is not JSON.
        """
        self._check_step()
        return self.steps.step(self.link.save, name, partial(function, *args, **kwargs))

    def sleep(self, seconds: float = 0.0, *, hours: float = 0.0, days: float = 0.0, name: str | None = None) -> Any:  # noqa: ANN401
        """
        End this attempt, uncharged, and go on here in another one, so much later. Nothing is held meanwhile.

        Call it with ``await`` in ``async def`` handlers and without in plain ``def`` ones. What it raises through the
        handler is no ``Exception``: a bare ``except`` must let it pass. The next attempt begins at the beginning, but
        for the steps that have finished.

        Args:
            seconds: How long, together with the others.
            hours: The same in hours.
            days: The same in days.
            name: Of this sleep. Without one they are counted, in the order in which the handler comes to them.

        Raises:
            HandlerError: The handler takes batches, or the name was used.
            StaleAttemptError: The attempt no longer holds its job.
            ValueError: That is negative, or more than 1e9 seconds.
        """
        self._check_step()
        return self.steps.sleep(self.link.save, seconds + 3600.0 * (hours + 24.0 * days), name)

    def wait_for(self, signal: str, *, timeout_s: float | None = None) -> Any:  # noqa: ANN401 - a Signal, or what to await
        """
        The next signal of that name that was sent to this job: a ``pulse.Signal``; None: the time is over.

        If it has not come yet, this attempt ends as in ``sleep``, and another one goes on here when it comes. Call it
        with ``await`` in ``async def`` handlers and without in plain ``def`` ones. Each signal is given to one wait.

        Args:
            signal: Its name. To wait for one of several things, give them one name, and tell them by the payload.
            timeout_s: How long to wait, from the first attempt that comes here; None: without end.

        Raises:
            HandlerError: The handler takes batches, or the name is not allowed.
            StaleAttemptError: The attempt no longer holds its job.
            TooLargeError: All signals and steps with the checkpoint are more than 1 MiB.
            ValueError: *timeout_s* is negative, or more than 1e9 seconds.
        """
        self._check_step()
        return self.steps.wait(self.link.save, self.link.next_signal, signal, timeout_s)

    def _check_step(self) -> None:
        if self.batch:
            raise HandlerError("a batch has no steps: each job of it has its own, job.ctx.step")
        if self.link.lease_lost:
            raise StaleAttemptError("this attempt no longer holds its job: it begins no step")

    def parents(self) -> Parents:
        """
        The jobs that this one has waited for (``after``), with their status and result, in the order of their ids.

        Of a ``pulse.Batch`` that is the order in which they were added. They are read from the server when they are
        asked for; one that was deleted meanwhile is missing.

        Example:
            ``for parent in await ctx.parents():``, in a plain ``def`` ``for parent in ctx.parents():``. Of very many
            with long results ``async for parent in ctx.parents():`` keeps only a page in memory.
        """
        return Parents(self.link.parents)

    def child_id(self, name: str) -> UUID:
        """
        The id for a job that this handler submits: the same in each attempt, so that a second try submits no new job.

        Args:
            name: Which of them: another one for each job that the handler submits.

        Example:
            ``await client.submit(pulse.call(send, user), id=ctx.child_id(f"mail to {user}"))``
        """
        return uuid5(self.job_id, name)

    def transaction(self, connection: object, *, complete: bool = True) -> Transaction:
        """
        A transaction on *connection* that commits only while this attempt holds its job, and completes the job with it.

        ``async with ctx.transaction(connection):`` for connections of asyncpg, AsyncConnections of psycopg, and
        AsyncConnections and AsyncSessions of SQLAlchemy; ``with`` for connections of psycopg, Connections and Sessions
        of SQLAlchemy, and Django's. All that the block writes on *connection* happens exactly once: it is committed
        with the completion of the job, or not at all. What the handler returns or raises afterwards changes nothing.

        Args:
            connection: To the database that pulse uses, and in no transaction.
            complete: False: the job stays as it is; the block commits only while the attempt holds it.

        Raises:
            StaleAttemptError: The attempt no longer holds its job; everything is rolled back.
            TransactionError: The connection is closed, read-only or in a transaction; a statement of the block has
                failed; the attempt has a block already; or no worker runs this attempt.
            BadRequestError: This is no connection that is known, or async where it must block, or the reverse.
            ForbiddenError: The role of the connection may not do that.
            SchemaError: The database has no schema of pulse, or an old one.
            TooLargeError: The result is more than 4 MiB.
        """
        from pulse.app.transactions.transaction import Transaction

        return Transaction((self.job_id, self.attempt), self._fence(), connection, completes=complete)

    def complete(self, result: object = None) -> Sent:
        """
        The result of the job, inside a block of ``ctx.transaction``; may be awaited or not.

        Args:
            result: As a handler returns it.

        Raises:
            ValueError: *result* is not JSON.
            TooLargeError: It is more than 4 MiB.
            TransactionError: No block is open that completes the job, or it has a result.
        """
        from pulse.app.outcome import result_text

        try:
            text = result_text(result)
        except ValueError as error:
            raise ValueError(f"result is not JSON: {error}") from None
        if self.codec is not None:
            text = seal(self.codec, self.name, text)
        self._fence().put(fitting("result", text, RESULT_MAX_BYTES))
        return _SENT

    def _fence(self) -> AttemptFence:
        fence = self.link.fence
        if fence is None:
            raise TransactionError(
                "ctx.transaction and ctx.complete need a worker that runs the attempt, and a server that names it"
            )
        return fence


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BatchJob(Generic[ArgsT]):
    """
    One job of a batch, for a handler with ``batch=``.

    Attributes:
        id: Id of the job.
        attempt: Number of this attempt.
        args: Its arguments, of the type in the handler's ``list[pulse.BatchJob[IndexArgs]]``; without a type a dict.
        ctx: Its own context: progress, checkpoint, previous, cancelled, transaction.
    """

    id: UUID
    attempt: int
    args: ArgsT
    ctx: Context = field(repr=False)
    _ends: list[object] = field(default_factory=list[object], init=False, repr=False)

    def complete(self, result: object = None) -> None:
        """
        This job is done, whatever the handler returns or raises later; stored when the call has ended.

        Args:
            result: As a handler returns it.

        Raises:
            HandlerError: The job has its outcome already.
        """
        self._end(result)

    def fail(self, error: BaseException) -> None:
        """
        This job has failed, and only this one; stored when the call has ended.

        Args:
            error: As a handler raises it, ``pulse.RetryAfter`` and ``pulse.Discard`` too.

        Raises:
            HandlerError: The job has its outcome already, or this is no exception.
        """
        if not _is_error(error):
            raise HandlerError(f"job {self.id}: fail takes an exception, not {error!r:.100}")
        self._end(error)

    def outcome_or(self, value: object) -> object:
        """The result or the error that it was given; without any, *value*."""
        return self._ends[0] if self._ends else value

    def _end(self, value: object) -> None:
        if self._ends:
            raise HandlerError(f"job {self.id} has its outcome already: one call of complete or fail is allowed")
        self._ends.append(value)


def _is_error(value: object) -> bool:
    return isinstance(value, BaseException)


def current() -> Context:
    """
    The context of the handler that runs here, for functions that it calls; also in its tasks and threads.

    Raises:
        NoHandlerError: No handler runs here.
    """
    attempt = CURRENT.get(None)
    if attempt is None:
        raise NoHandlerError("pulse.current() was called where no handler runs")
    return attempt.context


def steps_of(
    attempt: int, name: str, previous: Previous | None, codec: Codec | None, why_awake: str | None = None
) -> Steps:
    """The steps of an attempt, as those before have left them."""
    before = previous or Previous()
    return Steps(
        attempt,
        before.steps,
        before.checkpoint,
        was_asleep=before.outcome == "snoozed",
        seal=str if codec is None else partial(seal, codec, name),
        why_awake=why_awake,
    )


def _json(what: str, value: object, max_bytes: int) -> str:
    try:
        text = json_text.dumps(value)
    except ValueError as error:
        raise ValueError(f"{what} is not JSON: {error}") from None
    return fitting(what, text, max_bytes)
