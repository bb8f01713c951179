"""
Expiry: jobs that were not started by ``expires_at`` become dead letters.

The claim leaves them alone from that moment on, so this only has to be soon. An index of its own holds the jobs that
may expire: a look that finds none costs next to nothing.
"""

from __future__ import annotations

from typing import Final

import anyio
import structlog

from pulse.store.store import Store
from pulse_actors.runtime import until_available

LOOK_S: Final = 1.0
LIMIT: Final = 1000  # jobs of one statement: some 50 ms

log = structlog.get_logger()


async def expire(store: Store) -> None:
    """
    Give up late jobs until cancelled.

    Args:
        store: The database.
    """
    expired = 0
    while True:
        some = await until_available(lambda: store.expire(LIMIT), "expiry")
        expired += some
        if some < LIMIT:
            if expired:
                log.warning("jobs_expired", count=expired)
            expired = 0
            await anyio.sleep(LOOK_S)
