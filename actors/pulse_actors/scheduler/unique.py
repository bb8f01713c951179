"""
Fires schedules with a unique key, each in a transaction of its own.

An INSERT with a key waits while a transaction is open that has submitted the same key, and all that is in the same
statement waits with it. So such a firing waits a moment at most, and is tried again later. What has no key comes first.
"""

from __future__ import annotations

import uuid
from time import monotonic
from typing import Final

import structlog

from pulse.errors import StatementError, StatementTimeoutError
from pulse.store.operators.schedules import ScheduleStore
from pulse.store.rows import Fired, Firing, NextOccurrences
from pulse_actors.scheduler.catchup import firings_of

LIMIT: Final = 100  # of one look; some thirty fire in TURN_S
TURN_S: Final = 0.1  # then schedules without a key may be due again
BLOCKED_S: Final = 0.25  # until the next try, while a transaction that has submitted the key is open
REFUSED_S: Final = 1.0  # until the next try of one that the database refuses
SOON_S: Final = 0.05  # the same where nothing was fired: another scheduler did, or the key was given away just now

log = structlog.get_logger()


class UniqueFirings:
    """
    Fires what is due and has a unique key.

    Args:
        schedules: The statements about schedules.
    """

    def __init__(self, schedules: ScheduleStore) -> None:
        self._schedules = schedules
        self._later: dict[
            bytes, float
        ] = {}  # schedules that could not be fired, and the monotonic time of the next try

    def later(self) -> list[bytes]:
        """Schedules whose next try is still to come."""
        now_s = monotonic()
        self._later = {one: at_s for one, at_s in self._later.items() if at_s > now_s}
        return list(self._later)

    def again_s(self) -> float | None:
        """Seconds until the next try of any of them; None: there is none."""
        return min(self._later.values()) - monotonic() if self._later else None

    async def fire(self) -> tuple[list[Fired], int, list[NextOccurrences]]:
        """Fire for a moment; returns what fired, how many passed over older ones, and what cannot be computed."""
        fired, passed = list[Fired](), 0
        firings, stuck = firings_of(await self._schedules.due(LIMIT, unique=True, without=self.later()))
        end_s = monotonic() + TURN_S
        for firing in firings:
            one = await self._fire(firing)
            if one is not None:
                fired.append(one)
                passed += firing.passed
            if monotonic() > end_s:
                break
        return fired, passed, stuck

    async def _fire(self, firing: Firing) -> Fired | None:
        fired = None
        try:
            fired, wait_s = await self._schedules.fire_unique(firing), SOON_S
        except StatementTimeoutError:
            wait_s = BLOCKED_S
        except StatementError as error:
            wait_s = REFUSED_S
            schedule = str(uuid.UUID(bytes=firing.schedule_id))
            log.error("schedule_refused", schedule=schedule, sqlstate=error.sqlstate, error=error.message)  # noqa: TRY400 - told
        if fired is None:
            self._later[firing.schedule_id] = monotonic() + wait_s
        return fired
