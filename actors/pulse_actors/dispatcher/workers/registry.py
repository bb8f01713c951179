"""
The registry: which workers are connected, what each may get and what each holds. Pure: no IO, no clock.

A job is *held* from its assignment until the ``reported`` that answers its result. Capacity minus held jobs is a
worker's credit; claims are made against credit only, so no job is claimed without room for it. The registry is only a
copy of what the database knows, and is rebuilt from the workers' hellos after a restart.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

from pulse.common.text import similar_names
from pulse.store.rows import Claim, Completion, Running
from pulse_actors.dispatcher.workers.policies import TopicPolicies
from pulse_actors.dispatcher.workers.records import HeldJob, Pair, RegisteredWorker

DEFAULT_TOPIC: Final = "default"  # of a job whose submit and handler name none
SIMILAR_NAMES_MAX: Final = 1000  # that are kept, until a worker joins or leaves
NEWEST_MAX: Final = 10_000  # workers whose newest connection is remembered: a hello waits for seconds at most


@dataclass(frozen=True, slots=True)
class ClaimPlan:
    """
    A planned claim.

    Attributes:
        topics: In the order in which equal priorities are served.
        workers: Identities.
        seats: For the n-th job: index into ``workers``.
    """

    topics: tuple[str, ...]
    workers: tuple[str, ...]
    seats: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicWorkers:
    """
    Workers that serve the same topics, of which some may have room.

    Attributes:
        topics: In the order in which equal priorities are served in this turn.
        workers: By their identities, those without room, too; they come and go.
    """

    topics: tuple[str, ...]
    workers: Mapping[str, RegisteredWorker]

    @property
    def has_room(self) -> bool:
        """Whether one of them takes more jobs."""
        return any(worker.credit for worker in self.workers.values())

    def plan(self, batch: int) -> ClaimPlan:
        """A claim of at most *batch* jobs for those that have room now."""
        free = [(credit, identity) for identity, worker in self.workers.items() if (credit := worker.credit)]
        most = heapq.nlargest(batch, free, key=itemgetter(0))  # of thousands of workers, no more than can get a job
        seats = deal([credit for credit, _ in most], batch)
        return ClaimPlan(self.topics, tuple(identity for _, identity in most), tuple(seats))


class WorkerRegistry:
    """
    The registry of one dispatcher.

    Attributes:
        closed: Whether claiming has ended.
        strangers: Workers on this host that hold jobs and have not said hello, by identity.
        away: Watched workers that hold jobs and have lost their connection, by identity.
        reporting: Attempts whose results have arrived and are not written yet, whichever worker holds them now.
        refused: Of these, attempts whose results the database refuses, and their workers.
        policies: The topics' policies in memory.
    """

    def __init__(self) -> None:
        self._workers: dict[str, RegisteredWorker] = {}
        self._serving: dict[tuple[str, ...], dict[str, RegisteredWorker]] = {}  # the same, by their topics
        # TCP workers have an index of their own: they may send any session, also a local worker's.
        self._by_session: dict[tuple[bool, bytes], RegisteredWorker] = {}
        self._turn = 0
        self.closed = False
        self.strangers: dict[str, RegisteredWorker] = {}
        self.away: dict[str, RegisteredWorker] = {}
        self.reporting: set[Pair] = set()
        self.refused: dict[Pair, str] = {}
        self.lost: set[Pair] = set()  # attempts from before an epoch, until their workers have reported how they ended
        self.policies = TopicPolicies({})
        self._newest: dict[str, int] = {}  # identity -> number of its newest connection
        self._handlers: dict[str, frozenset[str]] | None = None  # of each topic that is served; None: to be computed
        self._similar: dict[tuple[str, str], list[str]] = {}

    def close(self, *, reconnect: bool) -> None:
        """Stop claiming for workers that will reconnect (*reconnect*) to the next dispatcher."""
        self.closed = self.closed or reconnect

    def workers(self) -> list[RegisteredWorker]:
        """All connected workers."""
        return list(self._workers.values())

    def get(self, identity: str) -> RegisteredWorker | None:
        """The worker of that identity, None when it is not connected."""
        return self._workers.get(identity)

    def find(self, identity: str) -> RegisteredWorker | None:
        """The worker of that identity, connected or not."""
        return self._workers.get(identity) or self.away.get(identity) or self.strangers.get(identity)

    def topic_of(self, done: Completion) -> str:
        """The topic of a job whose attempt is over; '' if it is forgotten."""
        worker = self.find(done.worker)
        held = None if worker is None else worker.held.get((done.id, done.attempt))
        return "" if held is None else held.topic

    def stall_s(self, topic: str, own: float | None = None) -> float | None:
        """Longest silence of a handler of *topic*: its *own* promise, else the topic's, else the server's."""
        policies = self.policies
        return own or policies.stalls.get(topic, policies.stall_s)

    def by_fate(self, done: Sequence[Completion], *, keep: bool) -> list[tuple[bool, Sequence[Completion]]]:
        """Split *done* into jobs that are kept for a while and jobs that are deleted; *keep*: default of topics."""
        keeps = self.policies.keeps
        if not keeps:
            return [(keep, done)]
        fates: dict[bool, list[Completion]] = {}
        for one in done:
            fates.setdefault(keeps.get(self.topic_of(one), keep), []).append(one)
        return list(fates.items())

    def unconnected(self, session: bytes) -> RegisteredWorker | None:
        """The watched worker of that session that is not connected."""
        return next(
            (one for one in (*self.away.values(), *self.strangers.values()) if one.facts.session == session), None
        )

    def by_session(self, session: bytes, *, remote: bool) -> RegisteredWorker | None:
        """The connected worker of that session, local or (*remote*) by TCP; None: there is none."""
        return self._by_session.get((remote, session))

    def listed(self, *workers: RegisteredWorker) -> set[Pair]:
        """What *workers* hold, and all attempts whose results have arrived."""
        return self.reporting.union(*(worker.held for worker in workers))

    def is_newest(self, identity: str, number: int) -> bool:
        """Whether this connection of *identity* is newer than all before; then it is stored as the newest."""
        if number < self._newest.get(identity, 0):
            return False
        self._newest.pop(identity, None)  # order by age, the newest last
        if len(self._newest) >= NEWEST_MAX:
            del self._newest[next(iter(self._newest))]
        self._newest[identity] = number
        return True

    def has_met(self, identity: str) -> bool:
        """Whether a worker of *identity* has said hello."""
        return identity in self._newest

    def join(self, worker: RegisteredWorker) -> None:
        """A worker said hello; it replaces an older connection of the same identity."""
        if worker.identity in self._workers:
            self._forget(self._workers[worker.identity])
        self._workers[worker.identity] = worker
        self._serving.setdefault(worker.facts.topics, {})[worker.identity] = worker
        self._handlers = None
        self.away.pop(worker.identity, None)
        self._by_session[worker.is_remote, worker.facts.session] = worker

    def leave(self, worker: RegisteredWorker) -> None:
        """Its connection is gone; what it holds stays leased to it."""
        if self._workers.get(worker.identity) is worker:
            self._forget(worker)
            self._handlers = None
            self._by_session.pop((worker.is_remote, worker.facts.session), None)
            if worker.watched and worker.held:
                self.away[worker.identity] = worker

    def _forget(self, worker: RegisteredWorker) -> None:
        del self._workers[worker.identity]
        alike = self._serving[worker.facts.topics]
        del alike[worker.identity]
        if not alike:
            del self._serving[worker.facts.topics]

    def has_others(self, worker: RegisteredWorker) -> bool:
        """Whether other workers serve all topics of *worker*, too."""
        own = worker.facts.topics
        left = set(own)
        for topics, some in self._serving.items():
            if topics != own or len(some) > 1:
                left.difference_update(topics)
            if not left:
                return True
        return False

    def is_spare(self, worker: RegisteredWorker) -> bool:
        """Whether another worker with room has the topics and handlers of *worker*, too."""
        return any(
            other is not worker and other.facts.names >= worker.facts.names and other.credit > 0
            for other in self._serving[worker.facts.topics].values()
        )

    def topics(self) -> set[str]:
        """The topics that connected workers serve, those of draining ones, too."""
        return set[str]().union(*self._serving)

    def served(self) -> set[str]:
        """The topics of which connected workers take jobs."""
        return {topic for worker in self.workers() if not worker.draining for topic in worker.facts.topics}

    def unhandled(self, topic: str | None, name: str) -> tuple[str, list[str]] | None:
        """
        Whether a job finds workers, but none with its handler; None: it finds one, or its topic is not served here.

        Args:
            topic: Of the job; None: its submit names none.
            name: Of its handler.

        Returns:
            Its topic, and handlers of that topic with a similar name.
        """
        if self._handlers is None:
            names: dict[str, set[str]] = {}
            for worker in self._workers.values():
                for served in worker.facts.topics:
                    names.setdefault(served, set()).update(worker.facts.names)
            self._handlers = {served: frozenset(found) for served, found in names.items()}
            self._similar.clear()
        if topic is None:
            topic = next((served for served, found in self._handlers.items() if name in found), DEFAULT_TOPIC)
        handlers = self._handlers.get(topic)
        if handlers is None or name in handlers:
            return None
        if (topic, name) not in self._similar:
            if len(self._similar) >= SIMILAR_NAMES_MAX:
                self._similar.clear()
            self._similar[topic, name] = similar_names(name, sorted(handlers))
        return topic, self._similar[topic, name]

    def holder_of(self, job: bytes) -> tuple[RegisteredWorker, int] | None:
        """The worker that holds *job*, and its newest attempt."""
        found = ((worker, attempt) for worker in self._workers.values() for one, attempt in worker.held if one == job)
        return max(found, key=lambda pair: pair[1], default=None)

    def parent_of(self, pid: int) -> RegisteredWorker | None:
        """The pool parent with that pid."""
        return next((one for one in self._workers.values() if one.facts.pid == pid and not one.facts.topics), None)

    def held_among(self, jobs: Iterable[bytes]) -> set[bytes]:
        """Which of *jobs* a worker of this host holds, whichever attempt."""
        return {job for worker in self.everybody() for job, _ in worker.held}.intersection(jobs)

    def running_in_hand(self, jobs: Iterable[bytes]) -> set[bytes]:
        """Which of *jobs* run in a watched process, whose end is certain to be noticed, or are waited for."""
        pairs = {pair for one in self.everybody() for pair in one.held if one.watched or pair in self.lost}
        return {job for job, _ in pairs - self.reporting}.intersection(jobs)

    def everybody(self) -> Sequence[RegisteredWorker]:
        """All workers that may hold jobs, connected or not."""
        return (*self._workers.values(), *self.strangers.values(), *self.away.values())

    def note_silence(self, since_s: float) -> list[RegisteredWorker]:
        """Mark workers that hold jobs and were silent since then; returns those that are newly marked."""
        fallen = [
            one for one in self.workers() if one.held and not one.contact.silent and one.contact.heard_s < since_s
        ]
        for worker in fallen:
            worker.contact.fall_silent()
        return fallen

    def with_room(self, *, again: bool = False) -> list[TopicWorkers]:
        """Each set of topics that workers with room serve, in a new turn or *again*: a claim is made for each."""
        if self.closed:
            return []
        self._turn += not again
        found: list[TopicWorkers] = []
        for topics, workers in self._serving.items():
            shift = self._turn % max(len(topics), 1)  # rotate: no topic is always last among equal priorities
            serving = TopicWorkers(topics[shift:] + topics[:shift], workers)
            if topics and serving.has_room:
                found.append(serving)
        return found

    def hand_over(self, identity: str, claims: Sequence[Claim]) -> None:
        """A worker holds these jobs from now on, sent by so many frames."""
        worker = self._workers[identity]
        held, stalls, assigns = worker.held, worker.facts.stalls, worker.jobs.assigns
        may_stall = self._may_stall(worker)
        for claim in claims:
            stall_s = self.stall_s(claim.topic, stalls.get(claim.name)) if may_stall else None
            held[claim.id, claim.attempt] = HeldJob(
                claim.name,
                claim.topic,
                timeout_s=claim.timeout_s,
                stall_s=stall_s,
                assign=assigns,
                group_key=claim.group_key,
            )

    def free(self, worker: RegisteredWorker, pairs: Iterable[Pair]) -> list[HeldJob]:
        """Results were answered: the jobs are no longer held. Returns them."""
        pop = worker.held.pop
        return [job for pair in pairs if (job := pop(pair, None)) is not None]

    def learn(self, worker: RegisteredWorker, running: Mapping[Pair, Running]) -> list[tuple[Pair, HeldJob]]:
        """Add what the database knows of attempts that a worker listed while it was away; as for ``started``."""
        learned = [pair for pair in running if pair in worker.held and not worker.held[pair].name]
        for pair in learned:
            worker.held[pair].learn(running[pair])
        return self.started(worker, [pair for pair in learned if worker.held[pair].started])

    def started(
        self, worker: RegisteredWorker, pairs: Iterable[Pair], apart: AbstractSet[Pair] = frozenset()
    ) -> list[tuple[Pair, HeldJob]]:
        """Handlers of these were called; returns those that must end, or report progress, in time."""
        bounded: list[tuple[Pair, HeldJob]] = []
        jobs, heard_s, stalls = worker.held, worker.contact.heard_s, worker.facts.stalls
        may_stall = self._may_stall(worker)
        for pair in pairs:
            held = jobs.get(pair)
            if held is not None:
                held.started = True
                if not held.since_s:
                    held.since_s = heard_s
                if pair in apart:
                    held.apart = True
                if may_stall and held.stall_s is None:  # its worker listed it in its hello
                    held.stall_s = self.stall_s(held.topic, stalls.get(held.name))
                if held.timeout_s is not None or held.stall_s is not None:
                    bounded.append((pair, held))
        return bounded

    def _may_stall(self, worker: RegisteredWorker) -> bool:
        """Whether any job of *worker* may have a longest silence: hardly any worker's has, and each job would ask."""
        return bool(worker.facts.stalls) or self.policies.has_stalls


def deal(credits_: Sequence[int], limit: int) -> list[int]:
    """
    Seats for up to *limit* jobs, dealt to the workers in turn, so that work spreads.

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
