"""
Expiry: jobs that were not started by ``expires_at`` become dead letters.

Claims leave them alone from that moment on, so this only has to be soon. A partial index holds the jobs that may
expire: a look that finds none costs next to nothing.

A job that the database refuses to expire is set aside, and the others go on. If every job is refused, the jobs are
hardly the cause: then there is a pause. Some are set aside all the same, since good ones may follow them.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Final

import anyio
import structlog

from pulse.errors import StatementError, UnavailableError
from pulse.store.failures import IN_VAIN
from pulse.store.store import Store
from pulse.system.failure_log import FailureLog
from pulse_actors.runtime.actor import until_available
from pulse_actors.shared.failures import expired_jobs
from pulse_actors.shared.row_writes import MOST_BLAMED

LOOK_S: Final = 1.0
LIMIT: Final = 1000  # jobs of one statement: some 50 ms
NARROWER: Final = 8  # so many times fewer jobs per statement if one of them is refused
LATER_S: Final = 60.0  # for so long, so that the jobs after them have their turn, IN_VAIN in a second or so
MARGIN_S: Final = 1.0  # to look back further than a lost answer: rather a line twice than none

log = structlog.get_logger()


async def expire(store: Store, failures: FailureLog) -> None:
    """Expire late jobs until cancelled; *failures* learns of each."""
    expired, limit, sweep = 0, LIMIT, _Sweep(store, failures)
    while True:
        some = await until_available(partial(sweep.some, limit), "expiry")
        if some is None:
            limit = max(1, limit // NARROWER)
            continue
        expired += some
        if some < limit and limit == LIMIT:
            if expired:
                log.warning("jobs_expired", count=expired)
            expired = 0
            await anyio.sleep(LOOK_S)
        limit = min(LIMIT, limit * NARROWER)


class _Sweep:
    """Expires jobs, and finds those that are refused."""

    def __init__(self, store: Store, failures: FailureLog) -> None:
        self._store = store
        self._failures = failures
        self._aside = store.aside
        self._is_in_vain = False
        self._unheard_since_s: float | None = None  # a statement without an answer may have been committed

    async def some(self, limit: int) -> int | None:
        """
        Expire *limit* jobs; returns how many. None: some are refused, and are set aside if single jobs are the cause.

        Raises:
            UnavailableError: The database is away, or refuses every job.
        """
        await self._note_unheard()
        refused = 0
        while True:
            asked_s = time.monotonic()
            try:
                expired = await self._store.expire(limit)
            except StatementError as error:
                if limit > 1:
                    return None
                await self._blame(error)
                refused += 1
                if refused >= IN_VAIN:
                    self._is_in_vain = True
                    raise
            except UnavailableError:
                self._unheard_since_s = asked_s
                raise
            else:
                self._is_in_vain = False
                self._failures.note(expired_jobs(expired))
                return len(expired)

    async def _note_unheard(self) -> None:
        if self._unheard_since_s is not None:
            expired = await self._store.expired_within(time.monotonic() - self._unheard_since_s + MARGIN_S)
            self._unheard_since_s = None
            self._failures.note(expired_jobs(expired))

    async def _blame(self, error: StatementError) -> None:
        job = await self._aside.first_late()
        if job is None:
            raise error
        pause_s, most = (LATER_S, MOST_BLAMED) if self._is_in_vain else (LOOK_S, None)
        await self._aside.add([(job, error)], pause_s, most)
