"""What is kept of a worker: what it said of itself, what it holds, when it was heard of, and how frames get to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

from pulse.store.rows import EndingKind

Pair: TypeAlias = tuple[bytes, int]

BACKLOG_BYTES: Final = 4 * 1024 * 1024  # who has not read so much yet gets no more; a claim brings 8 MiB at most
DOUBTFUL_BEATS: Final = 2  # a statement commits within one heartbeat after nobody waits for it any more, or never


class WorkerLink(Protocol):
    """How frames get to a worker."""

    def send(self, kind: str, request: int | None, body: Mapping[str, object]) -> None:
        """Queue a frame; never waits."""

    @property
    def backlog_bytes(self) -> int:
        """What is queued and not yet taken by the socket."""
        ...

    def close(self) -> None:
        """Close after what is queued."""


@dataclass(slots=True)
class HeldJob:
    """A job that a worker holds."""

    name: str
    topic: str
    started: bool = False
    apart: bool = False  # in a process of its own, which ends with the worker's
    timeout_s: float | None = None
    progress_s: float = 0.0  # when progress of it, or a checkpoint, was last heard of; monotonic clock
    stall_s: float | None = None  # longest time without progress; its worker applies the same
    since_s: float = 0.0  # when its handler was called, monotonic clock; 0: it is not known
    ended: bool = False  # its worker has said how, and is to say it again: there was no room for that
    assign: int = 0  # the frame in which it was sent, or a later one: how many its worker had been sent by then
    unlisted: int = 0  # heartbeats in a row that did not list it, though that frame had been read, as far as is known


@dataclass(frozen=True, slots=True)
class ForcedEnding:
    """How an attempt is to end once its process is dead, which the dispatcher kills because of it."""

    kind: EndingKind
    reason: str
    stack: str | None = None


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """
    What a worker said of itself, and the kernel of it; it says hello again to change that.

    Attributes:
        identity: Its ``locked_by``.
        session: Stands for it in its pool parent's heartbeats.
        uid: Its user; None: its process is gone.
        mark: What it and all that its handlers have started carry in their environments; None: it has none.
        stalls: Handlers that promised to tell progress -> how often, seconds.
        source: Its address, where it came over TCP.
    """

    identity: str
    name: str
    session: bytes
    pid: int
    uid: int | None
    topics: tuple[str, ...]
    names: frozenset[str]
    leads_group: bool = False
    mark: str | None = None
    stalls: Mapping[str, float] = field(default_factory=dict[str, float])
    source: str | None = None


@dataclass(slots=True)
class HeldJobs:
    """
    What a worker holds.

    Attributes:
        held: Its attempts.
        forced_endings: What becomes of attempts because of which its process is being killed. Then it is ``leaving``,
            too: the others are charged to nobody.
        assigns: Frames of jobs that it was sent.
        starting: Some of the jobs that it has not started: when each was submitted, and how many it stands for.
    """

    held: dict[Pair, HeldJob] = field(default_factory=dict[Pair, HeldJob])
    forced_endings: dict[Pair, ForcedEnding] = field(default_factory=dict[Pair, ForcedEnding])
    assigns: int = 0
    starting: dict[Pair, tuple[float, float]] = field(default_factory=dict[Pair, tuple[float, float]])

    def sent(self, frames: int) -> None:
        """So many frames of jobs are on their way to it."""
        self.assigns += frames

    def replace(self, held: Mapping[Pair, HeldJob]) -> None:
        """It holds these, and nothing else."""
        self.held = dict(held)


@dataclass(slots=True)
class Contact:
    """
    When a worker was heard of; monotonic clock.

    Attributes:
        heard_s: When it said something, or its pool parent did for it.
        said_s: When it said something itself: where only its parent speaks for it, a handler keeps its loop.
        beaten_s: When it beat last, or its pool parent did for it; at first, when it came.
        until_s: Of a stranger: when its leases end, as they were seen or written here last.
        extended_s: When the newest of them came that the database took.
        silent: It holds jobs and has let a lease pass without a word: stopped by a signal, or hung. It gets no more
            until it is heard of, else it would spend the budgets of whatever is given to it.
        doubtful_beats: Heartbeats left after which is looked whether a claim for it was committed that nobody handed
            out: one of a dispatcher that was killed in mid-statement, which may take seconds to come to light.
    """

    heard_s: float = float("inf")  # until it is first heard of
    said_s: float = float("inf")
    beaten_s: float = float("inf")  # until it is first heard of
    until_s: float | None = None
    extended_s: float = float("-inf")
    silent: bool = False
    doubtful_beats: int = DOUBTFUL_BEATS

    def hear(self, now_s: float, *, itself: bool = True) -> bool:
        """It said something, or (not *itself*) its pool parent for it; whether that ends a silence."""
        was_silent, self.heard_s, self.silent = self.silent, now_s, False
        if itself:
            self.said_s = now_s
        return was_silent

    def fall_silent(self) -> None:
        """It has let a lease pass."""
        self.silent = True

    def beat(self, now_s: float) -> None:
        """It beat, or its silence is no proof until now."""
        self.beaten_s = now_s

    def extend(self, at_s: float) -> None:
        """The database has taken a heartbeat that came then."""
        self.extended_s = max(self.extended_s, at_s)

    def expect_lapse(self, until_s: float) -> None:
        """Its leases end then, as far as is known here."""
        self.until_s = until_s

    def extended_elsewhere(self, now_s: float) -> None:
        """Somebody else has extended its leases: it beats there."""
        self.beaten_s = self.extended_s = now_s

    def doubt(self) -> None:
        """What a claim for it took may come to light within the next heartbeats."""
        self.doubtful_beats = DOUBTFUL_BEATS

    def has_doubtful_beat(self) -> bool:
        """Whether to ask the database after this heartbeat what the worker holds; one check less is left then."""
        if not self.doubtful_beats:
            return False
        self.doubtful_beats -= 1
        return True


@dataclass(slots=True)
class RegisteredWorker:
    """
    A worker process.

    Attributes:
        capacity: Most jobs that it holds at once; 0 for pool parents.
        link: How frames get to it.
        leaving: Its pool parent or we said that it is about to end: then its end is no crash of a job's making.
        draining: It gets no more jobs.
        closing: Handlers of it hang: it gets no more jobs, and may be killed.
        watched: Its death will be known from the kernel, and it can be killed: see ``process_watch``.
    """

    facts: WorkerFacts
    capacity: int
    link: WorkerLink
    contact: Contact = field(default_factory=Contact)
    jobs: HeldJobs = field(default_factory=HeldJobs)
    leaving: bool = False
    draining: bool = False
    closing: bool = False
    watched: bool = False

    @property
    def identity(self) -> str:
        """Its ``locked_by``."""
        return self.facts.identity

    @property
    def held(self) -> dict[Pair, HeldJob]:
        """What it holds."""
        return self.jobs.held

    @property
    def is_remote(self) -> bool:
        """Whether it came over TCP."""
        return self.facts.source is not None

    @property
    def credit(self) -> int:
        """How many more jobs it takes now."""
        if self.draining or self.closing or self.contact.silent or self.link.backlog_bytes > BACKLOG_BYTES:
            return 0
        return max(0, self.capacity - len(self.jobs.held))

    def drain(self, *, reconnect: bool) -> None:
        """It gets no more: it comes back to a successor, or finishes and leaves. The order is sent once."""
        if not self.draining:
            self.draining = True
            self.leaving = self.leaving or not reconnect
            self.link.send("drain", None, {"reconnect": reconnect})

    def resize(self, capacity: int) -> None:
        """It takes so many at once from now on."""
        self.capacity = capacity

    def expect_end(self, *, ends: bool = True) -> None:
        """It is about to end, or (not *ends*) not any more: that is no crash of a job's making."""
        self.leaving = ends

    def watch(self, *, can_kill: bool) -> None:
        """The kernel will say when it has ended."""
        self.watched = can_kill

    def begin_closing(self) -> None:
        """Handlers of it hang: it gets no more jobs until that is over."""
        self.closing = True

    def end_closing(self) -> None:
        """None of them does."""
        self.closing = False

    def bury(self) -> None:
        """Its process has ended: it gets no more."""
        self.draining = True
