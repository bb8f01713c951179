"""
Jobs that tell of other jobs: of their dead letters, and of the deaths of workers under them.

Nobody may be alive who could call a function then, so the server submits a job in the very transaction that ends the
attempt, and a worker that serves the app runs it like any other.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from pulse.app.hooks.functions import check_function, shown
from pulse.errors import HandlerError

__all__ = ["FailedJob", "event_name"]

_PARAMETER = "job"
_MAX_NAME = 200  # as of every job


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedJob:
    """
    What functions of ``App.on_dead_letter`` and ``App.on_crash`` get.

    Attributes:
        id: Of the job.
        name: Its handler.
        topic: Where it waited.
        attempt: The attempt that ended so; 0: it expired before its start.
        outcome: How: ``error``, ``discarded``, ``timeout``, ``crashed``, ``expired`` ..., as in its history.
        error: Of that attempt, at most 10,000 characters.
    """

    id: UUID
    name: str
    topic: str
    attempt: int
    outcome: str
    error: str


def event_name(event: str, function: Callable[..., object]) -> str:
    """
    The name of the jobs that call *function*.

    Raises:
        HandlerError: It is no function, or has no parameter ``job``.
    """
    check_function(event, function, "a handler")
    try:
        takes_job = _PARAMETER in inspect.signature(function).parameters
    except (TypeError, ValueError):
        takes_job = False
    if not takes_job:
        raise HandlerError(f"{event}: {shown(function)} has other parameters; write (job: pulse.FailedJob)")
    return f"{event}:{function.__module__}.{shown(function)}"[:_MAX_NAME]
