"""
Jobs that the database refuses to hand out, each by itself: a corrupt value, a trigger that raises.

A claim that is refused is made in halves, until the jobs that it is refused for are alone. These are set aside, in the
database, where all dispatchers see it, and all others go on. From then on they are tried one at a time, each second the
one that has waited longest; one that can be handed out is, and the next follows at once. So what heals is not missed.

That every job is refused says little of any of them: then the claim fails as a whole, and its topics wait a while. Some
are set aside all the same, since there may be good ones behind them; when one of them can be handed out, all that were
refused as it was are let go at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

import anyio
import structlog

from pulse.errors import StatementError, UnavailableError
from pulse.store.failures import IN_VAIN
from pulse.store.recovery.set_aside import SetAside, Suspect
from pulse.store.rows import Level
from pulse.store.store import Store
from pulse_actors.dispatcher.claims.cursors import LevelStart
from pulse_actors.dispatcher.claims.doubts import InDoubtClaims
from pulse_actors.dispatcher.claims.handout import ClaimRefusedError, Handout
from pulse_actors.dispatcher.claims.work_signal import WorkSignal
from pulse_actors.dispatcher.workers.registry import ClaimPlan, WorkerRegistry
from pulse_actors.shared.row_writes import MOST_BLAMED, spread

TRY_S: Final = 1.0  # between two that are tried
LOOKED_AT: Final = 1000  # jobs that may tell whether it is about single ones: only their ids are read
MOST: Final = 50  # that one search sets aside: it holds up all claims
ROUNDED_S: Final = 0.001  # due times lose some digits on their way
CLAIM: Final = "claim_jobs"

log = structlog.get_logger()


class RefusedJobs:
    """Finds them, and tries them again."""

    def __init__(
        self, store: Store, registry: WorkerRegistry, handout: Handout, *, in_doubt: InDoubtClaims, signal: WorkSignal
    ) -> None:
        self._aside = store.aside
        self._registry = registry
        self._handout = handout
        self._in_doubt = in_doubt
        self._signal = signal

    async def search(self, plan: ClaimPlan, starts: Sequence[LevelStart] | None) -> bool:
        """
        Hand out what can be of a claim that was refused, and set aside what cannot; call it while claiming.

        Returns:
            Whether something of either kind was found: the claim can be made now. Else it is about no single job.

        Raises:
            UnavailableError: The database is away.
        """
        search = _RefusedSearch(self._handout, self._registry, plan)
        try:
            return await self._search(search, plan, starts)
        except StatementError:  # it refuses this, too
            return search.has_claimed

    async def _search(self, search: _RefusedSearch, plan: ClaimPlan, starts: Sequence[LevelStart] | None) -> bool:
        suspects = await self._aside.claimable(plan.topics, max(len(plan.seats), LOOKED_AT), starts)
        try:
            await search.through(suspects[: len(plan.seats)])
            is_about_none = await search.is_about_none(suspects)
        except UnavailableError:
            if search.has_claimed:  # what was found was found
                await self._set_aside(search.bad, None)
            raise
        await self._set_aside(search.bad, MOST_BLAMED if is_about_none else None)
        return not is_about_none and (search.has_claimed or bool(search.bad))

    async def _set_aside(self, bad: Sequence[tuple[Suspect, StatementError]], most: int | None) -> None:
        if not bad:
            return
        new = await self._aside.add([(one.id, error) for one, error in bad], TRY_S, most)
        for one, error in bad:
            if one.id not in new:  # too many are, and each search meets it anew; or another host has told it
                continue
            log.error(
                "job_set_aside",
                job=_shown(one.id),
                topic=one.level.topic,
                sqlstate=error.sqlstate,
                error=error.message,
            )

    async def run(self) -> None:
        """Try those that are set aside, until cancelled."""
        while True:
            try:
                is_done = await self.try_next()
            except UnavailableError:
                is_done = False  # the claims, too, are told so, and say it
            if not is_done:
                await anyio.sleep(TRY_S)

    async def try_next(self) -> bool:
        """Try the one whose turn it is; whether it is done with, so that another may be, too."""
        found = await self._aside.next(TRY_S)
        if found is None:
            return False
        if found.suspect is None:
            return await self._forget(found)
        async with self._in_doubt.claiming():
            plan = next(
                (one for one in self._registry.plan(1, again=True) if found.suspect.level.topic in one.topics), None
            )
            if plan is None or self._registry.closed or not plan.seats:
                return False  # it is another host's turn, or somebody has room later
            try:
                claimed = await self._handout.claim_these(plan, *_these([found.suspect]))
            except ClaimRefusedError as error:
                await self._aside.add([(found.id, error.refusal)], TRY_S)
                return False
        if claimed:
            await self._aside.readmit_like(found.sqlstate)
        is_let_go = claimed or found.statement != CLAIM  # whoever was refused something else tries that again
        if is_let_go:
            await self._aside.readmit([found.id])
            log.info("job_readmitted", job=_shown(found.id))
            self._signal.wake()  # what was let go may lie before all cursors
        return is_let_go

    async def _forget(self, found: SetAside) -> bool:
        """No claim takes it; what has expired is the expiry's. Of one that runs its report may be what is refused."""
        if found.status == "RUNNING" and found.statement != CLAIM:
            return False
        await self._aside.readmit([found.id])
        return True


class _RefusedSearch:
    """One search, by halves."""

    def __init__(self, handout: Handout, registry: WorkerRegistry, plan: ClaimPlan) -> None:
        self._handout = handout
        self._registry = registry
        self._topics = frozenset(plan.topics)
        self._is_over = False  # there is no room any more, or enough was found
        self.has_claimed = False
        self.bad: list[tuple[Suspect, StatementError]] = []

    async def through(self, suspects: Sequence[Suspect]) -> None:
        """Look at these until there is no room any more, or so many are refused that it may be about none of them."""
        if not suspects or self._is_over:
            return
        refusal = await self._refusal(suspects)
        if refusal is None:
            return
        if len(suspects) == 1:
            self.bad.append((suspects[0], refusal))
            self._is_over = len(self.bad) >= (MOST if self.has_claimed else IN_VAIN)
            return
        middle = len(suspects) // 2
        await self.through(suspects[:middle])
        await self.through(suspects[middle:])

    async def is_about_none(self, suspects: Sequence[Suspect]) -> bool:
        """Whether others, from all over, are refused as well, each by itself, and nothing else was."""
        if self.has_claimed:
            return False
        bad = {one.id for one, _ in self.bad}
        others = spread([one for one in suspects if one.id not in bad])[:IN_VAIN]
        for one in others:
            if await self._refusal([one]) is None:
                return False
        return bool(others) or len(self.bad) >= IN_VAIN

    async def _refusal(self, suspects: Sequence[Suspect]) -> StatementError | None:
        """Claim these; why the database refuses that. None: it does not, or there is no room for them."""
        plans = self._registry.plan(len(suspects), again=True)
        plan = next((one for one in plans if self._topics.issubset(one.topics)), None)
        if plan is None or len(plan.seats) < len(suspects):
            self._is_over = True
            return None
        try:
            self.has_claimed |= await self._handout.claim_these(plan, *_these(suspects))
        except ClaimRefusedError as error:
            return error.refusal
        return None


def _these(suspects: Sequence[Suspect]) -> tuple[list[LevelStart], list[bytes]]:
    """Where a claim of these begins, and which they are."""
    begins: dict[Level, float] = {}
    for one in suspects:
        begins[one.level] = min(begins.get(one.level, one.due_s), one.due_s)
    levels = sorted(begins, key=lambda level: -level.priority)
    return [LevelStart(*level, begins[level] - ROUNDED_S) for level in levels], [one.id for one in suspects]


def _shown(job: bytes) -> str:
    return str(UUID(bytes=job))
