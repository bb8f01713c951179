"""
What all tests have in common; their fixtures of databases are in ``plugins/databases.py``, those of whole systems in
``plugins/systems.py``.

All run on real PostgreSQL servers, started once in a session (PULSE_TEST_DSN names a running one to be used instead).
Async tests run on asyncio.
"""

from __future__ import annotations

import os
import signal

import pytest
import structlog
from hypothesis import Phase, settings

from tests.support.whole import WHOLE

pytest_plugins = ("tests.plugins.databases", "tests.plugins.leaks", "tests.plugins.systems", "tests.plugins.turns")

# A time limit for single examples would only measure how busy the machine is.
settings.register_profile("pulse", deadline=None, max_examples=100 if WHOLE else 60, stateful_step_count=40)
settings.register_profile("brief", settings.get_profile("pulse"), max_examples=10)  # of what another Python runs
settings.register_profile("ci", settings.get_profile("pulse"), print_blob=True)
settings.register_profile("long", settings.get_profile("ci"), max_examples=5000, stateful_step_count=100)
# That a test fails is enough there; the smallest example would take minutes.
settings.register_profile(
    "mutants", settings.get_profile("pulse"), max_examples=100, phases=[Phase.explicit, Phase.generate]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "pulse"))
# A shell starts what runs in its background with SIGINT ignored, and programs inherit that: no Ctrl-C would end them.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Tracebacks in the colours of rich take a second each.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What something shorter tests as well is left out, for want of time."""
    spared = [] if WHOLE else [item for item in items if item.get_closest_marker("spare")]
    if spared:
        config.hook.pytest_deselected(items=spared)
        items[:] = [item for item in items if item not in spared]


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests run on asyncio, unless a module says otherwise: asyncpg knows nothing else."""
    return "asyncio"
