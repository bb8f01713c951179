"""
Finds single jobs that the database refuses to hand out: a corrupt value, a trigger that raises.

A refused claim is repeated in halves until the bad jobs are alone. They are set aside in the database, for all
dispatchers, and all others go on. From then on one of them is tried each second, the one that has waited longest; if it
can be handed out, the next is tried at once. So recovery is noticed.

If every job is refused, the jobs are hardly the cause: then the claim fails as a whole, and its topics wait a while.
Some jobs are set aside all the same, since good ones may follow them; when one of them can be handed out, all that were
refused with the same error are tried again at once.
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
from pulse.store.rows import GroupLevel, Level
from pulse.store.store import Store
from pulse_actors.dispatcher.claims.cursors import LevelStart
from pulse_actors.dispatcher.claims.doubts import InDoubtClaims
from pulse_actors.dispatcher.claims.group_turns import GroupStart
from pulse_actors.dispatcher.claims.handout import ClaimRefusedError, Handout
from pulse_actors.dispatcher.claims.work_signal import WorkSignal
from pulse_actors.dispatcher.workers.registry import ClaimPlan, WorkerRegistry
from pulse_actors.shared.row_writes import MOST_BLAMED, spread

TRY_S: Final = 1.0  # between two tries
LOOKED_AT: Final = 1000  # jobs of one search: only their ids are read
MOST: Final = 50  # jobs that one search sets aside: it blocks all claims
ROUNDED_S: Final = 0.001  # due times lose some digits in conversion
CLAIMS: Final = frozenset({"claim_jobs", "claim_limited"})

log = structlog.get_logger()


class RefusedJobs:
    """Finds refused jobs, and tries them again."""

    def __init__(
        self, store: Store, registry: WorkerRegistry, handout: Handout, *, in_doubt: InDoubtClaims, signal: WorkSignal
    ) -> None:
        self._aside = store.aside
        self._registry = registry
        self._handout = handout
        self._in_doubt = in_doubt
        self._signal = signal

    async def search(
        self, plan: ClaimPlan, starts: Sequence[LevelStart] | None, turns: Sequence[GroupStart] = ()
    ) -> bool:
        """
        Hand out the good jobs of a refused claim, and set aside the bad ones; call it while ``claiming``.

        Returns:
            Whether it found good or bad jobs: then the claim can be repeated. Else no single job is the cause.

        Raises:
            UnavailableError: The database is away.
        """
        search = _RefusedSearch(self._handout, self._registry, plan)
        try:
            return await self._search(search, plan, starts, turns)
        except StatementError:  # even reading the ids is refused
            return search.has_claimed

    async def _search(
        self,
        search: _RefusedSearch,
        plan: ClaimPlan,
        starts: Sequence[LevelStart] | None,
        turns: Sequence[GroupStart],
    ) -> bool:
        suspects = await self._aside.claimable(plan.topics, max(len(plan.seats), LOOKED_AT), starts, turns)
        try:
            await search.through(suspects[: len(plan.seats)])
            is_about_none = await search.is_about_none(suspects)
        except UnavailableError:
            if search.has_claimed:  # keep what was found
                await self._set_aside(search.bad, None)
            raise
        await self._set_aside(search.bad, MOST_BLAMED if is_about_none else None)
        return not is_about_none and (search.has_claimed or bool(search.bad))

    async def _set_aside(self, bad: Sequence[tuple[Suspect, StatementError]], most: int | None) -> None:
        if not bad:
            return
        new = await self._aside.add([(one.id, error) for one, error in bad], TRY_S, most)
        for one, error in bad:
            if one.id not in new:  # too many are set aside, or another host has logged it
                continue
            log.error(
                "job_set_aside",
                job=_shown(one.id),
                topic=one.level.topic,
                sqlstate=error.sqlstate,
                error=error.message,
            )

    async def run(self) -> None:
        """Try jobs that are set aside, until cancelled."""
        while True:
            try:
                is_done = await self.try_next()
            except UnavailableError:
                is_done = False  # the claim loop fails likewise, and logs it
            if not is_done:
                await anyio.sleep(TRY_S)

    async def try_next(self) -> bool:
        """Try the next one; returns whether it is settled, so that another may be tried at once."""
        found = await self._aside.next(TRY_S)
        if found is None:
            return False
        if found.suspect is None:
            return await self._forget(found)
        async with self._in_doubt.claiming():
            topic, able = found.suspect.level.topic, self._registry.with_room(again=True)
            serving = next((one for one in able if topic in one.topics), None)
            if serving is None:
                return False  # another host tries it, or there is room later
            try:
                claimed = await self._handout.claim_these(serving.plan(1), *_these([found.suspect]))
            except ClaimRefusedError as error:
                await self._aside.add([(found.id, error.refusal)], TRY_S)
                return False
        if claimed:
            await self._aside.readmit_like(found.sqlstate)
        is_let_go = claimed or found.statement not in CLAIMS  # a job whose other statement was refused is retried there
        if is_let_go:
            await self._aside.readmit([found.id])
            log.info("job_readmitted", job=_shown(found.id))
            self._signal.wake()  # it may be before all cursors
        return is_let_go

    async def _forget(self, found: SetAside) -> bool:
        """Stop trying a job that no claim takes: expiry handles expired ones; of running ones the report may be bad."""
        if found.status == "RUNNING" and found.statement not in CLAIMS:
            return False
        await self._aside.readmit([found.id])
        return True


class _RefusedSearch:
    """One search, by halves."""

    def __init__(self, handout: Handout, registry: WorkerRegistry, plan: ClaimPlan) -> None:
        self._handout = handout
        self._registry = registry
        self._topics = frozenset(plan.topics)
        self._is_over = False  # there is no more room, or enough was found
        self.has_claimed = False
        self.bad: list[tuple[Suspect, StatementError]] = []

    async def through(self, suspects: Sequence[Suspect]) -> None:
        """Claim these until there is no more room, or so many are refused that single jobs are hardly the cause."""
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
        """Whether jobs from different places were refused one by one, and none was accepted."""
        if self.has_claimed:
            return False
        bad = {one.id for one, _ in self.bad}
        others = spread([one for one in suspects if one.id not in bad])[:IN_VAIN]
        for one in others:
            if await self._refusal([one]) is None:
                return False
        return bool(others) or len(self.bad) >= IN_VAIN

    async def _refusal(self, suspects: Sequence[Suspect]) -> StatementError | None:
        """Claim these; returns why the database refuses. None: it does not, or there is no room."""
        able = self._registry.with_room(again=True)
        plan = next((one.plan(len(suspects)) for one in able if self._topics.issubset(one.topics)), None)
        if plan is None or len(plan.seats) < len(suspects):
            self._is_over = True
            return None
        try:
            self.has_claimed |= await self._handout.claim_these(plan, *_these(suspects))
        except ClaimRefusedError as error:
            return error.refusal
        return None


def _these(suspects: Sequence[Suspect]) -> tuple[list[tuple[GroupLevel, float]], list[bytes]]:
    """Where a claim of these begins, and their ids."""
    begins: dict[Level | GroupLevel, float] = {}
    for one in suspects:
        begins[one.level] = min(begins.get(one.level, one.due_s), one.due_s)
    levels = sorted(begins, key=lambda level: -level.priority)
    starts = [
        (
            level if isinstance(level, GroupLevel) else GroupLevel(level.topic, None, level.priority),
            begins[level] - ROUNDED_S,
        )
        for level in levels
    ]
    return starts, [one.id for one in suspects]


def _shown(job: bytes) -> str:
    return str(UUID(bytes=job))
