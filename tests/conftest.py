"""
Fixtures of the whole suite.

``own_database`` is a test's own, with pulse's schema, on a real PostgreSQL started once in a session (the newest that
is found; PULSE_TEST_DSN names a running one to be used instead). Tests in ``tests/store`` run on a second version as
well, where the system has one. Async tests run on asyncio.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import asyncpg
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import Phase, settings

from pulse.store.connections.pool import Target
from pulse.store.store import Store
from tests.support import postgres
from tests.support.postgres import Postgres, Servers
from tests.support.whole import WHOLE

if TYPE_CHECKING:
    from asyncpg import Connection, Record

pytest_plugins = ("tests.plugins.leaks",)

# A time limit for single examples would only measure how busy the machine is.
settings.register_profile("pulse", deadline=None, max_examples=100 if WHOLE else 60, stateful_step_count=40)
settings.register_profile("ci", settings.get_profile("pulse"), print_blob=True)
settings.register_profile("long", settings.get_profile("ci"), max_examples=5000, stateful_step_count=100)
# That a test fails is enough there; the smallest example would take minutes.
settings.register_profile(
    "mutants", settings.get_profile("pulse"), max_examples=100, phases=[Phase.explicit, Phase.generate]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "pulse"))
# A shell starts what runs in its background with SIGINT ignored, and programs inherit that: no Ctrl-C would end them.
signal.signal(signal.SIGINT, signal.default_int_handler)


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


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """The servers of this session; started when first used."""
    running = Servers()
    yield running
    running.close()


@pytest.fixture(scope="session")
def newest_server(servers: Servers) -> Postgres:
    """The newest PostgreSQL: the wheel's, where it is installed."""
    found = postgres.to_test_on()
    if not found and postgres.GIVEN_DSN not in os.environ:
        pytest.skip("no PostgreSQL 15 to 18 was found")
    return servers.get(None if postgres.GIVEN_DSN in os.environ else found[0])


@pytest.fixture(scope="session")
def server(newest_server: Postgres) -> Postgres:
    """The server that databases are made on."""
    return newest_server


@pytest.fixture
def own_database(server: Postgres) -> Iterator[str]:
    """A fresh database with pulse's schema, for this test alone."""
    with server.database() as made:
        yield made


@pytest.fixture
async def store(own_database: str) -> AsyncIterator[Store]:
    """A store on that database."""
    opened = Store(Target(own_database, "pulse-tests"))
    yield opened
    opened.close()
    await checkpoint()  # the loop closes the sockets at its next turn


@pytest.fixture
async def connection(own_database: str) -> AsyncIterator[Connection[Record]]:
    """A plain connection to that database."""
    opened = await asyncpg.connect(own_database)
    yield opened
    await opened.close(timeout=5)
