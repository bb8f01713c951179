"""Logs and audits requests that a peer may not make, once a minute for each account and kind."""

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
    The refused requests.

    Args:
        store: Writes the audit.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._refused = Refused()

    def due(self, operator: Operator, kind: str) -> int | None:
        """Count a refused request; returns how many to record now, None: it is too early."""
        return self._refused.count((str(operator.uid), operator.user or "", kind), time.monotonic())

    async def note(self, operator: Operator, kind: str, needed: Access, times: int) -> None:
        """Record that *operator* lacks the role *needed*; while the database is away only in the log."""
        log.warning("forbidden", kind=kind, needs=needed.value, uid=operator.uid, user=operator.user, times=times)
        try:
            async with self._store.acting(operator) as acting:
                await acting.note(ACTION, detail={"kind": kind, "needs": needed.value, "times": times})
        except UnavailableError as error:
            log.warning("action_not_noted", action=ACTION, uid=operator.uid, detail={"kind": kind}, error=error.message)
