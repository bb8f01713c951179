"""The databases of a mutant of SQL, and whether it is SQL at all."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Final

import asyncpg

from tests.mutants.force import changed_function
from tests.mutants.source import SCHEMA, Mutant
from tests.support.servers.postgres import GIVEN_DSN, GIVEN_TEMPLATE, Postgres

PREPARED_IN: Final = "CODE_MUTANT_DATABASE"  # the DSN of a database with the schema; no test uses it


def use_oldest(dsn: str) -> None:
    """Make the databases of this process on the server *dsn*."""
    os.environ[GIVEN_DSN] = dsn
    for name in (GIVEN_TEMPLATE, PREPARED_IN):
        os.environ.pop(name, None)


def prepare(mutant: Mutant, stack: contextlib.ExitStack) -> None:
    """
    Make the databases of this process copies of one with a mutant's schema, which may be no SQL (PostgresError).

    What is open here is closed with *stack*: a test fails if it finds a connection that somebody left open.
    """
    if mutant.where != SCHEMA and PREPARED_IN in os.environ:
        asyncio.run(_look_at(os.environ[PREPARED_IN], mutant.mutated()))
        return
    server = stack.enter_context(contextlib.closing(Postgres(os.environ[GIVEN_DSN])))
    if mutant.where == SCHEMA:
        changed = changed_function(mutant)
        dsn = stack.enter_context(server.database()) if changed else ""
        if not dsn or not asyncio.run(_is_carried_out(dsn, changed)):
            os.environ.pop(GIVEN_TEMPLATE, None)
            dsn = server.template()
        os.environ[GIVEN_TEMPLATE] = dsn.partition("?")[0].rpartition("/")[2]
    else:
        with server.database() as dsn:
            asyncio.run(_look_at(dsn, mutant.mutated()))


async def _is_carried_out(dsn: str, sql: str) -> bool:
    """False: it is an error there; it may be right where the function is created."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(sql)
    except asyncpg.PostgresError:
        return False
    finally:
        await connection.close()
    return True


async def _look_at(dsn: str, sql: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.prepare(sql)
    finally:
        await connection.close()
