"""A schema's name that breaks all SQL in which it is not quoted as it should be, and databases that have it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Final

from pulse.store.connections.pool import Target, connect
from pulse.store.connections.session import Session
from pulse.store.store import Store
from tests.support.servers.postgres import Postgres

# Quotes, marks of parameters and formats, dollar quotes, a comment, a backslash; 63 bytes are the most.
HOSTILE: Final = 'Wéird "na.me\'"; drop schema pulse -- $$ $pulse$ \\ %s :x {0} $1'


@contextlib.contextmanager
def hostile_database(server: Postgres) -> Iterator[str]:
    """A database whose only queue is in the schema HOSTILE; for sync fixtures."""
    with server.database(installed=False) as dsn:
        asyncio.run(_install(dsn))
        yield dsn


@contextlib.asynccontextmanager
async def session_in(dsn: str, schema: str) -> AsyncIterator[Session]:
    """A session whose SQL is written for the schema ``pulse``, and runs in *schema*."""
    session = await connect(Target(dsn, "pulse-tests", schema), {})
    try:
        yield session
    finally:
        await session.close(timeout=5)


async def _install(dsn: str) -> None:
    store = Store(Target(dsn, "pulse-tests", HOSTILE), hot=1, queries=1)
    await store.prepare()
    store.close()
