"""Fixtures of tests that run a whole system: one for each module, and a topic for each test."""

from __future__ import annotations

import contextlib
import itertools
import zlib
from collections.abc import Iterator, Mapping

import pytest

from tests.support.servers.postgres import Postgres
from tests.support.systems.site_kit import Site
from tests.support.systems.system import Peer, System, running
from tests.support.systems.system_kit import SHORT_LEASE, Whole, place

_numbers = itertools.count()


@pytest.fixture(scope="module")
def system(request: pytest.FixtureRequest, newest_server: Postgres) -> Iterator[System]:
    """One system for all tests of a module; its SETTINGS are the environment of the supervisor."""
    with newest_server.database() as dsn, running(dsn, request.module.SETTINGS) as made:
        yield made


@pytest.fixture(scope="module")
def client(system: System) -> Iterator[Peer]:
    with system.client() as made:
        yield made


@pytest.fixture(scope="module")
def whole(request: pytest.FixtureRequest, newest_server: Postgres) -> Iterator[Whole]:
    """The same for the command line, and for pools that tests start; short leases where there are no SETTINGS."""
    settings: Mapping[str, str] = getattr(request.module, "SETTINGS", SHORT_LEASE)
    with newest_server.database() as dsn, place(dsn, **settings) as made:
        made.start()
        yield made


@pytest.fixture
def site(whole: Whole, topic: str) -> Iterator[Site]:
    """A system with a client and a topic."""
    with whole.client() as made:
        yield Site(whole, made, topic)


@pytest.fixture
def topic() -> str:
    """A topic that no other test uses; none is similar to another, as a misspelled one would be."""
    return f"t{zlib.crc32(str(next(_numbers)).encode()):08x}"


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as made:
        yield made
