"""What the dispatcher keeps of a worker: what it declared, what it holds, its signs of life, and its connection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

from msgspec import Struct

from pulse.store.rows import EndingKind, Running

Pair: TypeAlias = tuple[bytes, int]

BACKLOG_BYTES: Final = 4 * 1024 * 1024  # a worker with so much unread gets no more jobs; a claim brings 8 MiB at most
DOUBTFUL_BEATS: Final = 2  # within this time a statement whose client has gone commits, or never will


class WorkerLink(Protocol):
    """Sends frames to a worker."""

    def send(self, kind: str, request: int | None, body: Mapping[str, object]) -> None:
        """Queue a frame; never waits."""

    def push(self) -> None:
        """Write at once what is queued, as far as the socket takes it; else that waits for other work of this turn."""

    @property
    def backlog_bytes(self) -> int:
        """What is queued and not yet taken by the socket."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether nothing more is sent: nobody will read it."""
        ...

    def close(self) -> None:
        """Close after what is queued."""


class HeldJob(Struct, gc=False):
    """A job that a worker holds. Every job has one: to make a dataclass would take three times as long."""

    name: str
    topic: str
    started: bool = False
    apart: bool = False  # isolated: in a process of its own, which ends with the worker's
    timeout_s: float | None = None
    progress_s: float = 0.0  # last progress or checkpoint; monotonic clock
    stall_s: float | None = None  # longest time without progress; its worker applies it, too
    since_s: float = 0.0  # when its handler was called, monotonic clock; 0: unknown
    ended: bool = False  # its worker has reported the end, and must repeat it: there was no room for the report
    assign: int = 0  # number of the frame in which it was sent, or of a later one
    group_key: str | None = None
    unlisted: int = 0  # heartbeats in a row that did not list it although that frame had been read, as far as is known

    def learn(self, job: Running) -> None:
        """Add what the database knows of it."""
        self.name, self.topic, self.timeout_s, self.group_key = job


@dataclass(frozen=True, slots=True)
class ForcedEnding:
    """How to end an attempt after the dispatcher has killed its process because of it."""

    kind: EndingKind
    reason: str
    stack: str | None = None


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """
    What a worker declared in its hello, and what the kernel knows of it; another hello replaces it.

    Attributes:
        identity: Its ``locked_by``.
        session: Names it in its pool parent's heartbeats.
        uid: Its user id; None: its process is gone.
        mark: A mark in the environment of its process and of all that its handlers start; None: it has none.
        stalls: Handlers that promised to report progress -> how often, seconds.
        source: Its address, if it connected by TCP.
        concurrency: Handlers that it runs at once; 0: it did not say.
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
    concurrency: int = 0


@dataclass(slots=True)
class HeldJobs:
    """
    The jobs that a worker holds.

    Attributes:
        held: Its attempts.
        forced_endings: Ends of attempts because of which its process is being killed. Then it is ``leaving``, too: the
            others are not charged.
        assigns: How many frames of jobs were sent to it.
        starting: Some of its jobs that have not started: when each was submitted, and how many it stands for.
    """

    held: dict[Pair, HeldJob] = field(default_factory=dict[Pair, HeldJob])
    forced_endings: dict[Pair, ForcedEnding] = field(default_factory=dict[Pair, ForcedEnding])
    assigns: int = 0
    starting: dict[Pair, tuple[float, float]] = field(default_factory=dict[Pair, tuple[float, float]])

    def sent(self, frames: int) -> None:
        """Count frames of jobs that were sent."""
        self.assigns += frames

    def replace(self, held: Mapping[Pair, HeldJob]) -> None:
        """Replace the list of held jobs."""
        self.held = dict(held)


@dataclass(slots=True)
class Contact:
    """
    The signs of life of a worker; monotonic clock.

    Attributes:
        heard_s: The last frame of the worker, or of its pool parent for it.
        said_s: The last frame of its own: if only its parent sends, a handler blocks its loop.
        beaten_s: The last heartbeat of it, or of its pool parent for it; at first, when it connected.
        until_s: Of a stranger: the end of its leases, as last read or written here.
        extended_s: Arrival of the newest heartbeat that the database has stored.
        silent: It holds jobs and was silent for a lease: stopped by a signal, or hung. It gets no more jobs until it
            sends a frame, else it would spend their retry budgets.
        doubtful_beats: Heartbeats until the next look for a claim that was committed but never handed out: after a
            dispatcher was killed, its claim may take seconds to commit.
    """

    heard_s: float = float("inf")  # until its first frame
    said_s: float = float("inf")
    beaten_s: float = float("inf")  # until its first frame
    until_s: float | None = None
    extended_s: float = float("-inf")
    silent: bool = False
    doubtful_beats: int = DOUBTFUL_BEATS

    def hear(self, now_s: float, *, itself: bool = True) -> bool:
        """A frame of it, or (not *itself*) of its pool parent, arrived; returns whether that ends a silence."""
        was_silent, self.heard_s, self.silent = self.silent, now_s, False
        if itself:
            self.said_s = now_s
        return was_silent

    def fall_silent(self) -> None:
        """It was silent for a lease."""
        self.silent = True

    def beat(self, now_s: float) -> None:
        """A heartbeat arrived, or its silence so far proves nothing."""
        self.beaten_s = now_s

    def extend(self, at_s: float) -> None:
        """The database has stored a heartbeat that arrived then."""
        self.extended_s = max(self.extended_s, at_s)

    def expect_lapse(self, until_s: float) -> None:
        """Its leases end then, as far as is known here."""
        self.until_s = until_s

    def extended_elsewhere(self, now_s: float) -> None:
        """Another dispatcher has extended its leases: it sends heartbeats there."""
        self.beaten_s = self.extended_s = now_s

    def doubt(self) -> None:
        """A lost claim for it may be found within the next heartbeats."""
        self.doubtful_beats = DOUBTFUL_BEATS

    def has_doubtful_beat(self) -> bool:
        """Whether to look for lost claims after this heartbeat; one look less is left then."""
        if not self.doubtful_beats:
            return False
        self.doubtful_beats -= 1
        return True


@dataclass(slots=True)
class RegisteredWorker:
    """
    A worker process.

    Attributes:
        capacity: Most jobs that it holds at once, with those that are sent ahead; 0 for pool parents, and for one that
            is about to end.
        link: Sends frames to it.
        leaving: It is about to end, by its pool parent or by order: then its end is no crash caused by a job.
        draining: It gets no more jobs.
        replaced: Once it has ended, its pool starts a new process in its place.
        closing: Handlers of it hang: it gets no more jobs, and may be killed.
        watched: The kernel reports its end, and it can be killed: see ``process_watch``.
        batches: Handlers that are called for several jobs at once -> for how many at most.
    """

    facts: WorkerFacts
    capacity: int
    link: WorkerLink
    contact: Contact = field(default_factory=Contact)
    jobs: HeldJobs = field(default_factory=HeldJobs)
    leaving: bool = False
    draining: bool = False
    replaced: bool = False
    closing: bool = False
    watched: bool = False
    batches: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def identity(self) -> str:
        """Its ``locked_by``."""
        return self.facts.identity

    @property
    def held(self) -> dict[Pair, HeldJob]:
        """The jobs that it holds."""
        return self.jobs.held

    @property
    def is_remote(self) -> bool:
        """Whether it connected by TCP."""
        return self.facts.source is not None

    @property
    def places(self) -> int:
        """Handlers that it runs at once; of one that did not say, the jobs that it holds at once."""
        return self.facts.concurrency or self.capacity

    @property
    def taken(self) -> int:
        """How many of them are taken: more jobs may have started, whose ends are still to be written."""
        return min(self.places, len(self.calls))

    @property
    def calls(self) -> list[str]:
        """The handlers that it has called; jobs of a batch share a call, as far as is known here."""
        jobs = Counter(held.name for held in self.held.values() if held.started)
        return [name for name, number in jobs.items() for _ in range(-(-number // self.batches.get(name, 1)))]

    @property
    def is_draining(self) -> bool:
        """Whether it gets no more jobs, by order or by its own word."""
        return self.draining or not self.capacity

    @property
    def credit(self) -> int:
        """How many more jobs it takes now."""
        if self.draining or self.closing or self.contact.silent or self.link.backlog_bytes > BACKLOG_BYTES:
            return 0
        return max(0, self.capacity - len(self.jobs.held))

    def drain(self, *, reconnect: bool, replace: bool = False) -> None:
        """
        It gets no more jobs: it reconnects to the next dispatcher, or finishes and ends.

        With *replace* its pool starts a new process then. The order is sent once; again only to withdraw *replace*.
        """
        if not self.draining or (self.replaced and not replace):
            self.draining, self.replaced = True, replace
            self.leaving = self.leaving or not reconnect
            self.link.send("drain", None, {"reconnect": reconnect, "replace": replace})

    def resize(self, capacity: int) -> None:
        """It runs so many jobs at once from now on."""
        self.capacity = capacity

    def expect_end(self, *, ends: bool = True) -> None:
        """It is about to end, or (not *ends*) no longer: such an end is no crash caused by a job."""
        self.leaving = ends

    def watch(self, *, can_kill: bool) -> None:
        """The kernel reports its end."""
        self.watched = can_kill

    def begin_closing(self) -> None:
        """Handlers of it hang: it gets no more jobs until they have ended."""
        self.closing = True

    def end_closing(self) -> None:
        """No handler of it hangs any more."""
        self.closing = False

    def bury(self) -> None:
        """Its process has ended: it gets no more jobs."""
        self.draining = True
