"""Fixtures of tests that run a whole system: one for each module, and a topic for each test."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping

import pytest

from tests.support.servers.postgres import Postgres
from tests.support.systems.site_kit import Site
from tests.support.systems.system import Peer, System, running
from tests.support.systems.system_kit import SHORT_LEASE, Whole, place

_numbers = itertools.count()


class Kept:
    """The two systems that were asked for last, each by its settings; modules that do it no harm share one."""

    def __init__(self, server: Postgres) -> None:
        self._server = server
        self._stacks: dict[tuple[tuple[str, str], ...], tuple[contextlib.ExitStack, System]] = {}

    def of(self, settings: Mapping[str, str]) -> System:
        """One with these settings that runs."""
        key = tuple(sorted(settings.items()))
        stack, system = self._stacks.pop(key, (contextlib.ExitStack(), None))
        if system is None or system.process is None or system.process.poll() is not None:
            stack.close()
            system = stack.enter_context(running(stack.enter_context(self._server.database()), settings))
        self._stacks[key] = stack, system
        while len(self._stacks) > 2:
            self._stacks.pop(next(iter(self._stacks)))[0].close()
        return system

    def close(self) -> None:
        """End them."""
        for stack, _ in self._stacks.values():
            stack.close()


@pytest.fixture(scope="session")
def kept(newest_server: Postgres) -> Iterator[Kept]:
    """Systems for several modules."""
    with contextlib.closing(Kept(newest_server)) as made:
        yield made


@pytest.fixture(scope="module")
def system(request: pytest.FixtureRequest, kept: Kept) -> System:
    """One system for all tests of a module, and of others with the same environment, which its SETTINGS name."""
    return kept.of(request.module.SETTINGS)


@pytest.fixture(scope="module")
def client(system: System) -> Iterator[Peer]:
    """A client that asks for things."""
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
    """That, with a client and a topic."""
    with whole.client() as made:
        yield Site(whole, made, topic)


@pytest.fixture
def topic() -> str:
    """A topic that no other test uses."""
    return f"t{next(_numbers)}"


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    """Closes what a test opens."""
    with contextlib.ExitStack() as made:
        yield made
