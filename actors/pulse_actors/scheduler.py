"""The scheduler: fires due schedules, each occurrence once, and sleeps to the next one."""

from __future__ import annotations

import uuid
from typing import Final

import structlog

from pulse.store.rows import Due, Firing, Wake
from pulse.store.store import Store
from pulse_actors.bus import Hint
from pulse_actors.recurrence import Recurrence
from pulse_actors.runtime import Runtime, Turn, TurnResult, database_status

FIRE_LIMIT: Final = 500  # of one statement; repeated until none is due
LOOK_S: Final = 2.0  # schedules that SQL or another host changed are seen within that; what this host changes is told
MIN_PAUSE_S: Final = 0.001

log = structlog.get_logger()


class Scheduler:
    """
    Fires schedules.

    Args:
        store: The database, whose clock says what is due.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    async def prime(self, *, boot: bool) -> None:
        """See that schedules can be read."""
        del boot
        await self._store.schedules.next_due_s()

    async def turn(self, turn: Turn) -> TurnResult:
        """Fire all that is due; then pause to the next."""
        del turn
        woken: set[str] = set()
        while True:
            due = await self._store.schedules.due(FIRE_LIMIT)
            if due:
                wakes = await self._fire(due)
                woken.update(wake.topic for wake in wakes)
            if len(due) < FIRE_LIMIT:
                break
        due_s = await self._store.schedules.next_due_s()
        pause_s = LOOK_S if due_s is None else min(LOOK_S, max(MIN_PAUSE_S, due_s))
        return TurnResult(pause_s, (Hint("dispatcher", "ready"),) if woken else ())

    async def _fire(self, due: list[Due]) -> list[Wake]:
        wakes = await self._store.schedules.fire([firing_of(one) for one in due])
        log.info("schedules_fired", due=len(due), jobs=len(wakes))
        return wakes

    async def status(self) -> dict[str, object]:
        """Whether the database is there."""
        return {"database": await database_status(self._store)}


def firing_of(due: Due) -> Firing:
    """The occurrence that *due* stands for, and the one after it."""
    recurrence = Recurrence.stored(due)
    job = uuid.uuid5(uuid.UUID(bytes=due.id), str(due.cursor_us))
    return Firing(due.id, due.cursor_us, recurrence.after(due.cursor_us, due.now_us), job.bytes)


async def scheduler(runtime: Runtime) -> None:
    """The scheduler's main part."""
    actor = Scheduler(runtime.store)
    await runtime.prime(actor)
    await runtime.loop(actor)
