"""
pulse: a job queue on PostgreSQL for Python.

What users import is here, and nothing else is; modules are loaded when the first of their names is asked for, so that
``import pulse`` in a program that only declares handlers stays light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pulse.answers import Changed, JobPage, SchedulePage, Stack
    from pulse.app import App
    from pulse.blocking import Client
    from pulse.client import AsyncClient, connect
    from pulse.codec import Codec
    from pulse.context import Context, Previous
    from pulse.errors import (
        BadRequestError,
        ConflictError,
        ForbiddenError,
        HandlerError,
        InvalidTransitionError,
        NobodyAnswersError,
        NotFoundError,
        PulseError,
        RefusedError,
        TooLargeError,
        UnauthorizedError,
        UnavailableError,
    )
    from pulse.handlers import Handler
    from pulse.job import HistoryEntry, Job, Schedule, Status
    from pulse.outcome import Discard, RetryAfter, Snooze
    from pulse.requests import JobOptions, NewJob, TopicOptions
    from pulse.schedule_requests import ScheduleOptions
    from pulse.stats import Stats, TopicStats
    from pulse.why import Reason, Why

__all__ = [
    "App",
    "AsyncClient",
    "BadRequestError",
    "Changed",
    "Client",
    "Codec",
    "ConflictError",
    "Context",
    "Discard",
    "ForbiddenError",
    "Handler",
    "HandlerError",
    "HistoryEntry",
    "InvalidTransitionError",
    "Job",
    "JobOptions",
    "JobPage",
    "NewJob",
    "NobodyAnswersError",
    "NotFoundError",
    "Previous",
    "PulseError",
    "Reason",
    "RefusedError",
    "RetryAfter",
    "Schedule",
    "ScheduleOptions",
    "SchedulePage",
    "Snooze",
    "Stack",
    "Stats",
    "Status",
    "TooLargeError",
    "TopicOptions",
    "TopicStats",
    "UnauthorizedError",
    "UnavailableError",
    "Why",
    "connect",
]

_MODULES: Final = {
    "pulse.answers": ("Changed", "JobPage", "SchedulePage", "Stack"),
    "pulse.app": ("App",),
    "pulse.blocking": ("Client",),
    "pulse.client": ("AsyncClient", "connect"),
    "pulse.codec": ("Codec",),
    "pulse.context": ("Context", "Previous"),
    "pulse.errors": (
        "BadRequestError",
        "ConflictError",
        "ForbiddenError",
        "HandlerError",
        "InvalidTransitionError",
        "NobodyAnswersError",
        "NotFoundError",
        "PulseError",
        "RefusedError",
        "TooLargeError",
        "UnauthorizedError",
        "UnavailableError",
    ),
    "pulse.handlers": ("Handler",),
    "pulse.job": ("HistoryEntry", "Job", "Schedule", "Status"),
    "pulse.outcome": ("Discard", "RetryAfter", "Snooze"),
    "pulse.requests": ("JobOptions", "NewJob", "TopicOptions"),
    "pulse.schedule_requests": ("ScheduleOptions",),
    "pulse.stats": ("Stats", "TopicStats"),
    "pulse.why": ("Reason", "Why"),
}
_HOMES: Final = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name == "__version__":
        return importlib.import_module("pulse.version").VERSION
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'pulse' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
