"""The claim loop: claims jobs wherever workers have room and there may be work."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import anyio
import structlog

from pulse.errors import StatementTimeoutError, UnavailableError
from pulse.store.failures import ran_too_long
from pulse.store.limit_claims import Blocked
from pulse.store.rows import Claim, GroupLevel, Head, Level
from pulse.store.store import Store
from pulse_actors.dispatcher.claims.cursors import FEW_TOPICS, LEVELS_MAX, SURVEY, LevelStart
from pulse_actors.dispatcher.claims.doubts import InDoubtClaims
from pulse_actors.dispatcher.claims.group_turns import GroupStart
from pulse_actors.dispatcher.claims.handout import ClaimRefusedError, Handout
from pulse_actors.dispatcher.claims.placement import length_of
from pulse_actors.dispatcher.claims.quarantine import Quarantine
from pulse_actors.dispatcher.claims.refused_jobs import RefusedJobs
from pulse_actors.dispatcher.claims.work_signal import WorkSignal
from pulse_actors.dispatcher.workers.registry import ClaimPlan, TopicWorkers, WorkerRegistry
from pulse_actors.runtime.actor import Backoff

SHORT_CHARS: Final = 2000  # bytes that a claim counts for short args; it ends after 8 MiB ...
PART_CHARS: Final = 2 * 1024 * 1024  # ... which may be only so many characters: such a claim may have left some jobs
ABOVE_ALL: Final = 101  # priority
SURVEY_ONE: Final = 201  # priorities of one topic
DOUBT_S: Final = 1.0  # until workers in doubt are looked into although no claim is made because none has room

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ClaimRange:
    """
    A claim, and where it looks.

    Attributes:
        plan: The workers that get the jobs.
        topics: Those without a limit.
        starts: Where it begins there; None: everywhere, from the start.
        turns: Levels of groups, and of topics with a limit.
        version: How many news ``Cursors`` had.
        turns_version: How many ``GroupTurns`` had.
        is_followed: Whether another claim has to follow it, for other levels.
    """

    plan: ClaimPlan
    topics: tuple[str, ...]
    starts: list[LevelStart] | None
    turns: Sequence[GroupStart]
    version: int
    turns_version: int = 0
    is_followed: bool = False

    @property
    def most(self) -> int:
        """How many jobs of one level of a group it takes, so that all groups get some."""
        groups = {start.level[:2] for start in self.turns}
        return max(-(-len(self.plan.seats) // max(len(groups), 1)), 1)


class ClaimLoop:
    """
    The claim loop.

    Args:
        batch: Most jobs of one claim.
    """

    def __init__(
        self,
        store: Store,
        registry: WorkerRegistry,
        *,
        signal: WorkSignal,
        in_doubt: InDoubtClaims,
        handout: Handout,
        refused_jobs: RefusedJobs,
        quarantine: Quarantine,
        batch: int,
    ) -> None:
        self._store, self._limited = store, store.limited
        self._registry = registry
        self._signal = signal
        self._cursors = signal.cursors
        self._turns = signal.turns
        self._in_doubt = in_doubt
        self._handout = handout
        self._refused_jobs = refused_jobs
        self._quarantine = quarantine
        self._batch = batch
        self._unreached: set[str] = set()  # topics of which the full claims of this pass have left levels

    async def run(self) -> None:
        """Claim until cancelled."""
        backoff = Backoff()
        while True:
            try:
                more = await self.pass_once()
            except UnavailableError as error:
                await anyio.sleep(backoff.failed(error, "claim"))
                continue
            backoff.reset()
            if not more:
                await self._pause()

    async def _pause(self) -> None:
        now_s, quarantine = time.monotonic(), self._quarantine if self._quarantine.is_active else None
        if quarantine is not None and quarantine.has_missed(now_s):
            self._cursors.want_full()
        if self._signal.take_due(now_s):  # it became due during the last claim, which may have missed it
            return
        has_room = not self._registry.closed and any(
            worker.credit
            and worker.facts.topics
            and not (quarantine is not None and quarantine.holds(worker.facts.topics, now_s))
            for worker in self._registry.workers()
        )
        await self._signal.wait(self._pause_s(now_s) if has_room else DOUBT_S, now_s, has_room=has_room)

    def _pause_s(self, now_s: float) -> float:
        """Seconds until something is due by itself."""
        pause_s = min(self._cursors.pause_s(now_s), self._turns.survey_at_s - now_s)
        if self._turns.levels:
            pause_s = min(pause_s, self._turns.opens_s() - now_s)
        return max(pause_s, 0.0)

    async def pass_once(self) -> bool:
        """One claim for each set of topics; returns whether one of them was full, so that more jobs may wait."""
        async with self._in_doubt.claiming():  # another claim may be filling the free seats
            if not self._in_doubt.is_settled:
                await self._in_doubt.settle()
        self._handout.note_silence()
        began_s = time.monotonic()
        serving = self._registry.with_room()
        self._signal.will_claim(one.topics for one in serving)
        if self._quarantine.is_active:
            serving = [one for one in serving if not self._quarantine.holds(one.topics, began_s)]
        full = bool(serving) and self._cursors.is_full_due(began_s)
        window = self._cursors.window_due(began_s) if serving and not full else None
        if full:
            self._cursors.full_begins()
        elif window is not None:
            self._cursors.window_begins()
        is_done, cost_s = False, 0.0
        unbelieved: list[UnavailableError] = []
        try:
            more, cost_s = await self._claim_all(serving, window, unbelieved, full=full)
            is_done = True
        finally:
            ended_s = time.monotonic()
            # A claim that took too long counts as slow, too: meanwhile known levels can be claimed.
            since_s = ended_s - cost_s if is_done else began_s
            if full:
                self._cursors.full_done(since_s, ended_s)
                if unbelieved or not is_done:
                    self._cursors.want_full()
            if window is not None:
                self._cursors.window_done(window, since_s, ended_s)
        if unbelieved:
            raise unbelieved[0]
        if serving and time.monotonic() >= self._turns.survey_at_s:
            await self._survey_groups()
            more |= any(self._turns.has_turns(one.topics) for one in serving)
        self._signal.tell_slots()
        return more

    async def _claim_all(
        self, serving: Sequence[TopicWorkers], window: int | None, unbelieved: list[UnavailableError], *, full: bool
    ) -> tuple[bool, float]:
        """
        Claim for each set of topics; an "away" that may be a refusal does not stop the others.

        Returns:
            Whether more jobs may wait, and the seconds spent on looking for unknown work.
        """
        more, cost_s = False, 0.0
        if full and any(len(one.topics) > FEW_TOPICS for one in serving):
            cost_s = await self._survey()
        divided: Iterable[TopicWorkers] = serving
        if self._quarantine.is_active:
            divided = self._quarantine.divided(serving, time.monotonic())
        for one in divided:
            claim = self._planned(one, window, full=full)
            if claim is None:
                continue
            more |= claim.is_followed
            async with self._in_doubt.claiming():
                if self._registry.closed:
                    return False, cost_s
                is_more, took_s = await self._claim_readable(claim, unbelieved)
            more |= is_more
            if claim.starts is None or window is not None:
                cost_s += took_s
        if self._unreached:
            cost_s += await self._find_left()
        return more, cost_s

    def _planned(self, serving: TopicWorkers, window: int | None, *, full: bool) -> ClaimRange | None:
        """The next claim for *serving*; None: there is nowhere to look, or no room any more."""
        limits, topics = self._turns.limits, serving.topics
        if limits:
            topics = tuple(topic for topic in topics if topic not in limits)
        version = self._cursors.begin(time.monotonic())
        starts = self._starts(topics, window, full=full) if topics else []
        turns = self._turns.starts(serving.topics, time.monotonic()) if self._turns.levels else []
        if starts == [] and not turns:
            return None
        plan = serving.plan(self._batch)
        if not plan.seats:  # the claim before has used them
            if full:
                self._cursors.want_full()
            return None
        if topics and (starts is None or window is not None):  # a claim that looks everywhere has no part for them
            return ClaimRange(plan, topics, starts, turns=[], version=version, is_followed=bool(turns))
        turns_version = self._turns.begin() if turns else 0
        return ClaimRange(plan, topics, starts, turns=turns, version=version, turns_version=turns_version)

    def _starts(self, topics: tuple[str, ...], window: int | None, *, full: bool) -> list[LevelStart] | None:
        """Where the claim of *topics* begins; None: everything, from the start."""
        if full and len(topics) <= FEW_TOPICS:
            return None
        if window is None:
            if len(topics) <= FEW_TOPICS and self._cursors.is_empty(topics, time.monotonic()):
                return []
            return self._cursors.starts(topics, self._ageing_s, time.time())
        return self._cursors.window(topics, window, time.time())

    async def _survey_groups(self) -> None:
        """Look for unknown levels of groups, and of topics with a limit: the next part."""
        began_s, is_first = time.monotonic(), self._turns.survey_begins()
        try:
            served = self._registry.topics()
            if is_first and (limits := await self._limited.topics()) != self._turns.limits:
                self._signal.set_limits(limits)  # its notification was lost
            limited = sorted(served.intersection(self._turns.limits)) if is_first else []
            for head in await self._levels_of(limited) if limited else ():
                self._turns.found(GroupLevel(head.level.topic, None, head.level.priority), head.due_at)
            heads = await self._limited.find_levels(self._turns.survey_from(), SURVEY)
        except UnavailableError:
            self._turns.want_survey()
            raise
        self._turns.surveyed(heads, served, began_s, time.monotonic())

    async def _find_left(self) -> float:
        """
        Find the levels that full claims did not reach, having filled their seats before; returns the seconds it took.

        Else they would be known only when those before are empty and another full claim is made, which may be dear.
        """
        began_s, topics = time.monotonic(), sorted(self._unreached)
        self._unreached.clear()
        try:
            for head in await self._levels_of(topics):
                self._cursors.found(head.level, head.due_at)
        except UnavailableError:  # what was claimed is handed out
            self._cursors.want_full()
        return time.monotonic() - began_s

    async def _levels_of(self, topics: Sequence[str]) -> list[Head]:
        """Those with a job that is due."""
        heads = await self._store.find_levels(Level("", ABOVE_ALL), SURVEY_ONE, topics=topics)
        return [head for head in heads if head.is_due]

    async def _survey(self) -> float:
        """Look for unknown levels, the next part; returns the seconds that it took."""
        began_s = time.monotonic()
        heads = await self._store.find_levels(self._cursors.survey_from(), SURVEY)
        served = self._registry.topics()
        for head in heads:
            if head.is_due and head.level.topic in served:
                self._cursors.found(head.level, head.due_at)
        self._cursors.surveyed([head.level for head in heads])
        return time.monotonic() - began_s

    async def _claim_readable(self, claim: ClaimRange, unbelieved: list[UnavailableError]) -> tuple[bool, float]:
        """
        Claim; if the database refuses a job, claim the others, or else leave the topics alone for a while.

        Returns:
            Whether more jobs may wait, and the seconds of the claim; a refused claim counts none.
        """
        plan, began_s, is_full = claim.plan, time.monotonic(), claim.starts is None
        try:
            claims, blocked = await self._fetch(claim)
        except ClaimRefusedError as error:
            if not error.is_sure and not self._quarantine.is_refused(plan.topics, full=is_full):
                unbelieved.append(error.error)
                return False, 0.0
            if await self._refused_jobs.search(plan, claim.starts, claim.turns):
                self._cursors.want_full()  # this claim was the full one, and the search has seen only its first jobs
                return True, 0.0
            self._bar(plan, error.error, lasts=True, full=is_full)
            return False, 0.0
        except StatementTimeoutError as error:
            if not ran_too_long(error):
                raise
            self._bar(plan, error, lasts=False, full=is_full)
            return False, time.monotonic() - began_s
        if self._quarantine.is_active:
            self._quarantine.succeeded(plan.topics, full=is_full)
        more = await self._claimed(claim, claims, blocked)
        return more, time.monotonic() - began_s

    @property
    def _ageing_s(self) -> Mapping[str, float]:
        return self._registry.policies.ageing_s

    async def _fetch(self, claim: ClaimRange) -> tuple[list[Claim], list[Blocked]]:
        plan, lease_s, ageing_s = claim.plan, self._handout.lease_s, self._ageing_s
        if not claim.turns:
            answer = self._store.claim(
                claim.topics, plan.workers, plan.seats, lease_s, levels=claim.starts, ageing_s=ageing_s
            )
            return await self._handout.fetch(plan, answer), []
        levels = [(GroupLevel(one.topic, None, one.priority), one.from_s) for one in claim.starts or ()]
        return await self._handout.fetch(
            plan,
            self._limited.claim(
                [*levels, *claim.turns], plan.workers, plan.seats, lease_s, most=claim.most, ageing_s=ageing_s
            ),
        )

    def _bar(self, plan: ClaimPlan, error: UnavailableError, *, lasts: bool, full: bool) -> None:
        log.error("claim_failed", topics=plan.topics[:FEW_TOPICS], error=error.message)
        self._signal.wake_recent(self._quarantine.failed(plan.topics, time.monotonic(), lasts=lasts, full=full))

    async def _claimed(self, claim: ClaimRange, claims: Sequence[Claim], blocked: Sequence[Blocked]) -> bool:
        """Hand out the jobs of a claim; returns whether there may be more."""
        plan, starts, ageing_s = claim.plan, claim.starts, self._ageing_s
        is_full = len(claims) == len(plan.seats) or sum(map(_weight, claims)) > PART_CHARS
        plain, in_turn, more = claims, list[Claim](), False
        if claim.turns:
            limits = self._turns.limits
            in_turn = [one for one in claims if one.group_key is not None or one.topic in limits]
            plain = [one for one in claims if one.group_key is None and one.topic not in limits]
            more = self._turns.claimed(
                claim.turns, in_turn, blocked,
                most=claim.most, is_full=is_full, version=claim.turns_version, now_s=time.monotonic(),
            )  # fmt: skip
        self._cursors.claimed(plain, more=is_full)
        await self._handout.take(plan, claims)
        if is_full:
            self._signal.work_left(plan.topics)
            if starts is None:
                self._unreached.update(claim.topics)
            return True
        if in_turn:
            return True  # of the other levels some may not have been read to their ends
        if claims and ageing_s and not ageing_s.keys().isdisjoint(plan.topics):
            return True  # rows locked by another host counted as work: look again
        self._cursors.exhausted(claim.topics if starts is None else starts, claim.version)
        self._cursors.emptied(claim.topics)
        return more or (starts is not None and len(claim.topics) > FEW_TOPICS and len(starts) == LEVELS_MAX)


def _weight(claim: Claim) -> int:
    return max(SHORT_CHARS, length_of(claim))
