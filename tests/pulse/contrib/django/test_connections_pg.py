"""Handlers get the connections that a view would get."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable
from typing import Any, Final

import anyio
import django.db  # type: ignore[import-untyped]
import pytest
from asgiref.sync import sync_to_async
from django.db import transaction

import tests.pulse.sql.connections  # noqa: F401 - it sets Django up, which the imports below need

# isort: split
import pulse
from pulse.app.hooks.middleware import wrapped
from pulse.contrib.django.connections import keep_fresh, keep_fresh_async
from tests.pulse.sql.connections import peer
from tests.support.servers.postgres import Postgres

pytestmark = [pytest.mark.postgres, pytest.mark.anyio]


def connection() -> Any:
    every: Any = django.db.connections
    return every["default"]


def use() -> int:
    """Leaves a connection open, as handlers do; its backend."""
    with connection().cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def plain() -> list[int]:
    return [use()]


def fails() -> None:
    use()
    raise LookupError


async def with_await() -> int:
    return await sync_to_async(use)()


async def fails_with_await() -> None:
    await with_await()
    raise LookupError


async def without() -> str:
    await anyio.lowlevel.checkpoint()
    return "done"


def is_open() -> bool:
    return connection().connection is not None


HANDLERS: Final[dict[str, Callable[..., object]]] = {
    "plain": plain, "fails": fails, "async": with_await, "async-fails": fails_with_await, "no-database": without
}  # fmt: skip


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


def called(name: str, *, in_loop: bool = False) -> Any:
    """Call a handler inside its middleware, as a worker does; an async one gives a coroutine."""
    app = pulse.App()
    keep_fresh(app)
    for its_name, function in HANDLERS.items():
        app.handler(its_name)(function)
    keep_fresh_async(app)
    handler = app.handlers[name]
    layers = handler.layers
    assert layers is not None
    ctx = pulse.Context(job_id=uuid.uuid4(), attempt=1, name=name, topic="orders")
    if in_loop and not handler.is_async:

        async def thread() -> str:
            return "called"

        return wrapped(thread, ctx, layers.in_loop)()
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


async def test_a_plain_one_does_not_wait_for_the_thread_of_async_code(dsn: str) -> None:
    """It has connections of its own."""
    async with peer("Django", dsn):
        await sync_to_async(use)()
        assert await called("plain", in_loop=True) == "called"
        assert await sync_to_async(is_open)()
        await sync_to_async(django.db.connections.close_all)()


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


def test_an_app_without_async_handlers_needs_no_loop() -> None:
    app = pulse.App()
    keep_fresh(app)
    app.handler("plain")(plain)
    keep_fresh_async(app)
    layers = app.handlers["plain"].layers
    assert layers is not None
    assert (len(layers.in_thread), len(layers.in_loop)) == (1, 0)


async def test_a_test_case_keeps_its_connection(dsn: str) -> None:
    """It runs handlers inside its transaction."""
    async with peer("Django", dsn):
        atomic: Any = transaction.atomic
        with atomic():
            assert called("plain") == [use()]
