"""
The bus between the supervisor and its actors: bodies of frames, kinds of hints, and limits of their sizes.

Frames are those of the wire. An actor sends ``hello`` and gets ``start``; it sends ``ready``, answers ``ping`` with
``pong`` and ``status`` with ``ok``, may ask for ``status`` itself, and sends ``failed`` before it gives up; ``stop``
ends it. A ``hint`` from another actor or the supervisor means that there may be something to do. Hints may be lost:
polling finds the same in the database.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from pulse.errors import ProtocolError

__all__ = [
    "EVERYBODY",
    "MAX_BUS_FRAME_BYTES",
    "MAX_HINT_BYTES",
    "ActorFailed",
    "ActorHello",
    "ActorPong",
    "ActorStart",
    "ActorStop",
    "CanceledJobs",
    "Hint",
    "HintEvent",
    "HintFrame",
    "LapsedLeases",
    "OperatorAction",
    "ReadyJobs",
    "RefusedStatementsHint",
    "TopicGate",
    "WorkSomewhere",
    "body_of",
    "hint",
    "received_hint",
]

MAX_BUS_FRAME_BYTES: Final = 64 * 1024  # a longer frame ends its sender
MAX_HINT_BYTES: Final = 4096  # a name and a few numbers; what is larger is data, and data belongs in the database
EVERYBODY: Final = "*"
DataT = TypeVar("DataT", bound=Struct)


class ActorHello(Struct, frozen=True):
    """The actor at this end of the bus."""

    name: str
    pid: int


class ActorStart(Struct, frozen=True):
    """
    The settings of an actor.

    Attributes:
        boot: Whether the supervisor starts it for the first time.
        embedded: Whether the database is the supervisor's own: then nobody else upgrades it.
    """

    settings: dict[str, object]
    boot: bool
    embedded: bool = False


class ActorPong(Struct, frozen=True, omit_defaults=True):
    """How old the actor's unfinished turn is, and whether it upgrades the schema before its first one."""

    turn_age_s: Annotated[float, Meta(ge=0)]
    upgrades: bool = False


class ActorStop(Struct, frozen=True):
    """End, within so many seconds."""

    grace_s: float


class ActorFailed(Struct, frozen=True):
    """Why the actor is about to give up."""

    message: str


class HintFrame(Struct, frozen=True):
    """A hint for the supervisor to pass on; ``data`` stays unchanged."""

    to: str
    event: str
    data: Raw = Raw(b"\x80")  # an empty map


class HintEvent(enum.StrEnum):
    """The event of a hint. ``HINT_DATA`` has the data of each."""

    READY = "ready"  # watchdog, scheduler -> dispatcher: jobs can be claimed
    LAPSED = "lapsed"  # watchdog -> dispatcher: leases of its workers have lapsed, for it to handle
    CANCELED = "canceled"  # scheduler -> dispatcher: jobs were canceled by their schedule
    WORK = "work"  # pause -> dispatcher: another host has more jobs than it can run
    LISTENING = "listening"  # pause -> dispatcher: it listens from now on; notifications may have been missed
    FAILING = "failing"  # any actor -> dispatcher: statements that the database refuses
    GATE_CHANGED = "gate changed"  # dispatcher -> pause, pause -> dispatcher
    LIMITS_CHANGED = "limits changed"  # pause -> itself: it was notified of that
    POLICIES_CHANGED = "policies changed"  # dispatcher -> pause, pause -> dispatcher
    SCHEDULES_CHANGED = "schedules changed"  # dispatcher -> scheduler
    OPERATOR = "operator"  # supervisor -> watchdog or pause: write an audit entry for a request to the supervisor
    DRAIN = "drain"  # supervisor -> dispatcher: it is about to stop; workers reconnect to the next one
    DRAIN_WORKERS = "drain_workers"  # supervisor -> dispatcher: all workers must finish and end
    RELOAD = "reload"  # supervisor -> dispatcher: read the certificate again


class Nothing(Struct, frozen=True):
    """No data."""


class ReadyJobs(Struct, frozen=True, omit_defaults=True):
    """Due now and after each of these delays; and how many attempts with lapsed leases were ended before."""

    delays_s: list[float] | None = None
    reaped: int | None = None


class LapsedLeases(Struct, frozen=True):
    """Identities of workers."""

    workers: list[str]


class CanceledJobs(Struct, frozen=True):
    """Ids of jobs, as text."""

    jobs: list[str]


class WorkSomewhere(Struct, frozen=True):
    """The sender's name in its notifications."""

    sender: str = msgspec.field(name="from")


class RefusedStatement(Struct, frozen=True, array_like=True):
    """A statement that an actor cannot carry out: ``times`` in a row, the first of them ``for_s`` seconds ago."""

    actor: str
    statement: str
    sqlstate: str
    error: str
    times: int
    for_s: float


class RefusedStatementsHint(Struct, frozen=True):
    """The newest ones."""

    statements: list[RefusedStatement]


class TopicGate(Struct, frozen=True, omit_defaults=True):
    """The topic that was paused or resumed, '' for everything; None: unknown."""

    topic: str | None = None


class OperatorAction(Struct, frozen=True):
    """What was carried out: for the process of that account, on behalf of that person."""

    action: str
    uid: int
    pid: int
    behalf: str | None
    detail: dict[str, object]


NOTHING: Final = Nothing()
HINT_DATA: Final[Mapping[str, type[Struct]]] = {
    HintEvent.READY: ReadyJobs,
    HintEvent.LAPSED: LapsedLeases,
    HintEvent.CANCELED: CanceledJobs,
    HintEvent.WORK: WorkSomewhere,
    HintEvent.LISTENING: Nothing,
    HintEvent.FAILING: RefusedStatementsHint,
    HintEvent.GATE_CHANGED: TopicGate,
    HintEvent.LIMITS_CHANGED: Nothing,
    HintEvent.POLICIES_CHANGED: Nothing,
    HintEvent.SCHEDULES_CHANGED: Nothing,
    HintEvent.OPERATOR: OperatorAction,
    HintEvent.DRAIN: Nothing,
    HintEvent.DRAIN_WORKERS: Nothing,
    HintEvent.RELOAD: Nothing,
}


@dataclass(frozen=True, slots=True)
class Hint:
    """
    A hint from one actor to another.

    Attributes:
        peer: The actor it goes to (``*``: all) or came from.
        event: What happened, one of ``HintEvent``.
        data: A few small values, declared in ``HINT_DATA``.
    """

    peer: str
    event: str
    data: dict[str, object] = field(default_factory=dict[str, object])

    def read(self, kind: type[DataT]) -> DataT:
        """
        The data, of the kind that ``HINT_DATA`` has for the event.

        Raises:
            ValidationError: They are of another kind; ``received_hint`` refuses such hints.
        """
        return msgspec.convert(self.data, kind)


def hint(peer: str, event: HintEvent, data: Struct = NOTHING) -> Hint:
    """
    A hint to *peer*.

    Raises:
        TypeError: The data do not belong to *event*.
    """
    if not isinstance(data, HINT_DATA[event]):
        raise TypeError(f"hint {event}: {HINT_DATA[event].__name__} is allowed, not {type(data).__name__}")
    return Hint(peer, event, body_of(data))


def received_hint(body: Mapping[str, object]) -> Hint:
    """
    The hint in a frame from the supervisor. Unknown events are accepted: the sender is newer.

    Raises:
        ProtocolError: It is malformed, or its data do not fit the event.
    """
    event, data = body.get("event"), body.get("data")
    try:
        found = msgspec.convert({"peer": body.get("from"), "event": event, "data": data}, Hint)
        if found.event in HINT_DATA:
            msgspec.convert(found.data, HINT_DATA[found.event])
    except msgspec.ValidationError as error:
        raise ProtocolError(f"hint {event!r:.60}: {error}") from None
    return found


def body_of(told: Struct) -> dict[str, object]:
    """The body for the bus, for ``protocol.encode``."""
    body: dict[str, object] = msgspec.to_builtins(told, builtin_types=(bytes,))
    return body
