"""
The scheduler: fires due schedules, each occurrence once, and sleeps to the next one.

Any number of schedulers may run. Each statement is complete in itself, so if one dies between any two, another finds in
the rows what is left: due schedules, times that must be computed, held jobs.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from time import monotonic
from typing import Final

import anyio
import structlog

from pulse.errors import StatementError
from pulse.protocol.bus import CanceledJobs, HintEvent, ReadyJobs, hint
from pulse.store.failures import IN_VAIN
from pulse.store.operators.schedules import SCHEDULES_CHANNEL
from pulse.store.rows import Due, Fired, Firing, NextOccurrences, Work
from pulse.store.store import Store
from pulse_actors.runtime.actor import Runtime, Turn, TurnResult, database_status
from pulse_actors.runtime.bus import Hint
from pulse_actors.runtime.pg_listen import listen
from pulse_actors.scheduler.catchup import firings_of, reckoned_of
from pulse_actors.scheduler.unique import UniqueFirings
from pulse_actors.shared.row_writes import spread

FIRE_LIMIT: Final = 500  # of one statement; repeated until none is due
RECKON_LIMIT: Final = 100  # 10 ms of the cron library if all differ: due schedules wait no longer meanwhile
LOOK_S: Final = 1.0  # schedules that SQL or another host changed are noticed within it; changes by this host at once
WAIT_S: Final = 0.25  # while jobs are held back: no notification comes when the earlier job ends
SOON_S: Final = 0.01  # the same after one was released: the short jobs of a queue end soon
MIN_PAUSE_S: Final = 0.001
TURN_S: Final = 5.0  # then the next turn goes on: an unfinished turn of 30 s looks stuck to the supervisor
HINT_JOBS: Final = 50  # ids in one hint, which has 4 KiB

log = structlog.get_logger()


class Scheduler:
    """
    Fires schedules.

    Args:
        store: The database, whose clock says what is due.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._schedules = store.schedules
        self._unique = UniqueFirings(store.schedules)
        self._ready = False
        self._wait_s = WAIT_S
        self._canceled: list[bytes] = []
        self._refused: dict[bytes, None] = {}  # schedules in the order of their tries: all others come before them
        self._in_vain = 0  # in one firing: schedules that were refused one by one before one succeeded

    async def prime(self, *, boot: bool) -> None:
        """Check that schedules can be read; compute those with an error again."""
        del boot
        await self._schedules.retry_stuck()

    async def turn(self, turn: Turn) -> TurnResult:
        """Fire all that is due and compute what comes after; then pause until the next."""
        end_s = turn.now_s + TURN_S
        work, in_vain = await self._look(), False
        if work.waiting:
            await self._release()
        while (_is_due(work) or work.reckon) and monotonic() <= end_s:
            if not _is_due(work):
                await self._reckon()
            elif not await self._fire():  # due schedules are refused: try later
                if work.reckon:
                    await self._reckon()
                in_vain = True
                break
            work = await self._look()
        if work.unique_s is not None and work.unique_s <= 0:
            await self._fire_unique()
            work = await self._look()
        return TurnResult(_pause_s(work, self._wait_s, self._unique.again_s(), in_vain=in_vain), self._hints())

    async def _look(self) -> Work:
        return await self._schedules.work(without=self._unique.later())

    async def _fire_unique(self) -> None:
        fired, passed, stuck = await self._unique.fire()
        await self._note(stuck)
        if fired:
            self._tell(fired, passed)

    async def _release(self) -> None:
        released = False
        try:
            released = bool(await self._schedules.release(FIRE_LIMIT))
        except StatementError as error:  # due schedules fire all the same
            log.error("release_refused", sqlstate=error.sqlstate, error=error.message)  # noqa: TRY400 - told
        self._ready |= released
        self._wait_s = SOON_S if released else min(WAIT_S, 2 * self._wait_s)

    async def _fire(self) -> bool:
        """Fire due schedules; returns whether any was fired."""
        firings, stuck = firings_of(await self._due())
        await self._note(stuck)
        refused = list[Firing]()
        self._in_vain = 0
        fired = await self._fire_readable(spread(firings), refused) if firings else []
        if firings and len(refused) < len(firings):
            self._tell(fired, sum(firing.passed for firing in firings if firing not in refused))
        return not refused or len(refused) < len(firings) or bool(stuck)

    async def _due(self) -> list[Due]:
        """Due schedules that were not refused; without any, the refused ones, the longest untried first."""
        due = {one.id: one for one in await self._schedules.due(FIRE_LIMIT + len(self._refused))}
        self._refused = {one: None for one in self._refused if one in due}
        others = [due[one] for one in due if one not in self._refused]
        return (others or [due[one] for one in self._refused])[:FIRE_LIMIT]

    async def _fire_readable(self, firings: Sequence[Firing], refused: list[Firing]) -> list[Fired]:
        """Fire these; if the database refuses that, in halves, until the refused one is alone: it is left out."""
        if self._in_vain >= IN_VAIN:  # the next turn goes on after those
            refused += firings
            return []
        try:
            fired = await self._schedules.fire(firings)
        except StatementError as error:
            if len(firings) == 1:
                self._in_vain += 1
                self._refused.pop(firings[0].schedule_id, None)
                self._refused[firings[0].schedule_id] = None
                schedule = str(uuid.UUID(bytes=firings[0].schedule_id))
                log.error("schedule_refused", schedule=schedule, sqlstate=error.sqlstate, error=error.message)  # noqa: TRY400 - told
                refused += firings
                return []
        else:
            self._in_vain = -FIRE_LIMIT  # from here on a refused schedule is the cause of its own refusal
            for firing in firings:
                self._refused.pop(firing.schedule_id, None)
            return fired
        middle = len(firings) // 2
        fired = await self._fire_readable(firings[:middle], refused)
        return fired + await self._fire_readable(firings[middle:], refused)

    def _tell(self, fired: list[Fired], passed: int) -> None:
        self._ready |= any(one.verdict in {"fired", "replaced"} and one.level is not None for one in fired)
        self._canceled += [one.canceled for one in fired if one.canceled is not None]
        verdicts = [one.verdict for one in fired]
        log.info(
            "schedules_fired",
            jobs=sum(one.level is not None and one.verdict != "replaced" for one in fired),
            **{verdict: verdicts.count(verdict) for verdict in sorted({*verdicts} - {"fired"})},
            **({"passed_over": passed} if passed else {}),
        )

    async def _reckon(self) -> None:
        await self._note([reckoned_of(one) for one in await self._schedules.unreckoned(RECKON_LIMIT)])

    async def _note(self, reckoned: list[NextOccurrences]) -> None:
        for one in reckoned:
            if one.error is not None:
                log.warning("schedule_stuck", schedule=str(uuid.UUID(bytes=one.schedule_id)), error=one.error)
        if reckoned:
            await self._schedules.reckon(reckoned)

    def _hints(self) -> tuple[Hint, ...]:
        ids = [str(uuid.UUID(bytes=one)) for one in self._canceled]
        hints = [
            hint("dispatcher", HintEvent.CANCELED, CanceledJobs(ids[at : at + HINT_JOBS]))
            for at in range(0, len(ids), HINT_JOBS)
        ]
        if self._ready:
            hints.append(hint("dispatcher", HintEvent.READY, ReadyJobs()))
        self._ready, self._canceled = False, []
        return tuple(hints)

    async def status(self) -> dict[str, object]:
        """Whether the database is there."""
        return {"database": await database_status(self._store)}


def _is_due(work: Work) -> bool:
    return work.due_s is not None and work.due_s <= 0


def _pause_s(work: Work, wait_s: float, again_s: float | None = None, *, in_vain: bool = False) -> float:
    """How long there is nothing to do; *in_vain*: what is due without a key was refused."""
    if work.reckon and not in_vain:
        return MIN_PAUSE_S
    longest_s = wait_s if work.waiting and not in_vain else LOOK_S
    due = [due_s for due_s in (None if in_vain else work.due_s, work.unique_s, again_s) if due_s is not None]
    return min([longest_s, *(max(MIN_PAUSE_S, due_s) for due_s in due)])


async def scheduler(runtime: Runtime) -> None:
    """The scheduler's main part."""
    actor = Scheduler(runtime.store)
    await runtime.prime(actor)

    def changed(_text: str = "") -> None:
        runtime.nudge(hint("scheduler", HintEvent.SCHEDULES_CHANGED))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listen, runtime.store.query.target, {SCHEDULES_CHANNEL: changed}, changed)
        await runtime.loop(actor)
        tasks.cancel_scope.cancel()
