"""
Django's connections: one for each thread and database, which Django closes around requests, and this around handlers.

A worker lives for weeks: without that it would keep connections that a restarted database has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connections  # type: ignore[import-untyped]

from pulse.app.app import App
from pulse.app.context import Context
from pulse.app.hooks.middleware import CallNext

__all__ = ["close_connections", "connection_of", "keep_fresh", "keep_fresh_async"]


def connection_of(alias: str) -> Any:  # noqa: ANN401 - Django has no types
    """The connection of this thread to a database in DATABASES."""
    every: Any = connections
    return every[alias]


def close_connections() -> None:
    """Close all connections of this thread."""
    connections.close_all()


def keep_fresh(app: App) -> None:
    """
    Close connections that are broken, or older than CONN_MAX_AGE, before and after each plain handler of *app*.

    Other plain middleware is inside, and may use the database.
    """

    @app.middleware
    def around_plain(_ctx: Context, call_next: Callable[[], object]) -> object:
        """In the thread of the handler."""
        _close_old()
        try:
            return call_next()
        finally:
            _close_old()

    del around_plain  # registered


def keep_fresh_async(app: App) -> None:
    """
    Do the same around async handlers, if there are any.

    An async middleware gives plain handlers an event loop beside them, in isolated jobs and in tests, too: an app that
    needs none does not get it.
    """
    if not any(one.is_async for one in app.handlers.values()):
        return

    @app.middleware
    async def around_async(ctx: Context, call_next: CallNext) -> object:
        """Django has the connections of async code in a thread beside asyncio; on trio it has none."""
        if not app.handlers[ctx.name].is_async or not _is_asyncio():
            return await call_next()
        close = sync_to_async(_close_old)
        await close()
        try:
            return await call_next()
        finally:
            await close()

    del around_async  # registered


def _close_old() -> None:
    """As ``django.db.close_old_connections``; but a TestCase keeps its connection, which is in a transaction."""
    every: Any = connections
    for connection in every.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


def _is_asyncio() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
