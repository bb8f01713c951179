"""
Long answers: one at a time. The next one is for the peer with the fewest requests waiting or under way.

While others wait, each answer is followed by a rest as long as it took, in which other requests are served.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator
from typing import Final

import anyio

from pulse.common.waiting import Turns
from pulse.errors import UnavailableError
from pulse.store.connections.pool import STATEMENT_DEADLINE_S
from pulse_actors.dispatcher.admission.request_limits import LONGEST_REST_S, WORK_SHARE
from pulse_actors.shared.duty_cycle import rest_s

LONG: Final = frozenset(
    {
        "audit.list",
        "jobs.count",
        "jobs.errors",
        "jobs.list",
        "jobs.parents",
        "handler.parents",
        "schedules.list",
        "topics.groups",
    }
)  # fmt: skip
WAIT_S: Final = STATEMENT_DEADLINE_S  # for a turn: as long as for a connection to the database


class ListQueue:
    """The queue of long answers; ASKER holds the peer of the current request."""

    def __init__(self) -> None:
        self._turns = Turns(1)
        self._opens_s = 0.0

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncGenerator[None]:
        """
        A turn for the block.

        Raises:
            UnavailableError: Too many came before.
        """
        async with contextlib.AsyncExitStack() as stack:
            try:
                with anyio.fail_after(WAIT_S):
                    await stack.enter_async_context(self._turns.turn())
            except TimeoutError:
                raise UnavailableError(f"no turn within {WAIT_S:g} s: many ask for long lists") from None
            await anyio.sleep(max(0.0, self._opens_s - time.monotonic()))
            began_s = time.monotonic()
            try:
                yield
            finally:
                ended_s = time.monotonic()
                pause_s = rest_s(ended_s - began_s, WORK_SHARE, LONGEST_REST_S) if self._turns.waiting else 0.0
                self._opens_s = ended_s + pause_s
