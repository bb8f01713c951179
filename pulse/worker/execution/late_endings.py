"""
Logs how handlers end whose jobs they have completed themselves, by a fenced transaction: nothing of that is stored.

An exception is logged each time, with its traceback, as far as the limit allows. A result that is thrown away is a
mistake in the code of the handler: it is logged once for each handler.
"""

from __future__ import annotations

import time
from typing import Final

import structlog

from pulse.system.failure_log import LineLimit

__all__ = ["note_late"]

MOST: Final = 100  # as of handlers that fail
PERIOD_S: Final = 10.0

log = structlog.get_logger("pulse.worker")
_raised = LineLimit(MOST, PERIOD_S)
_warned: set[str] = set()


def note_late(name: str, value: object) -> None:
    """
    Log what the handler of *name* returned, or raised, after it had completed its job.

    Args:
        name: Of the job.
        value: What it returned, or its exception; None, as it should be, is not logged.
    """
    if isinstance(value, BaseException):
        if _raised.take(1, time.monotonic()):
            log.warning("handler_failed_after_commit", name=name, exc_info=value)
    elif value is not None and name not in _warned:
        _warned.add(name)
        log.warning(
            "result_not_stored", name=name, why="the job was completed before; ctx.complete(result) stores a result"
        )
