"""The scheduler: fires due schedules, each occurrence once, and sleeps to the next one."""

from __future__ import annotations

import time
import uuid
from typing import Final

import structlog

from pulse.errors import BadRequestError
from pulse.store.rows import Due, Firing
from pulse.store.store import Store
from pulse_actors.bus import Hint
from pulse_actors.recurrence import Recurrence
from pulse_actors.runtime import Runtime, Turn, TurnResult, database_status

FIRE_LIMIT: Final = 500  # of one statement; repeated until none is due
LOOK_S: Final = 2.0  # schedules that SQL or another host changed are seen within that; what this host changes is told
MIN_PAUSE_S: Final = 0.001
TURN_S: Final = 5.0  # then the next turn goes on: an unfinished turn of 30 s looks stuck to the supervisor

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
        fired, stuck, more = 0, False, True
        while more:
            due = await self._store.schedules.due(FIRE_LIMIT)
            firings = [firing for one in due if (firing := _firing_or_none(one)) is not None]
            stuck = len(firings) < len(due)
            fired += await self._fire(firings)
            more = len(due) == FIRE_LIMIT and bool(firings)
            if time.monotonic() - turn.now_s > TURN_S:
                break
        due_s = await self._store.schedules.next_due_s()
        pause_s = LOOK_S if due_s is None or stuck else min(LOOK_S, max(MIN_PAUSE_S, due_s))
        return TurnResult(pause_s, (Hint("dispatcher", "ready"),) if fired else ())

    async def _fire(self, firings: list[Firing]) -> int:
        if not firings:
            return 0
        wakes = await self._store.schedules.fire(firings)
        log.info("schedules_fired", due=len(firings), jobs=len(wakes))
        return len(wakes)

    async def status(self) -> dict[str, object]:
        """Whether the database is there."""
        return {"database": await database_status(self._store)}


def _firing_or_none(due: Due) -> Firing | None:
    """None where it cannot be reckoned, which must not stop the others: a row made by hand, a zone that tzdata lost."""
    try:
        return firing_of(due)
    except BadRequestError as error:
        log.warning("schedule_stuck", schedule=str(uuid.UUID(bytes=due.id)), error=error.message)
        return None


def firing_of(due: Due) -> Firing:
    """
    The occurrence that *due* stands for, and the one after it.

    Raises:
        BadRequestError: Its rule cannot be followed.
    """
    recurrence = Recurrence.stored(due)
    job = uuid.uuid5(uuid.UUID(bytes=due.id), str(due.cursor_us))
    return Firing(due.id, due.cursor_us, recurrence.after(due.cursor_us, due.now_us), job.bytes)


async def scheduler(runtime: Runtime) -> None:
    """The scheduler's main part."""
    actor = Scheduler(runtime.store)
    await runtime.prime(actor)
    await runtime.loop(actor)
