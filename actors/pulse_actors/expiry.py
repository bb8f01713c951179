"""
Expiry: jobs that were not started by ``expires_at`` become dead letters.

The claim leaves them alone from that moment on, so this only has to be soon. An index of its own holds the jobs that
may expire: a look that finds none costs next to nothing.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import anyio
import structlog

from pulse.errors import StatementError
from pulse.store.store import Store
from pulse_actors.runtime import until_available

LOOK_S: Final = 1.0
LIMIT: Final = 1000  # jobs of one statement: some 50 ms
NARROWER: Final = 8  # times, is a statement for jobs one of which is refused

log = structlog.get_logger()


async def expire(store: Store) -> None:
    """
    Give up late jobs until cancelled.

    Args:
        store: The database.
    """
    expired, limit = 0, LIMIT
    while True:
        some = await until_available(partial(_some, store, limit), "expiry")
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


async def _some(store: Store, limit: int) -> int | None:
    """Expire *limit* jobs; how many were. None: one of them is refused; one alone is set aside then."""
    try:
        return await store.expire(limit)
    except StatementError as error:
        if limit > 1:
            return None
        job = await store.aside.first_late()
        if job is None:
            raise
        await store.aside.add([(job, error)], LOOK_S)
        return 0
