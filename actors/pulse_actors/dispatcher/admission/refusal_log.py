"""What somebody asked who may not: to the log and the audit, once a minute for each account and kind."""

from __future__ import annotations

import time
from typing import Final

import structlog

from pulse.errors import UnavailableError
from pulse.protocol.roles import Access
from pulse.security.log_throttle import Refused
from pulse.store.operators.transaction import Operator
from pulse.store.store import Store

ACTION: Final = "forbidden"

log = structlog.get_logger()


class RefusalLog:
    """
    The book of refusals.

    Args:
        store: Where the audit is.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._refused = Refused()

    def due(self, operator: Operator, kind: str) -> int | None:
        """*operator* asked for *kind* and may not; how often since that was noted last, where it is to be noted now."""
        return self._refused.count((str(operator.uid), operator.user or "", kind), time.monotonic())

    async def note(self, operator: Operator, kind: str, needed: Access, times: int) -> None:
        """Write down that *operator* lacks the role *needed*; while the database is away only the log knows."""
        log.warning("forbidden", kind=kind, needs=needed.value, uid=operator.uid, user=operator.user, times=times)
        try:
            async with self._store.acting(operator) as acting:
                await acting.note(ACTION, detail={"kind": kind, "needs": needed.value, "times": times})
        except UnavailableError as error:
            log.warning("action_not_noted", action=ACTION, uid=operator.uid, detail={"kind": kind}, error=error.message)
