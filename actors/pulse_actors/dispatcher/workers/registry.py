"""
The dispatcher's book of who is connected, what each worker may get and what each holds. Pure: no IO, no clock.

A job is *held* from its assignment until the ``reported`` that answers its result; capacity minus held is a worker's
credit, and claims are made against credit only, so nothing is ever claimed that nobody has room for. The book is not
the truth: that is in the database. It is rebuilt from the workers' hellos after a restart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from pulse.store.rows import Claim, Completion, Running
from pulse_actors.dispatcher.workers.policies import TopicPolicies
from pulse_actors.dispatcher.workers.records import HeldJob, Pair, RegisteredWorker

NEWEST_MAX: Final = 10_000  # workers whose newest connection is remembered: a hello waits for seconds at most


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

    def close(self, *, reconnect: bool) -> None:
        """Claim nothing more for workers that are to come back (*reconnect*) to a successor."""
        self.closed = self.closed or reconnect

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

    def stall_s(self, topic: str, own: float | None = None) -> float | None:
        """How long a handler of *topic* may be silent: its *own* promise, else the topic's, else the server's."""
        policies = self.policies
        return own or policies.stalls.get(topic, policies.stall_s)

    def by_fate(self, done: Sequence[Completion], *, keep: bool) -> list[tuple[bool, Sequence[Completion]]]:
        """What is kept of *done* for a while, and what is not; *keep*: of topics that say nothing."""
        keeps = self.policies.keeps
        if not keeps:
            return [(keep, done)]
        fates: dict[bool, list[Completion]] = {}
        for one in done:
            fates.setdefault(keeps.get(self.topic_of(one), keep), []).append(one)
        return list(fates.items())

    def unconnected(self, session: bytes) -> RegisteredWorker | None:
        """Who is not connected, but watched, and has that session."""
        return next(
            (one for one in (*self.away.values(), *self.strangers.values()) if one.facts.session == session), None
        )

    def by_session(self, session: bytes, *, remote: bool) -> RegisteredWorker | None:
        """The worker of that session, of here or (*remote*) over TCP; None when it is not connected."""
        return self._by_session.get((remote, session))

    def listed(self, *workers: RegisteredWorker) -> set[Pair]:
        """What *workers* hold, and all whose results have arrived."""
        return self.reporting.union(*(worker.held for worker in workers))

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
        self._by_session[worker.is_remote, worker.facts.session] = worker

    def leave(self, worker: RegisteredWorker) -> None:
        """Its connection is gone; what it holds stays leased to it."""
        if self._workers.get(worker.identity) is worker:
            del self._workers[worker.identity]
            self._by_session.pop((worker.is_remote, worker.facts.session), None)
            if worker.watched and worker.held:
                self.away[worker.identity] = worker

    def holder_of(self, job: bytes) -> tuple[RegisteredWorker, int] | None:
        """Who holds *job*, and which attempt of it, the newest."""
        found = ((worker, attempt) for worker in self._workers.values() for one, attempt in worker.held if one == job)
        return max(found, key=lambda pair: pair[1], default=None)

    def parent_of(self, pid: int) -> RegisteredWorker | None:
        """The pool parent with that pid."""
        return next((one for one in self._workers.values() if one.facts.pid == pid and not one.facts.topics), None)

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
        fallen = [
            one for one in self.workers() if one.held and not one.contact.silent and one.contact.heard_s < since_s
        ]
        for worker in fallen:
            worker.contact.fall_silent()
        return fallen

    def plan(self, batch: int, *, again: bool = False) -> list[ClaimPlan]:
        """The claims worth making, in a new turn or *again*: one for each set of topics that free workers serve."""
        if self.closed:
            return []
        groups: dict[tuple[str, ...], list[RegisteredWorker]] = {}
        for worker in self._workers.values():
            if worker.credit > 0 and worker.facts.topics:
                groups.setdefault(worker.facts.topics, []).append(worker)
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
        held, stalls, assigns = worker.held, worker.facts.stalls, worker.jobs.assigns
        for claim in claims:
            stall_s = self.stall_s(claim.topic, stalls.get(claim.name))
            held[claim.id, claim.attempt] = HeldJob(
                claim.name, claim.topic, timeout_s=claim.timeout_s, stall_s=stall_s, assign=assigns
            )

    def free(self, worker: RegisteredWorker, pairs: Iterable[Pair]) -> None:
        """Results were answered: the places are free again."""
        held = worker.held
        for pair in pairs:
            held.pop(pair, None)

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
        jobs, heard_s = worker.held, worker.contact.heard_s
        for pair in pairs:
            held = jobs.get(pair)
            if held is not None:
                held.started = True
                held.since_s = held.since_s or heard_s
                held.apart = held.apart or pair in apart
                if held.stall_s is None:  # it came with its worker
                    held.stall_s = self.stall_s(held.topic, worker.facts.stalls.get(held.name))
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
