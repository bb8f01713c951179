"""Bodies between a worker and the server: hello, assignments, reports and heartbeats."""

from __future__ import annotations

import enum
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from pulse.common.backoff import MAX_BACKOFF
from pulse.errors import ProtocolError
from pulse.protocol.fields import (
    MAX_BATCH,
    MAX_HANDLERS,
    MAX_SECONDS,
    MAX_STACK_CHARS,
    MAX_TOPICS,
    Attempt,
    Behalf,
    Count,
    Id,
    Name,
    Seconds,
    Session,
    WorkerName,
)


class Role(enum.StrEnum):
    """The role in a peer's hello."""

    CLIENT = "client"
    WORKER = "worker"


class JobRef(Struct, frozen=True, array_like=True, gc=False):
    """One attempt, ``[id, attempt]``: the fencing token."""

    id: Id
    attempt: Attempt

    @property
    def pair(self) -> tuple[bytes, int]:
        """As a dictionary key."""
        return (self.id, self.attempt)


class HandlerInfo(Struct, frozen=True):
    """A worker's declaration of one handler; None: not declared, the next level decides."""

    topic: Name | None = None
    max_attempts: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    timeout_s: Annotated[float, Meta(gt=0, le=MAX_SECONDS)] | None = None
    max_crashes: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    stall_s: Annotated[float, Meta(gt=0, le=MAX_SECONDS)] | None = None
    backoff: Annotated[str, Meta(max_length=MAX_BACKOFF)] | None = None
    on_dead_letter: Name | None = None
    on_crash: Name | None = None
    batch: Annotated[int, Meta(ge=1, le=MAX_BATCH)] | None = None


class Hello(Struct, frozen=True):
    """The first frame of every peer."""

    protocol: int
    role: Role
    user: str | None = None
    password: str | None = None
    worker: WorkerName | None = None
    topics: Annotated[list[Name], Meta(max_length=MAX_TOPICS)] = []
    names: Annotated[list[Name], Meta(max_length=MAX_HANDLERS)] = []
    handlers: Annotated[dict[Name, HandlerInfo], Meta(max_length=MAX_HANDLERS)] = {}
    capacity: Count = 0
    concurrency: Count = 0
    running: list[JobRef] = []
    session: Session | None = None
    behalf: Behalf | None = None


class Welcome(Struct, frozen=True):
    """
    The server's answer to hello; ``session``, ``lost`` and ``worker``, its identity, for workers only.

    ``schema`` is where the database has the jobs.
    """

    protocol: int
    server: str
    heartbeat_s: float
    lease_s: float
    max_frame_bytes: int
    session: Session | None = None
    lost: list[JobRef] | None = None
    worker: str | None = None
    schema: str = "pulse"


class ErrorBody(Struct, frozen=True):
    """A refusal."""

    code: str
    message: str


class Assignment(Struct, frozen=True, array_like=True):
    """One job handed to a worker."""

    id: Id
    attempt: Attempt
    name: str
    topic: str
    args: str
    timeout_s: float | None
    lease_s: float
    extra: dict[str, msgspec.Raw] | None = None


class Assign(Struct, frozen=True):
    """Jobs for this worker, in the order in which they are to be started."""

    jobs: list[Assignment]


class Started(Struct, frozen=True):
    """The handlers of these attempts are about to be called; ``apart``: the isolated ones."""

    jobs: list[JobRef]
    apart: list[JobRef] = []


class ResultExtra(Struct, frozen=True):
    """
    More of a result.

    ``progress``: JSON text that no heartbeat carried; ``stopped``: why the worker interrupted the handler; ``stack``:
    its traceback then; ``cpu_s`` and ``peak_rss_bytes``: what an isolated attempt used.
    """

    progress: str | None = None
    stopped: str | None = None
    stack: str | None = None
    cpu_s: Seconds | None = None
    peak_rss_bytes: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None


class Result(Struct, frozen=True, array_like=True, gc=False):
    """
    How one attempt ended: ``[id, attempt, outcome, detail, extra]``.

    ``detail`` by outcome: ok: JSON text or None; error, discard: text; retry: [seconds, text]; snooze: seconds;
    wait: [seconds, [name of a signal, how many signals the handler has seen]]; release: None; crash: [text, signal or
    exit code or None]. ``check_result`` checks that.
    """

    id: Id
    attempt: Attempt
    outcome: Literal["ok", "error", "retry", "discard", "snooze", "wait", "release", "crash"]
    detail: str | float | tuple[float | str, str | int | tuple[Name, Count] | None] | None = None
    extra: ResultExtra | None = None

    @property
    def pair(self) -> tuple[bytes, int]:
        """As a dictionary key."""
        return (self.id, self.attempt)


class Report(Struct, frozen=True):
    """Results of attempts that ended."""

    results: list[Result]


class Reported(Struct, frozen=True):
    """Sent after the commit; ``stale``: these changed nothing; ``dead``: the jobs of these are dead letters now."""

    stale: list[JobRef]
    dead: list[JobRef] = []


class Beat(Struct, frozen=True, array_like=True, gc=False):
    """One held attempt in a heartbeat, with its progress as JSON text or None."""

    id: Id
    attempt: Attempt
    text: str | None = None


class Checkpoint(Struct, frozen=True):
    """Checkpoints for the next attempts, as JSON text."""

    jobs: list[Beat]


class Heartbeat(Struct, frozen=True):
    """
    All that a worker holds; or, from a pool parent, a session and nil: all that this session holds.

    Attributes:
        jobs: The held jobs; None: all that the server knows of.
        session: The worker's session, if *jobs* is None.
        assigns: How many ``assign`` frames the worker had read from this connection; jobs of later ones are not in
            *jobs* yet. None: it does not count them.

    """

    jobs: list[Beat] | None
    session: Session | None = None
    assigns: int | None = None


class BeatAnswer(Struct, frozen=True):
    """
    The answer to a heartbeat or checkpoint.

    Attributes:
        lost: Its attempts that this worker no longer holds.
        kept: Whether its progress or checkpoints are stored; else they must be sent again.
        dropped: Its attempts whose checkpoints cannot be stored.

    """

    lost: list[JobRef]
    kept: bool = True
    dropped: list[JobRef] = []


class StopOrder(Struct, frozen=True, array_like=True):
    """``[id, attempt, reason]``."""

    id: Id
    attempt: Attempt
    reason: str


class TakeStack(Struct, frozen=True):
    """
    Asks a pool parent for the stacks of the child of this session, or a worker for those of a handler.

    Answered by a ``stack`` with the request's number.
    """

    session: Session
    job: JobRef | None = None


class StackAnswer(Struct, frozen=True):
    """
    The stacks of all threads of a handler process, as faulthandler prints them; None: they could not be taken.

    ``pid``: of the process that runs the handler, if that is not the worker itself.
    """

    stack: Annotated[str, Meta(max_length=MAX_STACK_CHARS)] | None = None
    pid: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None


class Stop(Struct, frozen=True):
    """End these attempts; a result is still expected for each."""

    jobs: list[StopOrder]


class Drain(Struct, frozen=True):
    """
    No new jobs will come; with ``reconnect`` the worker reconnects, without it the worker exits.

    With ``replace`` its pool starts a new process in its place.
    """

    reconnect: bool = False
    replace: bool = False


class Capacity(Struct, frozen=True):
    """How many jobs this worker will hold; from a pool parent, with a session: that worker is about to end."""

    capacity: Count
    session: Session | None = None


def check_result(result: Result) -> None:
    """
    Check a result's detail against its outcome.

    Raises:
        ProtocolError: The outcome takes another kind of detail.
    """
    if result.outcome == "ok" and (result.detail is None or isinstance(result.detail, str)):
        return  # nearly every one
    match (result.outcome, result.detail):
        case ("error" | "discard", str()) | ("release", None):
            return
        case ("snooze", float(delay_s)) | ("retry", (float(delay_s), str())) if 0 <= delay_s <= MAX_SECONDS:
            return
        case ("wait", (float(delay_s), (str(), int()))) if 0 <= delay_s <= MAX_SECONDS:
            return
        case ("crash", (str(), int() | None)):
            return
        case _:
            message = f"report: outcome {result.outcome!r} does not take the detail {result.detail!r:.100}"
            raise ProtocolError(message)
