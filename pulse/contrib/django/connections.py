"""
Django's connections: one for each thread and database, which Django closes around requests, and this around handlers.

A worker lives for weeks: without that it would keep connections that a restarted database has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from asgiref.sync import sync_to_async
from django.db import close_old_connections, connections  # type: ignore[import-untyped]

from pulse.app.app import App
from pulse.app.context import Context
from pulse.app.hooks.middleware import CallNext

__all__ = ["close_connections", "connection_of", "keep_fresh"]


def connection_of(alias: str) -> Any:  # noqa: ANN401 - Django has no types
    """The connection of this thread to a database in DATABASES."""
    every: Any = connections
    return every[alias]


def close_connections() -> None:
    """Close all connections of this thread."""
    connections.close_all()


def keep_fresh(app: App) -> None:
    """
    Close connections that are broken, or older than CONN_MAX_AGE, before and after each handler of *app*.

    Other middleware is inside, and may use the database.
    """

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

    @app.middleware
    def around_plain(_ctx: Context, call_next: Callable[[], object]) -> object:
        """In the thread of the handler."""
        close_old_connections()
        try:
            return call_next()
        finally:
            close_old_connections()

    del around_async, around_plain  # registered


def _close_old() -> None:
    close_old_connections()


def _is_asyncio() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
