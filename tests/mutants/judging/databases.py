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
        look_at(mutant)
        return
    server = stack.enter_context(contextlib.closing(Postgres(os.environ[GIVEN_DSN])))
    if mutant.where == SCHEMA:
        changed = changed_function(mutant)
        dsn = stack.enter_context(server.database()) if changed else ""
        if not dsn or not asyncio.run(_is_carried_out(dsn, changed)):
            os.environ.pop(GIVEN_TEMPLATE, None)
            dsn = server.template()
        os.environ[GIVEN_TEMPLATE] = _name_of(dsn)
    else:
        with server.database() as dsn:
            asyncio.run(_look_at(dsn, mutant.mutated()))


def look_at(mutant: Mutant) -> None:
    """Whether a mutant of a statement is SQL (PostgresError)."""
    asyncio.run(_look_at(os.environ[PREPARED_IN], mutant.mutated()))


class Template:
    """Of the databases of this process: one whose functions change for one mutant of the schema after the other."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        server = stack.enter_context(contextlib.closing(Postgres(os.environ[GIVEN_DSN])))
        self._dsn = stack.enter_context(server.database())
        os.environ[GIVEN_TEMPLATE] = _name_of(self._dsn)

    def change(self, mutant: Mutant, stack: contextlib.ExitStack) -> None:
        """Put *mutant* in force there, and in the databases that there are, until *stack* is closed."""
        asyncio.run(self._carry_out(changed_function(mutant)))
        stack.callback(lambda: asyncio.run(self._carry_out(changed_function(mutant, is_back=True))))

    async def _carry_out(self, sql: str) -> None:
        connection = await asyncpg.connect(self._dsn)
        try:
            await connection.execute(sql)
            pattern = rf"pulse\_test\_{os.getpid()}\_%"
            others = await connection.fetch("SELECT datname FROM pg_database WHERE datname LIKE $1", pattern)
        finally:
            await connection.close()
        for (name,) in others:
            if name != _name_of(self._dsn):
                await _is_carried_out(self._dsn.replace(_name_of(self._dsn), name), sql)  # some have no schema


def _name_of(dsn: str) -> str:
    return dsn.partition("?")[0].rpartition("/")[2]


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
