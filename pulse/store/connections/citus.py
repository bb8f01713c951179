"""Queues that Citus keeps: goes to the node that has the rows, also after it has moved them."""

from __future__ import annotations

import asyncio
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
_DEADLINE_S: Final = 10.0  # views take 0.3 s, and others that make them go first


async def stay_with_rows(connection: Session, shown: str) -> None:
    """
    Look whether this node has the rows of the queue, if Citus keeps them; rows that have just arrived get their views.

    Args:
        connection: A new one.
        shown: The node's name in messages.

    Raises:
        UnavailableError: Another node has them, or the views cannot be made.
    """
    try:
        async with asyncio.timeout(_DEADLINE_S):
            await _stay(connection, shown)
    except FAILURES as error:
        reason = str(error) or f"no answer within {_DEADLINE_S:g} s"
        raise UnavailableError(f"the database {shown} cannot be used for a queue on Citus: {reason}") from error


async def is_distributed(connection: Connection[Record]) -> bool:
    """Whether Citus keeps the rows of the queue; false on any other PostgreSQL."""
    return bool(await connection.fetchval(CITUS["distributed"].sql))


async def _stay(connection: Session, shown: str) -> None:
    if not await is_distributed(connection):
        return
    home = await connection.fetchrow(CITUS["home_of_rows"].sql)
    if home is None or not home["is_here"]:
        where = "no node" if home is None else home["node"]
        message = f"the queue {schema_in(connection)} is not on {shown}: Citus has it on {where}"
        raise UnavailableError(message)
    connection.found_home()
    await connection.execute(CITUS["show_shards"].sql)
    if not home["is_attached"]:
        await _attach(connection)


async def _attach(connection: Session) -> None:
    """Make the views and functions of rows that this node has."""
    async with connection.transaction():
        await connection.execute(CITUS["write"].sql)
        await begin_migration(connection, LOCK_TIMEOUT)
        if (await connection.fetchrow(CITUS["home_of_rows"].sql))["is_attached"]:
            return  # another connection did it meanwhile
        await connection.execute(CITUS["keep_local"].sql)
        shards = {row["name"]: row["shard"] for row in await connection.fetch(CITUS["shards"].sql)}
        await connection.execute(_GUARD)
        for command in citus_schema.for_home(schema_sql(), shards):
            await connection.execute(command)
