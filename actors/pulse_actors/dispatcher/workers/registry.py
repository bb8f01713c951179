"""
The dispatcher's book of who is connected, what each worker may get and what each holds. Pure: no IO, no clock.

A job is *held* from its assignment until the ``reported`` that answers its result; capacity minus held is a worker's
credit, and claims are made against credit only, so nothing is ever claimed that nobody has room for. The book is not
the truth: that is in the database. It is rebuilt from the workers' hellos after a restart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

from pulse.store.rows import Claim, Completion, EndingKind, Running
from pulse_actors.dispatcher.workers.policies import TopicPolicies

Pair: TypeAlias = tuple[bytes, int]

BACKLOG_BYTES: Final = 4 * 1024 * 1024  # who has not read so much yet gets no more; a claim brings 8 MiB at most
NEWEST_MAX: Final = 10_000  # workers whose newest connection is remembered: a hello waits for seconds at most
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
    stall_s: float | None = None  # longest time without progress, as its worker was told
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


@dataclass(slots=True)
class RegisteredWorker:
    """
    A connected worker process.

    Attributes:
        identity: Its ``locked_by``.
        session: Stands for it in its pool parent's heartbeats.
        uid: Its user; None: its process is gone.
        capacity: Most jobs that it holds at once; 0 for pool parents.
        closing: Handlers of it hang: it gets no more jobs, and may be killed.
        mark: What it and all that its handlers have started carry in their environments; None: it has none.
        leaving: Its pool parent or we said that it is about to end: then its end is no crash of a job's making.
        doubtful_beats: Heartbeats left after which is looked whether a claim for it was committed that nobody handed
            out: one of a dispatcher that was killed in mid-statement, which may take seconds to come to light.
        heard_s: When it said something, or its pool parent did for it; monotonic clock.
        said_s: When it said something itself: where only its parent speaks for it, a handler keeps its loop.
        beaten_s: When it beat last, or its pool parent did for it; at first, when it came; monotonic clock.
        until_s: Of a stranger: when its leases end, as they were seen or written here last; monotonic clock.
        extended_s: When the newest of them came that the database took.
        stalls: Handlers that promised to tell progress -> how often, seconds.
        watched: Its death will be known from the kernel, and it can be killed: see ``process_watch``.
        forced_endings: What becomes of attempts because of which its process is being killed. Then ``leaving`` is set
            too: the others are charged to nobody.
        silent: It holds jobs and has let a lease pass without a word: stopped by a signal, or hung. It gets no more
            until it is heard of, else it would spend the budgets of whatever is given to it.
        source: Its address, where it came over TCP.
        assigns: Frames of jobs that it was sent.
        starting: Some of the jobs that it has not started: when each was submitted, and how many it stands for.
    """

    identity: str
    name: str
    session: bytes
    pid: int
    uid: int | None
    topics: tuple[str, ...]
    names: frozenset[str]
    capacity: int
    link: WorkerLink
    leads_group: bool = False
    mark: str | None = None
    leaving: bool = False
    doubtful_beats: int = DOUBTFUL_BEATS
    held: dict[Pair, HeldJob] = field(default_factory=dict[Pair, HeldJob])
    draining: bool = False
    closing: bool = False
    heard_s: float = float("inf")  # until it is first heard of
    said_s: float = float("inf")
    beaten_s: float = float("inf")  # until it is first heard of
    until_s: float | None = None
    extended_s: float = float("-inf")
    stalls: Mapping[str, float] = field(default_factory=dict[str, float])
    watched: bool = False
    forced_endings: dict[Pair, ForcedEnding] = field(default_factory=dict[Pair, ForcedEnding])
    silent: bool = False
    source: str | None = None
    assigns: int = 0
    starting: dict[Pair, tuple[float, float]] = field(default_factory=dict[Pair, tuple[float, float]])

    @property
    def is_remote(self) -> bool:
        """Whether it came over TCP."""
        return self.source is not None

    @property
    def credit(self) -> int:
        """How many more jobs it takes now."""
        if self.draining or self.closing or self.silent or self.link.backlog_bytes > BACKLOG_BYTES:
            return 0
        return max(0, self.capacity - len(self.held))

    def hear(self, now_s: float, *, itself: bool = True) -> bool:
        """It said something, or (not *itself*) its pool parent for it; whether that ends a silence."""
        was_silent, self.heard_s, self.silent = self.silent, now_s, False
        if itself:
            self.said_s = now_s
        return was_silent


@dataclass(frozen=True, slots=True)
class ClaimPlan:
    """
    One claim to be made.

    Attributes:
        topics: In the order in which equal priorities are served.
        workers: Identities.
        seats: For the n-th job: index into ``workers``.
    """

    topics: tuple[str, ...]
    workers: tuple[str, ...]
    seats: tuple[int, ...]


class WorkerRegistry:
    """
    The book.

    Attributes:
        closed: Nothing more is claimed.
        strangers: Workers that live here, hold jobs and have not said hello, by identity.
        away: Workers that are watched, hold jobs and have lost their connection, by identity.
        reporting: Attempts whose results have arrived and are not written yet, whoever holds them by now.
        refused: Those of them that the database refuses to write, each by itself, and whose they are.
        policies: What is kept in memory of the topics' policies.
    """

    def __init__(self) -> None:
        self._workers: dict[str, RegisteredWorker] = {}
        # Those over TCP by themselves: there a worker may say any session, also that of a local one.
        self._by_session: dict[tuple[bool, bytes], RegisteredWorker] = {}
        self._turn = 0
        self.closed = False
        self.strangers: dict[str, RegisteredWorker] = {}
        self.away: dict[str, RegisteredWorker] = {}
        self.reporting: set[Pair] = set()
        self.refused: dict[Pair, str] = {}
        self.lost: set[Pair] = set()  # from before an epoch, until their workers have said how they ended
        self.policies = TopicPolicies({})
        self._newest: dict[str, int] = {}  # identity -> number of its newest connection

    def workers(self) -> list[RegisteredWorker]:
        """Everyone who is connected."""
        return list(self._workers.values())

    def get(self, identity: str) -> RegisteredWorker | None:
        """The worker of that identity, None when it is not connected."""
        return self._workers.get(identity)

    def find(self, identity: str) -> RegisteredWorker | None:
        """The worker of that identity, connected or not."""
        return self._workers.get(identity) or self.away.get(identity) or self.strangers.get(identity)

    def topic_of(self, done: Completion) -> str:
        """Where a job waited whose attempt is over; '' where nobody remembers."""
        worker = self.find(done.worker)
        held = None if worker is None else worker.held.get((done.id, done.attempt))
        return "" if held is None else held.topic

    def unconnected(self, session: bytes) -> RegisteredWorker | None:
        """Who is not connected, but watched, and has that session."""
        return next((one for one in (*self.away.values(), *self.strangers.values()) if one.session == session), None)

    def by_session(self, session: bytes, *, remote: bool) -> RegisteredWorker | None:
        """The worker of that session, of here or (*remote*) over TCP; None when it is not connected."""
        return self._by_session.get((remote, session))

    def is_newest(self, identity: str, number: int) -> bool:
        """Whether a connection of *identity* is newer than all that were greeted before; then it is the newest."""
        if number < self._newest.get(identity, 0):
            return False
        self._newest.pop(identity, None)  # the newest come last
        if len(self._newest) >= NEWEST_MAX:
            del self._newest[next(iter(self._newest))]
        self._newest[identity] = number
        return True

    def has_met(self, identity: str) -> bool:
        """Whether a worker of *identity* has said hello."""
        return identity in self._newest

    def join(self, worker: RegisteredWorker) -> None:
        """A worker said hello; it takes the place of an older connection of the same identity."""
        self._workers[worker.identity] = worker
        self.away.pop(worker.identity, None)
        self._by_session[worker.is_remote, worker.session] = worker

    def leave(self, worker: RegisteredWorker) -> None:
        """Its connection is gone; what it holds stays leased to it."""
        if self._workers.get(worker.identity) is worker:
            del self._workers[worker.identity]
            self._by_session.pop((worker.is_remote, worker.session), None)
            if worker.watched and worker.held:
                self.away[worker.identity] = worker

    def holder_of(self, job: bytes) -> tuple[RegisteredWorker, int] | None:
        """Who holds *job*, and which attempt of it, the newest."""
        found = ((worker, attempt) for worker in self._workers.values() for one, attempt in worker.held if one == job)
        return max(found, key=lambda pair: pair[1], default=None)

    def parent_of(self, pid: int) -> RegisteredWorker | None:
        """The pool parent with that pid."""
        return next((one for one in self._workers.values() if one.pid == pid and not one.topics), None)

    def held_among(self, jobs: Iterable[bytes]) -> set[bytes]:
        """Which of *jobs* somebody on this host holds, whichever attempt."""
        return {job for worker in self.everybody() for job, _ in worker.held}.intersection(jobs)

    def running_in_hand(self, jobs: Iterable[bytes]) -> set[bytes]:
        """Which of *jobs* somebody runs whose process is watched: it will end, and be seen to; or is waited for."""
        pairs = {pair for one in self.everybody() for pair in one.held if one.watched or pair in self.lost}
        return {job for job, _ in pairs - self.reporting}.intersection(jobs)

    def everybody(self) -> Sequence[RegisteredWorker]:
        """Whoever may hold something, connected or not."""
        return (*self._workers.values(), *self.strangers.values(), *self.away.values())

    def note_silence(self, since_s: float) -> list[RegisteredWorker]:
        """Mark who holds jobs and was not heard since then; those of them that were not marked before."""
        fallen = [one for one in self.workers() if one.held and not one.silent and one.heard_s < since_s]
        for worker in fallen:
            worker.silent = True
        return fallen

    def plan(self, batch: int, *, again: bool = False) -> list[ClaimPlan]:
        """The claims worth making, in a new turn or *again*: one for each set of topics that free workers serve."""
        if self.closed:
            return []
        groups: dict[tuple[str, ...], list[RegisteredWorker]] = {}
        for worker in self._workers.values():
            if worker.credit > 0 and worker.topics:
                groups.setdefault(worker.topics, []).append(worker)
        self._turn += not again
        return [self._claim_for(topics, workers, batch) for topics, workers in groups.items()]

    def _claim_for(self, topics: tuple[str, ...], workers: list[RegisteredWorker], batch: int) -> ClaimPlan:
        shift = self._turn % len(topics)  # no topic is always last among equal priorities
        workers.sort(key=lambda worker: -worker.credit)
        seats = deal([worker.credit for worker in workers], batch)
        identities = tuple(worker.identity for worker in workers)
        return ClaimPlan(topics[shift:] + topics[:shift], identities, tuple(seats))

    def hand_over(self, identity: str, claims: Sequence[Claim]) -> None:
        """Write into the book that the worker holds these from now on, by the frames that it was sent."""
        worker = self._workers[identity]
        for claim in claims:
            stall_s = self.policies.stall_s(claim.topic, worker.stalls.get(claim.name))
            worker.held[claim.id, claim.attempt] = HeldJob(
                claim.name, claim.topic, timeout_s=claim.timeout_s, stall_s=stall_s, assign=worker.assigns
            )

    def free(self, worker: RegisteredWorker, pairs: Iterable[Pair]) -> None:
        """Results were answered: the places are free again."""
        for pair in pairs:
            worker.held.pop(pair, None)

    def learn(self, worker: RegisteredWorker, running: Mapping[Pair, Running]) -> list[tuple[Pair, HeldJob]]:
        """What the database knows of attempts that a worker came with while it was away; as for ``started``."""
        learned = [pair for pair in running if pair in worker.held and not worker.held[pair].name]
        for pair in learned:
            held, job = worker.held[pair], running[pair]
            held.name, held.topic, held.timeout_s = job.name, job.topic, job.timeout_s
        return self.started(worker, [pair for pair in learned if worker.held[pair].started])

    def started(
        self, worker: RegisteredWorker, pairs: Iterable[Pair], apart: AbstractSet[Pair] = frozenset()
    ) -> list[tuple[Pair, HeldJob]]:
        """The handlers of these are being called; those of them that must end, or tell progress, in time."""
        bounded: list[tuple[Pair, HeldJob]] = []
        for pair in pairs:
            held = worker.held.get(pair)
            if held is not None:
                held.started = True
                held.since_s = held.since_s or worker.heard_s
                held.apart = held.apart or pair in apart
                if held.stall_s is None:  # it came with its worker
                    held.stall_s = self.policies.stall_s(held.topic, worker.stalls.get(held.name))
                if held.timeout_s is not None or held.stall_s is not None:
                    bounded.append((pair, held))
        return bounded


def deal(credits_: Sequence[int], limit: int) -> list[int]:
    """
    Seats for up to *limit* jobs, dealt one to each in turn, so that work spreads.

    Args:
        credits_: Free places of each worker, most first.
        limit: Most seats.

    Returns:
        Indexes into *credits_*, each at most as often as its credit.
    """
    if len(credits_) == 1:
        return [0] * min(limit, credits_[0])
    seats: list[int] = []
    left = list(credits_)
    while len(seats) < limit and any(left):
        for index, free in enumerate(left):
            if free and len(seats) < limit:
                left[index] -= 1
                seats.append(index)
    return seats
