"""The app that handler processes load: handlers get the connections that a view would get."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import anyio
import django.db  # type: ignore[import-untyped]
import pytest
from asgiref.sync import sync_to_async
from django.test import override_settings  # type: ignore[import-untyped]

import tests.pulse.sql.connections  # noqa: F401 - it sets Django up, which the imports below need

# isort: split
import pulse
from pulse.contrib.django import worker
from pulse.contrib.django.worker import ProjectApp
from pulse.errors import ConfigError
from tests.pulse.sql.connections import peer
from tests.support.servers.postgres import Postgres

pytestmark = [pytest.mark.postgres, pytest.mark.anyio]

registered = pulse.App()


def connection() -> Any:
    every: Any = django.db.connections
    return every["default"]


def use() -> int:
    """Leaves a connection open, as handlers do; its backend."""
    with connection().cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


@registered.schedule("hourly", every_s=3600)
@registered.handler("plain", topic="orders")
def plain(times: int = 1) -> list[int]:
    """Uses one connection."""
    return [use() for _ in range(times)]


@registered.handler("fails")
def fails() -> None:
    use()
    raise LookupError


@registered.handler("async")
async def with_await() -> int:
    return await sync_to_async(use)()


@registered.handler("async-fails")
async def fails_with_await() -> None:
    await with_await()
    raise LookupError


@registered.handler("no-database")
async def without() -> str:
    await anyio.lowlevel.checkpoint()
    return "done"


def is_open() -> bool:
    return connection().connection is not None


@pytest.fixture(scope="module")
def server(newest_server: Postgres) -> Postgres:
    """Django is tested, not PostgreSQL."""
    return newest_server


@pytest.fixture
def app() -> pulse.App:
    return ProjectApp(registered)


def in_thread(deed: Callable[[], Any]) -> Any:
    """As a plain handler runs: in a thread, which has connections of its own."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(deed()))
    thread.start()
    thread.join()
    return found[0]


async def test_it_is_the_registered_app(app: pulse.App) -> None:
    assert app.handlers.keys() == registered.handlers.keys()
    assert app.handlers["plain"].topic == "orders"
    assert app.handlers["plain"].parameters is registered.handlers["plain"].parameters
    assert app.handlers["async"].is_async
    assert app.schedules.keys() == {"hourly"}
    assert registered.handlers["plain"].function is plain


@pytest.mark.parametrize("name", ["plain", "fails"])
async def test_a_plain_handler_leaves_no_connection_that_is_too_old(app: pulse.App, dsn: str, name: str) -> None:
    function = app.handlers[name].function

    def deed() -> tuple[object, bool]:
        stale = use()
        try:
            answer = function()
        except LookupError:
            answer = [0]
        return stale not in answer, is_open()

    async with peer("Django", dsn):
        assert in_thread(deed) == (True, False)


@pytest.mark.parametrize("name", ["async", "async-fails"])
async def test_neither_does_an_async_one(app: pulse.App, dsn: str, name: str) -> None:
    async with peer("Django", dsn):
        stale = await sync_to_async(use)()
        with contextlib.suppress(LookupError):
            assert await app.handlers[name].function() != stale
        assert not await sync_to_async(is_open)()


def test_on_trio_there_are_none(app: pulse.App) -> None:
    function = app.handlers["no-database"].function
    assert in_thread(lambda: anyio.run(function, backend="trio")) == "done"


async def test_what_was_open_when_it_was_loaded_is_closed(dsn: str) -> None:
    """A process that is forked from there must not share it."""
    async with peer("Django", dsn):
        use()
        worker.load()
        assert not is_open()


def test_wrong_settings_are_refused() -> None:
    """By `pulse worker pulse.contrib.django.worker:app`, which does not run the checks."""
    with override_settings(PULSE={"USER": 1}), pytest.raises(ConfigError, match="PULSE"):
        worker.load()
