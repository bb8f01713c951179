"""Fixtures of the tests that run a whole system: one for each module, and a topic for each test."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping

import pytest

from tests.support.postgres import Postgres
from tests.support.system import Peer, System, running

_numbers = itertools.count()


@pytest.fixture(scope="module")
def system(request: pytest.FixtureRequest, newest_server: Postgres) -> Iterator[System]:
    """One system for all tests of a module, with the environment that its SETTINGS name."""
    settings: Mapping[str, str] = request.module.SETTINGS
    with newest_server.database() as dsn, running(dsn, settings) as made:
        yield made


@pytest.fixture(scope="module")
def client(system: System) -> Iterator[Peer]:
    """A client that asks for things."""
    with system.client() as made:
        yield made


@pytest.fixture
def topic() -> str:
    """A topic that no other test uses."""
    return f"t{next(_numbers)}"


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    """Closes what a test opens."""
    with contextlib.ExitStack() as made:
        yield made
