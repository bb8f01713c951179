"""
For tests of applications: handlers in memory, a server of its own, and jobs of the test's own transaction.

- clients: `pulse.Client` and `pulse.AsyncClient` over jobs in memory
- dependencies: lets jobs in memory wait for others
- inline: `pulse_inline`: submits jobs to memory and runs their handlers
- matching: finds jobs by handler and arguments, and says what there is instead
- memory: jobs in memory: the statuses that the server would give them
- own_database: for suites with a PostgreSQL of their own: runs jobs inside the test's transaction
- plugin: the fixtures of pytest: `pulse_app`, `pulse_inline`, `pulse_server`
- recording: what a handler reports: progress and checkpoints
- running: one attempt of a handler, in the caller's own thread or task
- server: `pulse_server`: a real server with a worker of the app, empty for each test
- signals: lets jobs in memory wait for signals
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pulse.errors import InlineError
    from pulse.testing.inline import Inline
    from pulse.testing.matching import SubmittedJobs
    from pulse.testing.own_database import run_submitted, run_submitted_async, submitted, submitted_async
    from pulse.testing.recording import InlineJob, RecordingContext
    from pulse.testing.server import PulseServer, running_pulse

__all__ = [
    "Inline",
    "InlineError",
    "InlineJob",
    "PulseServer",
    "RecordingContext",
    "SubmittedJobs",
    "run_submitted",
    "run_submitted_async",
    "running_pulse",
    "submitted",
    "submitted_async",
]

# The plugin is imported in every run of pytest where pulse is installed: nothing else is, until a fixture is used.
_HOMES: Final = {
    "Inline": "pulse.testing.inline",
    "InlineError": "pulse.errors",
    "InlineJob": "pulse.testing.recording",
    "PulseServer": "pulse.testing.server",
    "RecordingContext": "pulse.testing.recording",
    "SubmittedJobs": "pulse.testing.matching",
    "run_submitted": "pulse.testing.own_database",
    "run_submitted_async": "pulse.testing.own_database",
    "running_pulse": "pulse.testing.server",
    "submitted": "pulse.testing.own_database",
    "submitted_async": "pulse.testing.own_database",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'pulse.testing' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
