"""Handlers get the connections that a view would get."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable
from typing import Any

import anyio
import django.db  # type: ignore[import-untyped]
import pytest
from asgiref.sync import sync_to_async

import tests.pulse.sql.connections  # noqa: F401 - it sets Django up, which the imports below need

# isort: split
import pulse
from pulse.app.hooks.middleware import wrapped
from pulse.contrib.django.connections import keep_fresh
from tests.pulse.sql.connections import peer
from tests.support.servers.postgres import Postgres

pytestmark = [pytest.mark.postgres, pytest.mark.anyio]

app = pulse.App()
keep_fresh(app)


def connection() -> Any:
    every: Any = django.db.connections
    return every["default"]


def use() -> int:
    """Leaves a connection open, as handlers do; its backend."""
    with connection().cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


@app.handler("plain", topic="orders")
def plain(times: int = 1) -> list[int]:
    """Uses one connection."""
    return [use() for _ in range(times)]


@app.handler("fails")
def fails() -> None:
    use()
    raise LookupError


@app.handler("async")
async def with_await() -> int:
    return await sync_to_async(use)()


@app.handler("async-fails")
async def fails_with_await() -> None:
    await with_await()
    raise LookupError


@app.handler("no-database")
async def without() -> str:
    await anyio.lowlevel.checkpoint()
    return "done"


def is_open() -> bool:
    return connection().connection is not None


@pytest.fixture(scope="module")
def server(newest_server: Postgres) -> Postgres:
    """Django is tested, not PostgreSQL."""
    return newest_server


def in_thread(deed: Callable[[], Any]) -> Any:
    """As a plain handler runs: in a thread, which has connections of its own."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(deed()))
    thread.start()
    thread.join()
    return found[0]


def called(name: str) -> Any:
    """Call a handler inside its middleware, as a worker does; an async one gives a coroutine."""
    handler = app.handlers[name]
    layers = handler.layers
    assert layers is not None
    ctx = pulse.Context(job_id=uuid.uuid4(), attempt=1, name=name, topic="orders")
    if not handler.is_async:
        return wrapped(handler.function, ctx, layers.in_thread)()
    return wrapped(handler.function, ctx, layers.in_loop)()


@pytest.mark.parametrize("name", ["plain", "fails"])
async def test_a_plain_handler_leaves_no_connection_that_is_too_old(dsn: str, name: str) -> None:
    def deed() -> tuple[object, bool]:
        stale = use()
        try:
            answer = called(name)
        except LookupError:
            answer = [0]
        return stale not in answer, is_open()

    async with peer("Django", dsn):
        assert in_thread(deed) == (True, False)


@pytest.mark.parametrize("name", ["async", "async-fails"])
async def test_neither_does_an_async_one(dsn: str, name: str) -> None:
    async with peer("Django", dsn):
        stale = await sync_to_async(use)()
        with contextlib.suppress(LookupError):
            assert await called(name) != stale
        assert not await sync_to_async(is_open)()


def test_on_trio_there_are_none() -> None:
    async def call() -> object:
        return await called("no-database")

    assert in_thread(lambda: anyio.run(call, backend="trio")) == "done"
