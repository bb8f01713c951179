"""
pulse: a job queue on PostgreSQL for Python.

The public names are here; a module is loaded when the first of its names is used, so that
``import pulse`` in a program that only declares handlers stays light.

- app: for authors of handlers: app, handler, context, outcome
- bridge: makes jobs of the messages of a broker
- cli: the command line
- client: clients, asynchronous and blocking
- common: small pure helpers
- config: the settings, their defaults, and where each value comes from
- contrib: integrations with other packages
- encryption: `FernetCodec`, a ready codec
- errors: every error that pulse raises on purpose
- job: a job, a schedule, and the table of transitions between statuses
- limit: limits of jobs: their options, and what clients get of them
- logs: configures logging
- ops: what command line and dashboard share: doctor, metrics, the demonstration
- protocol: the wire: frames and messages
- queues: clients of several queues
- routes: which queue a topic belongs to
- security: TLS, passwords, grants, the codec, redaction
- sql: submits jobs on a connection of the caller's own
- store: the database: statements and connections
- system: Linux: processes, directories, sockets, logs
- testing: fixtures and helpers for tests of applications
- ui: the dashboard
- worker: the pool parent and its handler processes
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pulse import sql
    from pulse.app.app import App
    from pulse.app.call import Call, call
    from pulse.app.context import BatchJob, Context, Previous, current
    from pulse.app.handler import Handler
    from pulse.app.hooks.failed_job import FailedJob
    from pulse.app.hooks.lifespan import provided
    from pulse.app.hooks.middleware import CallNext
    from pulse.app.outcome import Discard, RetryAfter, Snooze
    from pulse.client.async_client import AsyncClient, connect
    from pulse.client.batch import Batch
    from pulse.client.client import Client
    from pulse.client.control_requests import TopicOptions
    from pulse.client.records import Changed, JobPage, LimitPage, Reason, SchedulePage, Stack, Why
    from pulse.client.requests import JobOptions, NewJob
    from pulse.client.schedule_requests import ScheduleOptions
    from pulse.common.ids import JobId
    from pulse.config import load_routes
    from pulse.errors import (
        BadRequestError,
        ConflictError,
        ForbiddenError,
        HandlerError,
        InvalidTransitionError,
        NobodyAnswersError,
        NoHandlerError,
        NotFoundError,
        PulseError,
        RefusedError,
        ResultError,
        StaleAttemptError,
        TooLargeError,
        TransactionError,
        UnauthorizedError,
        UnavailableError,
        UnhandledNameWarning,
    )
    from pulse.job import HistoryEntry, Job, Schedule, Signal, Status
    from pulse.limit import Limit, LimitOptions
    from pulse.protocol.stats import Stats, TopicStats
    from pulse.queues.async_queues import AsyncQueues
    from pulse.queues.queues import Queues
    from pulse.routes import Routes
    from pulse.security.codec import Codec

__all__ = [
    "App",
    "AsyncClient",
    "AsyncQueues",
    "BadRequestError",
    "Batch",
    "BatchJob",
    "Call",
    "CallNext",
    "Changed",
    "Client",
    "Codec",
    "ConflictError",
    "Context",
    "Discard",
    "FailedJob",
    "ForbiddenError",
    "Handler",
    "HandlerError",
    "HistoryEntry",
    "InvalidTransitionError",
    "Job",
    "JobId",
    "JobOptions",
    "JobPage",
    "Limit",
    "LimitOptions",
    "LimitPage",
    "NewJob",
    "NoHandlerError",
    "NobodyAnswersError",
    "NotFoundError",
    "Previous",
    "PulseError",
    "Queues",
    "Reason",
    "RefusedError",
    "ResultError",
    "RetryAfter",
    "Routes",
    "Schedule",
    "ScheduleOptions",
    "SchedulePage",
    "Signal",
    "Snooze",
    "Stack",
    "StaleAttemptError",
    "Stats",
    "Status",
    "TooLargeError",
    "TopicOptions",
    "TopicStats",
    "TransactionError",
    "UnauthorizedError",
    "UnavailableError",
    "UnhandledNameWarning",
    "Why",
    "call",
    "connect",
    "current",
    "load_routes",
    "provided",
    "sql",
]

_MODULES: Final = {
    "pulse.client.records": ("Changed", "JobPage", "LimitPage", "Reason", "SchedulePage", "Stack", "Why"),
    "pulse.app.app": ("App",),
    "pulse.app.call": ("Call", "call"),
    "pulse.client.batch": ("Batch",),
    "pulse.client.client": ("Client",),
    "pulse.client.async_client": ("AsyncClient", "connect"),
    "pulse.security.codec": ("Codec",),
    "pulse.app.context": ("BatchJob", "Context", "Previous", "current"),
    "pulse.app.hooks.failed_job": ("FailedJob",),
    "pulse.app.hooks.lifespan": ("provided",),
    "pulse.app.hooks.middleware": ("CallNext",),
    "pulse.errors": (
        "BadRequestError",
        "ConflictError",
        "ForbiddenError",
        "HandlerError",
        "InvalidTransitionError",
        "NoHandlerError",
        "NobodyAnswersError",
        "NotFoundError",
        "PulseError",
        "RefusedError",
        "ResultError",
        "StaleAttemptError",
        "TooLargeError",
        "TransactionError",
        "UnauthorizedError",
        "UnavailableError",
        "UnhandledNameWarning",
    ),
    "pulse.app.handler": ("Handler",),
    "pulse.job": ("HistoryEntry", "Job", "Schedule", "Signal", "Status"),
    "pulse.limit": ("Limit", "LimitOptions"),
    "pulse.app.outcome": ("Discard", "RetryAfter", "Snooze"),
    "pulse.client.control_requests": ("TopicOptions",),
    "pulse.client.requests": ("JobOptions", "NewJob"),
    "pulse.client.schedule_requests": ("ScheduleOptions",),
    "pulse.common.ids": ("JobId",),
    "pulse.protocol.stats": ("Stats", "TopicStats"),
    "pulse.config": ("load_routes",),
    "pulse.queues.async_queues": ("AsyncQueues",),
    "pulse.queues.queues": ("Queues",),
    "pulse.routes": ("Routes",),
    "pulse.sql": ("sql",),
}
_HOMES: Final = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name == "__version__":
        return importlib.import_module("pulse.common.version").VERSION
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'pulse' has no attribute {name!r}")
    module = importlib.import_module(home)
    value = module if home == f"{__name__}.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return ["__version__", *__all__]
