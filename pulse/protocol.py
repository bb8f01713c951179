"""
The wire, version 1: bytes in, typed messages out; messages in, bytes out. No IO, no clock, no logging.

Theory of operation
-------------------
A frame is a 4-byte big-endian length N (1 ... max_frame_bytes) and N bytes of MessagePack: the array
``[kind: str, request: uint or nil, body: map with str keys]``. ``docs/protocol.md`` is the page for people; the Structs
below are the same thing for machines, one per kind, and nothing else describes a body.

Two libraries share the format. msgpack packs what we send. msgspec decodes what we receive, because it decodes *into a
type*: lengths, ranges and key types are checked while it reads, a nested bomb or a million empty maps in an unknown key
are skipped without an object being made, and what does not fit is one exception. Keys that the type does not know and
array elements behind the known ones are skipped too, which is the contract's rule for growth.

A frame is decoded in two steps: the envelope (kind, request, raw body), then the body by the kind's own type. So a body
that is wrong is answered with its request's number and the connection lives on, while a broken envelope is answered
with nil and ends the connection: after it, nobody knows where the next frame starts.

Who may send what, and when, is the table ``ALLOWED``: role -> kinds. A missing key is the error.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal, TypeVar

import msgpack
import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from pulse.backoff import MAX_BACKOFF
from pulse.errors import ProtocolError

PROTOCOL_VERSION: Final = 1
MAX_FRAME_BYTES: Final = 8 * 1024 * 1024  # a submit of 40 000 small jobs; one result of 8 MiB is a file, not a result
HELLO_MAX_FRAME_BYTES: Final = 1024 * 1024  # before hello nobody is known yet; 40 000 running jobs fit
MAX_ATTEMPT: Final = 2**31 - 1  # attempts is a PostgreSQL integer
MAX_STACK_CHARS: Final = 64 * 1024
MAX_SECONDS: Final = 1e9  # 31 years; keeps every sum of times finite
_LENGTH_BYTES: Final = 4
_SHOWN_BYTES: Final = 64 * 1024  # of a longer body nobody looks for the value that is wrong in it
_PLACE: Final = re.compile(r" - at `\$((?:\.\w+|\[\d+\])+)`$")  # as msgspec tells it
_STEP: Final = re.compile(r"\.(\w+)|\[(\d+)\]")
_FIXMAP: Final = 0x80  # first bytes of a map in MessagePack: 0x80 to 0x8f, map 16, map 32
_FIXMAP_END: Final = 0x90
_LONG_MAPS: Final = frozenset({0xDE, 0xDF})

Id = Annotated[bytes, Meta(min_length=16, max_length=16)]
Attempt = Annotated[int, Meta(ge=1, le=MAX_ATTEMPT)]
RequestNumber = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Seconds = Annotated[float, Meta(ge=0, le=MAX_SECONDS)]
UnixTime = Annotated[float, Meta(ge=-1e11, le=1e11)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
WorkerName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,64}\Z")]
Session = Annotated[bytes, Meta(min_length=16, max_length=16)]
Count = Annotated[int, Meta(ge=0, le=1_000_000)]


class Role(enum.StrEnum):
    """What a peer said it is."""

    CLIENT = "client"
    WORKER = "worker"


class Frame(Struct, frozen=True, array_like=True):
    """The envelope of a frame; ``body`` is still MessagePack."""

    kind: Annotated[str, Meta(max_length=64)]
    request: RequestNumber | None
    body: Raw


class JobRef(Struct, frozen=True, array_like=True, gc=False):
    """One attempt, ``[id, attempt]``: the fencing token."""

    id: Id
    attempt: Attempt

    @property
    def pair(self) -> tuple[bytes, int]:
        """As a dictionary key."""
        return (self.id, self.attempt)


class HandlerInfo(Struct, frozen=True):
    """What a worker tells of one handler; None: not declared there, the next level decides."""

    topic: Name | None = None
    max_attempts: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    timeout_s: Annotated[float, Meta(gt=0, le=MAX_SECONDS)] | None = None
    max_crashes: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    stall_s: Annotated[float, Meta(gt=0, le=MAX_SECONDS)] | None = None
    backoff: Annotated[str, Meta(max_length=MAX_BACKOFF)] | None = None


class Hello(Struct, frozen=True):
    """The first frame of every peer."""

    protocol: int
    role: Role
    user: str | None = None
    password: str | None = None
    worker: WorkerName | None = None
    topics: list[Name] = []
    names: list[Name] = []
    handlers: dict[Name, HandlerInfo] = {}
    capacity: Count = 0
    running: list[JobRef] = []
    session: Session | None = None


class Welcome(Struct, frozen=True):
    """The server's answer to hello; ``session`` and ``lost`` for workers only."""

    protocol: int
    server: str
    heartbeat_s: float
    lease_s: float
    max_frame_bytes: int
    session: Session | None = None
    lost: list[JobRef] | None = None


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
    """The handlers of these attempts are about to be called; ``apart``: those that run in processes of their own."""

    jobs: list[JobRef]
    apart: list[JobRef] = []


class ResultExtra(Struct, frozen=True):
    """
    More of a result.

    ``progress``: JSON text that no heartbeat carried; ``stopped``: why the worker interrupted the handler; ``stack``:
    where it was then; ``cpu_s`` and ``peak_rss_bytes``: what an attempt in a process of its own used.
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
    release: None; crash: [text, signal or exit code or None]. ``check_result`` holds it against the outcome.
    """

    id: Id
    attempt: Attempt
    outcome: Literal["ok", "error", "retry", "discard", "snooze", "release", "crash"]
    detail: str | float | tuple[float | str, str | int | None] | None = None
    extra: ResultExtra | None = None

    @property
    def pair(self) -> tuple[bytes, int]:
        """As a dictionary key."""
        return (self.id, self.attempt)


class Report(Struct, frozen=True):
    """Results of attempts that ended."""

    results: list[Result]


class Reported(Struct, frozen=True):
    """Sent after the commit; ``stale``: these wrote nothing."""

    stale: list[JobRef]


class Beat(Struct, frozen=True, array_like=True, gc=False):
    """One held attempt in a heartbeat, with its progress as JSON text or None."""

    id: Id
    attempt: Attempt
    text: str | None = None


class Checkpoint(Struct, frozen=True):
    """What handlers saved for the next attempt, as JSON text."""

    jobs: list[Beat]


class Heartbeat(Struct, frozen=True):
    """All that a worker holds; or, from a pool parent, a session and nil: all that this session holds."""

    jobs: list[Beat] | None
    session: Session | None = None


class BeatAnswer(Struct, frozen=True):
    """``lost``: attempts of the heartbeat that this worker no longer holds."""

    lost: list[JobRef]


class StopOrder(Struct, frozen=True, array_like=True):
    """``[id, attempt, reason]``."""

    id: Id
    attempt: Attempt
    reason: str


class TakeStack(Struct, frozen=True):
    """
    To a pool parent: where is the child of this session? To a worker: where is this handler of yours?

    Answered by a ``stack`` with the request's number.
    """

    session: Session
    job: JobRef | None = None


class Stack(Struct, frozen=True):
    """
    What every thread of a handler process is doing, as faulthandler prints it; None: it could not be seen.

    ``pid``: of the process that runs the handler, where that is not the worker itself.
    """

    stack: Annotated[str, Meta(max_length=MAX_STACK_CHARS)] | None = None
    pid: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None


class Stop(Struct, frozen=True):
    """End these attempts; a result is still expected for each."""

    jobs: list[StopOrder]


class Drain(Struct, frozen=True):
    """No new jobs will come; with ``reconnect`` the worker comes back, without it the worker exits."""

    reconnect: bool = False


class Capacity(Struct, frozen=True):
    """How many jobs this worker will hold; from a pool parent, with a session: that worker is about to leave."""

    capacity: Count
    session: Session | None = None


class NewJob(Struct, frozen=True):
    """One job of a submit; None: the handler, the topic or the server decides."""

    name: Name
    args: str = "{}"
    topic: Name | None = None
    priority: Annotated[int, Meta(ge=-100, le=100)] = 0
    run_at: UnixTime | None = None
    delay_s: Seconds | None = None
    max_attempts: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    timeout_s: Annotated[float, Meta(gt=0, le=MAX_SECONDS)] | None = None
    id: Id | None = None
    expires_at: UnixTime | None = None
    expires_in_s: Annotated[float, Meta(gt=0, le=MAX_SECONDS)] | None = None


class Submit(Struct, frozen=True):
    """All of these jobs, or none."""

    jobs: Annotated[list[NewJob], Meta(min_length=1, max_length=100_000)]


class JobsList(Struct, frozen=True):
    """A page of jobs, newest first."""

    status: list[str] | str | None = None
    topic: Name | None = None
    name: Name | None = None
    schedule: Id | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 50
    after: str | None = None


class ById(Struct, frozen=True):
    """A request about one thing."""

    id: Id


class ByIds(Struct, frozen=True):
    """A request about several things."""

    ids: Annotated[list[Id], Meta(min_length=1, max_length=10_000)]


class ScheduleCreate(Struct, frozen=True):
    """A new schedule: exactly one of cron, every, at. Where no type says what is allowed, the refusal does."""

    name: Name
    cron: Annotated[str, Meta(max_length=200)] | None = None
    timezone: Annotated[str, Meta(max_length=100)] | None = None
    every: float | None = None
    at: UnixTime | None = None
    args: str = "{}"
    topic: Name | None = None
    priority: Annotated[int, Meta(ge=-100, le=100)] = 0
    max_attempts: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    timeout_s: Annotated[float, Meta(gt=0, le=MAX_SECONDS)] | None = None
    id: Id | None = None
    starts_at: UnixTime | None = None
    ends_at: UnixTime | None = None
    jitter_s: float = 0.0
    catch_up: str = "latest"
    overlap: str = "allow"


class ScheduleDeclared(ScheduleCreate, frozen=True, kw_only=True):
    """A schedule that an application declares, by its stable key."""

    key: Name


class SchedulesDeclare(Struct, frozen=True):
    """All schedules that an application declares."""

    by: Name
    schedules: Annotated[list[ScheduleDeclared], Meta(max_length=10_000)]


class ScheduleUpdate(Struct, frozen=True):
    """
    What is to be different; what is left out stays, and nil is as if it had never been given.

    One of cron, every and at takes the place of the one before.
    """

    id: Id
    name: Name | UnsetType = UNSET
    cron: Annotated[str, Meta(max_length=200)] | UnsetType = UNSET
    timezone: Annotated[str, Meta(max_length=100)] | UnsetType | None = UNSET
    every: float | UnsetType = UNSET
    at: UnixTime | UnsetType = UNSET
    args: str | UnsetType = UNSET
    topic: Name | UnsetType | None = UNSET
    priority: Annotated[int, Meta(ge=-100, le=100)] | UnsetType = UNSET
    max_attempts: Annotated[int, Meta(ge=1, le=10_000)] | UnsetType | None = UNSET
    timeout_s: Annotated[float, Meta(gt=0, le=MAX_SECONDS)] | UnsetType | None = UNSET
    starts_at: UnixTime | UnsetType | None = UNSET
    ends_at: UnixTime | UnsetType | None = UNSET
    jitter_s: float | UnsetType | None = UNSET
    catch_up: str | UnsetType = UNSET
    overlap: str | UnsetType = UNSET


class ScheduleTrigger(Struct, frozen=True):
    """A job of a schedule now; asked twice with the same ``job_id`` it is one."""

    id: Id
    job_id: Id | None = None


class SchedulePreview(Struct, frozen=True):
    """When a schedule occurs next."""

    id: Id
    count: Annotated[int, Meta(ge=1, le=1000)] = 10


class SchedulesList(Struct, frozen=True):
    """A page of schedules, newest first."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    after: str | None = None


class DispatchGate(Struct, frozen=True):
    """The gate of one topic, '' for the whole; a pause ends by itself at ``until``, or after ``for_s``."""

    topic: Annotated[str, Meta(max_length=200)] = ""
    reason: Annotated[str, Meta(max_length=1000)] | None = None
    until: UnixTime | None = None
    for_s: Annotated[float, Meta(gt=0, le=MAX_SECONDS)] | None = None


class TopicsList(Struct, frozen=True):
    """A page of policies, in the order of the topics."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    after: Annotated[str, Meta(max_length=200)] | None = None


class TopicGet(Struct, frozen=True):
    """The policy of one topic, '' for the server."""

    topic: Annotated[str, Meta(max_length=200)]


class TopicSet(Struct, frozen=True):
    """Options to be set, by their names; an unknown one is refused, and None unsets one."""

    topic: Annotated[str, Meta(max_length=200)]
    policy: dict[str, str | float | int | None]


class TopicUnset(Struct, frozen=True):
    """Options to be unset, by their names; none: all."""

    topic: Annotated[str, Meta(max_length=200)]
    options: Annotated[list[str], Meta(max_length=100)] = []


class Named(Struct, frozen=True):
    """A request about an actor."""

    name: Annotated[str, Meta(max_length=64)]


class DrainRequest(Struct, frozen=True):
    """Operator's drain: of this supervisor's pools, or of all workers."""

    all: bool = False


class Nothing(Struct, frozen=True):
    """A body without known keys."""


BodyT = TypeVar("BodyT", bound=Struct)

WORKER_KINDS: Final[Mapping[str, type[Struct]]] = {
    "started": Started,
    "report": Report,
    "heartbeat": Heartbeat,
    "checkpoint": Checkpoint,
    "capacity": Capacity,
    "stack": Stack,
}
CLIENT_KINDS: Final[Mapping[str, type[Struct]]] = {
    "submit": Submit,
    "jobs.list": JobsList,
    "jobs.get": ById,
    "jobs.why": ById,
    "jobs.cancel": ByIds,
    "jobs.retry": ByIds,
    "jobs.stack": ById,
    "schedules.list": SchedulesList,
    "schedules.get": ById,
    "schedules.create": ScheduleCreate,
    "schedules.update": ScheduleUpdate,
    "schedules.delete": ById,
    "schedules.pause": ById,
    "schedules.resume": ById,
    "schedules.trigger": ScheduleTrigger,
    "schedules.preview": SchedulePreview,
    "schedules.declare": SchedulesDeclare,
    "dispatch.pause": DispatchGate,
    "dispatch.resume": DispatchGate,
    "dispatch.status": Nothing,
    "topics.list": TopicsList,
    "topics.get": TopicGet,
    "topics.set": TopicSet,
    "topics.unset": TopicUnset,
    "workers.list": Nothing,
    "status": Nothing,
    "ping": Nothing,
}
SUPERVISOR_KINDS: Final[Mapping[str, type[Struct]]] = {
    "status": Nothing,
    "ping": Nothing,
    "actors.restart": Named,
    "drain": DrainRequest,
}
# Role -> kinds that it may send after hello. A worker may ask what a client asks: it enqueues follow-up jobs.
ALLOWED: Final[Mapping[Role, Mapping[str, type[Struct]]]] = {
    Role.CLIENT: CLIENT_KINDS,
    Role.WORKER: {**CLIENT_KINDS, **WORKER_KINDS},
}
# What a peer may hear from the server.
ANSWERS: Final[Mapping[str, type[Struct]]] = {
    "welcome": Welcome,
    "error": ErrorBody,
    "assign": Assign,
    "reported": Reported,
    "beat": BeatAnswer,
    "stop": Stop,
    "drain": Drain,
    "stack": TakeStack,
}

_frame_decoder = msgspec.msgpack.Decoder(Frame)
_decoders: dict[type[Struct], msgspec.msgpack.Decoder[Struct]] = {}


def encode(kind: str, request: int | None, body: Mapping[str, object]) -> bytes:
    """
    One frame, length included.

    Args:
        kind: What the frame is.
        request: Number of the request that it is or answers; None for an unsolicited frame.
        body: str keys; values of None, bool, int, float, str, bytes, list, tuple, dict.
    """
    payload: bytes = msgpack.packb([kind, request, body])
    return len(payload).to_bytes(_LENGTH_BYTES, "big") + payload


def encode_error(request: int | None, code: str, message: str) -> bytes:
    """An ``error`` frame."""
    return encode("error", request, {"code": code, "message": message})


def decode_body(kind: type[BodyT], frame: Frame) -> BodyT:
    """
    The body of *frame* as *kind*.

    Raises:
        ProtocolError: The body does not fit; carries the request's number. The connection can go on.
    """
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    try:
        body = decoder.decode(frame.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"{frame.kind}: {error}{_given(frame, str(error))}", request=frame.request) from None
    assert isinstance(body, kind)  # noqa: S101 - narrows the type; the decoder was made for it
    return body


def _given(frame: Frame, problem: str) -> str:
    """The value whose place *problem* names; '' where none is to be shown: a hello has passwords."""
    place = _PLACE.search(problem)
    if place is None or frame.kind == "hello" or memoryview(frame.body).nbytes > _SHOWN_BYTES:
        return ""
    try:
        value = msgspec.msgpack.decode(frame.body)
        for key, number in _STEP.findall(place[1]):
            value = value[key] if key else value[int(number)]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, LookupError, TypeError):
        return ""
    return f", which is {value!r:.60}" if isinstance(value, str | float | int) else ""


def decode_any(frame: Frame) -> dict[str, object]:
    """The body of *frame* as plain values, for answers whose shape the caller renders as it is."""
    try:
        return msgspec.msgpack.decode(frame.body, type=dict[str, object])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"{frame.kind}: {error}", request=frame.request) from None


def check_result(result: Result) -> None:
    """
    Hold a result's detail against its outcome.

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
        case ("crash", (str(), int() | None)):
            return
        case _:
            message = f"report: outcome {result.outcome!r} does not take the detail {result.detail!r:.100}"
            raise ProtocolError(message)


class FrameReader:
    """
    Cuts a byte stream into frames.

    Args:
        max_frame_bytes: Longest payload accepted; checked on the length, before a byte of it is kept.
    """

    __slots__ = ("_broken", "_buffer", "max_frame_bytes")

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._buffer = bytearray()
        self._broken = False

    @property
    def buffered_bytes(self) -> int:
        """Bytes of a frame that is not whole yet."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[Frame]:
        """
        The frames that *data* completes, in order; often none.

        Raises:
            ProtocolError: A length or an envelope is not the protocol's. Frames before it are on ``error.frames``;
                nothing can be read after it.
        """
        if self._broken:
            message = "the stream is broken already"
            raise BrokenStreamError(message, [])
        buffer = self._buffer
        buffer += data
        frames: list[Frame] = []
        at = 0
        try:
            while len(buffer) - at >= _LENGTH_BYTES:
                size = int.from_bytes(buffer[at : at + _LENGTH_BYTES], "big")
                self._check_size(size)
                end = at + _LENGTH_BYTES + size
                if len(buffer) < end:
                    break
                frames.append(_decode_envelope(bytes(buffer[at + _LENGTH_BYTES : end])))
                at = end
        except ProtocolError as error:
            self._broken = True
            buffer.clear()
            raise BrokenStreamError(error.message, frames, error.code) from None
        if at:
            del buffer[:at]
        return frames

    def _check_size(self, size: int) -> None:
        if size == 0:
            message = "a frame of length 0; the smallest has 1 byte"
            raise ProtocolError(message)
        if size > self.max_frame_bytes:
            message = f"a frame of {size} bytes; at most {self.max_frame_bytes} are allowed"
            raise ProtocolError(message, "too_large")


class BrokenStreamError(ProtocolError):
    """
    The stream cannot be read any further.

    Attributes:
        frames: Whole frames that came before the broken one.
    """

    def __init__(self, message: str, frames: Sequence[Frame], code: str = "bad_request") -> None:
        super().__init__(message, code)
        self.frames = frames


def _decode_envelope(payload: bytes) -> Frame:
    try:
        frame = _frame_decoder.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        message = f"not a frame: {error}"
        raise ProtocolError(message) from None
    # Only its first byte is looked at: a dict of a million keys would be a second of work for nobody. What is in the
    # map is the business of the body's own type, which skips the keys that it does not know.
    first = memoryview(frame.body)[0]
    if not (_FIXMAP <= first < _FIXMAP_END or first in _LONG_MAPS):
        message = "not a frame: the body is not a map"
        raise ProtocolError(message)
    return frame
