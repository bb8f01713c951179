"""Queues that Citus keeps: goes to the node that has the rows, also after it has moved them."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from pulse.errors import UnavailableError
from pulse.store.connections import citus_schema
from pulse.store.connections.session import begin_migration, schema_in
from pulse.store.failures import FAILURES
from pulse.store.statements import parse, schema_sql, texts

if TYPE_CHECKING:
    from asyncpg import Connection, Record

    from pulse.store.connections.session import Session

CITUS: Final = parse(*texts("connections", "citus.sql"))
(_GUARD,) = texts("connections", "citus_guard.sql")
KEPT_BY_CITUS: Final = "Citus keeps the tables, and each host is a cluster of its own"
LOCK_TIMEOUT: Final = "5s"
DEADLINE_S: Final = 10.0  # views take 0.3 s, and others that make them go first


async def is_distributed(connection: Connection[Record]) -> bool:
    """Whether Citus keeps the rows of the queue; false on any other PostgreSQL."""
    has_citus = await connection.fetchval(CITUS["has_citus"].sql)
    return bool(has_citus and await connection.fetchval(CITUS["distributed"].sql))


async def stay_with_rows(connection: Session, shown: str) -> None:
    """
    Look whether this node has the rows of a queue that Citus keeps; rows that have just arrived get their views.

    Args:
        connection: Terminate it after an error: a transaction may be open.
        shown: The node's name in messages.

    Raises:
        UnavailableError: Another node has them, or the views cannot be made.
    """
    since_s = time.monotonic()
    try:
        async with asyncio.timeout(DEADLINE_S):
            is_attached = await _is_attached(connection, shown)
            await connection.execute(CITUS["show_shards"].sql)
            if not is_attached:
                await _attach(connection, shown)
    except FAILURES as error:
        reason = str(error) or f"no answer within {DEADLINE_S:g} s"
        raise UnavailableError(f"the database {shown} cannot be used for a queue on Citus: {reason}") from error
    connection.found_home(since_s)


async def _is_attached(connection: Session, shown: str) -> bool:
    """Whether the views of the queue are on this node, which has to have its rows."""
    home = await connection.fetchrow(CITUS["home_of_rows"].sql)
    if home is None or not home["is_here"]:
        where = "no node" if home is None else home["node"]
        message = f"the queue {schema_in(connection)} is not on {shown}: Citus has it on {where}"
        raise UnavailableError(message)
    return bool(home["is_attached"])


async def _attach(connection: Session, shown: str) -> None:
    """Make the views and functions of rows that this node has."""
    transaction = connection.transaction()  # not `async with`: that asks a server that is silent to roll back
    await transaction.start()
    await connection.execute(CITUS["write"].sql)
    await begin_migration(connection, LOCK_TIMEOUT)
    if not await _is_attached(connection, shown):  # while it waited, others may have made them, or moved the rows
        await connection.execute(CITUS["keep_local"].sql)
        await _check_version(connection)
        shards = {row["name"]: row["shard"] for row in await connection.fetch(CITUS["shards"].sql)}
        await connection.execute(_GUARD)
        for command in citus_schema.for_home(schema_sql(), shards, CITUS["notice_move"].sql):
            await connection.execute(command)
    await transaction.commit()


async def _check_version(connection: Session) -> None:
    """Refuse rows of another version: views and functions are made as this release has them."""
    own, release = citus_schema.version_of(schema_sql())
    found = await connection.fetchrow(CITUS["version_of_rows"].sql)
    if found is None or (found["version"], found["release"]) != (own, release):
        there = "of no version" if found is None else f"of version {found['version']} (pulse {found['release']})"
        message = f"the rows are {there}; this pulse makes views of version {own} ({release}): use their release"
        raise UnavailableError(message)
