"""Queues that Citus keeps: goes to the node that has the rows, also after it has moved them."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from pulse.errors import ConfigError, UnavailableError
from pulse.store.connections import citus_schema
from pulse.store.connections.session import begin_migration, schema_in
from pulse.store.failures import FAILURES
from pulse.store.statements import STATEMENTS, parse, schema_sql, texts

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


async def shards_of(connection: Connection[Record]) -> dict[str, int]:
    """Of each table that Citus keeps: the number at the end of the name that it has on its node."""
    return {row["name"]: row["shard"] for row in await connection.fetch(CITUS["shards"].sql)}


async def stay_with_rows(connection: Session, shown: str) -> None:
    """
    Look whether this node has the rows of a queue that Citus keeps; rows that have just arrived get their views.

    Args:
        connection: Terminate it after an error: a transaction may be open.
        shown: The node's name in messages.

    Raises:
        ConfigError: The role may not use them.
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
    if not home["is_allowed"]:
        role, owner = home["role"], home["owner"]
        raise ConfigError(
            f'role "{role}" may not use the rows of the queue {schema_in(connection)} on {shown}: they belong to '
            f'"{owner}"; on the coordinator of Citus: GRANT "{owner}" TO "{role}"'
        )
    return bool(home["is_attached"])


async def _attach(connection: Session, shown: str) -> None:
    """Make the views and functions of rows that this node has."""
    transaction = connection.transaction()  # not `async with`: that asks a server that is silent to roll back
    await transaction.start()
    await connection.execute(CITUS["write"].sql)
    await begin_migration(connection, LOCK_TIMEOUT)
    if not await _is_attached(connection, shown):  # while it waited, others may have made them, or moved the rows
        await connection.execute(CITUS["keep_local"].sql)
        await connection.execute(STATEMENTS["become_role"].sql, await connection.fetchval(CITUS["owner_of_rows"].sql))
        await _check_version(connection)
        shards = await shards_of(connection)
        await connection.execute(CITUS["forget_steps"].sql)
        version = str(citus_schema.version_of(schema_sql())[0])
        if await connection.fetchval(CITUS["version_of_functions"].sql) != version:
            while (drop := await connection.fetchval(CITUS["unneeded"].sql)) is not None:
                await connection.execute(drop)  # of another version: OR REPLACE would refuse some
        await connection.execute(_GUARD)
        await connection.execute(await connection.fetchval(CITUS["note_version_of_functions"].sql, version))
        for command in citus_schema.for_home(schema_sql(), shards, CITUS["notice_move"].sql):
            await connection.execute(command)
    await transaction.commit()


async def _check_version(connection: Session) -> None:
    """Refuse rows of another version: views and functions are made as this release has them."""
    own, release = citus_schema.version_of(schema_sql())
    found = await connection.fetchrow(CITUS["version_of_rows"].sql)
    if found is None or (found["version"], found["release"]) != (own, release):
        there = "no version" if found is None else f"version {found['version']}"
        maker = "the release that made them" if found is None else f"pulse {found['release']}"
        raise UnavailableError(
            f"the rows are of {there}, this pulse ({release}) makes views of version {own}: "
            f"run pulse migrate of {maker}"
        )
