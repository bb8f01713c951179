"""
Fixtures of tests that need a PostgreSQL. Those of a file ``test_…_pg.py`` run on each that is found, the wheel's and
the system's; all others on the newest.

``store`` and ``connection`` (a plain one) share one database with all tests of their module, emptied before each: a
database, its connections and their caches cost ten times what a test does with them. A test that changes more than rows
asks for ``own_database`` as well, and gets all three fresh.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import asyncpg
import pytest
from anyio.lowlevel import checkpoint

from pulse.store.admin.schema import SCHEMA_VERSION
from pulse.store.connections.pool import Target
from pulse.store.store import Store
from tests.support.admin.doctor_kit import SOUND, Patient
from tests.support.servers import postgres
from tests.support.servers.bouncer import bouncer
from tests.support.servers.postgres import END_SESSIONS, Installation, Postgres, Servers, started
from tests.support.store.helpers import Sql
from tests.support.store.recovery_kit import Process, process
from tests.support.waiting import until_async
from tests.support.whole import WHOLE

EMPTY: Final = f"""
    DELETE FROM pulse.jobs; DELETE FROM pulse.attempts; DELETE FROM pulse.set_aside; DELETE FROM pulse.outbox;
    DELETE FROM pulse.schedules; DELETE FROM pulse.handlers;
    DELETE FROM pulse.hosts; DELETE FROM pulse.topics; DELETE FROM pulse.limits; DELETE FROM pulse.dispatch_control;
    DELETE FROM pulse.schema_version WHERE version > {SCHEMA_VERSION};
    DELETE FROM pulse.audit; DELETE FROM pulse.retention_mark; INSERT INTO pulse.retention_mark DEFAULT VALUES;
    UPDATE pulse.sweep_mark SET swept_at = clock_timestamp(), wait_until = '-infinity';
    INSERT INTO pulse.topics (topic, max_attempts, max_crashes) VALUES ('', 5, 3);
    INSERT INTO pulse.dispatch_control (topic) VALUES ('');
"""


@dataclass(frozen=True, slots=True)
class Shared:
    dsn: str
    store: Store
    connection: Sql


def _choices() -> list[Installation | None]:
    return [None] if postgres.GIVEN_DSN in os.environ else [*postgres.to_test_on()]


@pytest.hookimpl(tryfirst=True)  # before markers are selected by ``-m``
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What runs on the oldest PostgreSQL is part of `make test-rest`; what is heavy does not run there."""
    for item in items:
        if is_for_each_server(item.path):
            item.add_marker("postgres")
    others = _choices()[1:]
    older = [item for item in items if isinstance(item, pytest.Function) and _server_of(item) in others]
    spared = {item for item in older if item.get_closest_marker("heavy") and not WHOLE}
    for item in older:
        item.add_marker("rest")
    config.hook.pytest_deselected(items=list(spared))
    items[:] = [item for item in items if item not in spared]


def _server_of(item: pytest.Function) -> object:
    return item.callspec.params.get("server") if hasattr(item, "callspec") else None


def _label(choice: object) -> str:
    return f"pg{choice.major}" if isinstance(choice, Installation) else "given"


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """The servers of this session; started when first used."""
    running = Servers()
    yield running
    running.close()


@pytest.fixture(scope="session")
def newest_server(servers: Servers) -> Postgres:
    found = postgres.to_test_on()
    if not found and postgres.GIVEN_DSN not in os.environ:
        pytest.skip("no PostgreSQL 15 to 18 was found")
    return servers.get(None if postgres.GIVEN_DSN in os.environ else found[0])


def is_for_each_server(path: Path) -> bool:
    return path.stem.endswith("_pg")


@pytest.hookimpl(tryfirst=True)  # its ids begin with the server
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One server after the other, unless a module has a ``server`` of its own."""
    is_here = "server" in metafunc.fixturenames and not hasattr(metafunc.module, "server")
    if is_here and is_for_each_server(metafunc.definition.path):
        metafunc.parametrize("server", _choices(), ids=_label, indirect=True, scope="session")


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest, servers: Servers) -> Postgres:
    if not hasattr(request, "param"):
        newest: Postgres = request.getfixturevalue("newest_server")
        return newest
    choice: Installation | None = request.param
    return servers.get(choice)


@pytest.fixture(scope="module")
def module_database(server: Postgres) -> Iterator[str]:
    with server.database() as made:
        yield made


@pytest.fixture(scope="module")
async def module_shared(module_database: str) -> AsyncIterator[Shared]:
    """What the tests of one module share."""
    async for made in _open(module_database):
        yield made


@pytest.fixture
async def shared(module_shared: Shared) -> Shared:
    """The module's, emptied: a late cancel of the last test's statements would hit the rows of this one."""
    kept = [one.get_server_pid() for pool in module_shared.store.pools.values() for one in pool._idle]

    async def are_gone() -> bool:
        return not await module_shared.connection.fetchval(END_SESSIONS, None, kept)

    await until_async(are_gone, "the end of other sessions")
    await module_shared.connection.execute(EMPTY)
    return module_shared


@pytest.fixture
def own_database(server: Postgres) -> Iterator[str]:
    """A fresh database for this test alone."""
    with server.database() as made:
        yield made


@pytest.fixture
def empty_dsn(server: Postgres) -> Iterator[str]:
    """A fresh database without pulse's schema."""
    with server.database(installed=False) as made:
        yield made


@pytest.fixture
def pooled(newest_server: Postgres) -> Iterator[tuple[str, str]]:
    """A fresh database, and the way to it through a pooler of transactions."""
    with newest_server.database() as made, bouncer(made, "transaction") as through:
        yield made, through


@pytest.fixture
async def own(own_database: str) -> AsyncIterator[Shared]:
    """A fresh database for this test alone, and two ways to it."""
    async for made in _open(own_database):
        yield made


@pytest.fixture
def place(request: pytest.FixtureRequest, server: Postgres, anyio_backend: str) -> Shared:
    found: Shared = request.getfixturevalue("own" if "own_database" in request.fixturenames else "shared")
    return found


@pytest.fixture
def dsn(place: Shared) -> str:
    return place.dsn


@pytest.fixture
def store(place: Shared) -> Store:
    return place.store


@pytest.fixture
def connection(place: Shared) -> Sql:
    return place.connection


@pytest.fixture
async def other(dsn: str) -> AsyncIterator[Sql]:
    opened = await asyncpg.connect(dsn)
    yield opened
    await opened.close(timeout=5)


@pytest.fixture
def living() -> Iterator[Process]:
    """A process that does nothing until it is killed."""
    with process() as made:
        yield made


async def _open(dsn: str) -> AsyncIterator[Shared]:
    store = Store(Target(dsn, "pulse-tests"))
    connection = await asyncpg.connect(dsn)
    yield Shared(dsn, store, connection)
    store.close()
    await connection.close(timeout=5)
    await checkpoint()  # the loop closes the store's sockets at its next turn


@pytest.fixture(scope="session")
def sound() -> Iterator[Postgres]:
    """A server that the doctor finds healthy: others have neither slots nor prepared transactions."""
    installation, *_ = postgres.installations()
    with started(installation, **SOUND) as server:
        yield server


@pytest.fixture
def fresh(sound: Postgres) -> Iterator[str]:
    """A fresh database of it with the schema."""
    with sound.database() as dsn:
        yield dsn


@pytest.fixture
def empty(sound: Postgres) -> Iterator[str]:
    """A database of it without the schema."""
    with sound.database(installed=False) as dsn:
        yield dsn


@pytest.fixture
async def patient(fresh: str) -> AsyncIterator[Patient]:
    """A fresh database, and a session."""
    made = Patient(fresh, await asyncpg.connect(fresh))
    try:
        await made.sql.execute("INSERT INTO pulse.hosts (host, boot, pidns) VALUES ('here', 'b', 1)")
        yield made
    finally:
        for session in (made.sql, *made.sessions):
            await session.close(timeout=5)
        await checkpoint()  # the loop closes the sockets of what was terminated at its next turn
