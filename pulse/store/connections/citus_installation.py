"""``pulse migrate --citus``: makes a queue whose tables Citus keeps, through the coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import asyncpg
import msgspec

from pulse.common.dsn import hosts_of
from pulse.errors import ConfigError, UnavailableError
from pulse.security.schema_name import quoted
from pulse.store.connections import citus_schema
from pulse.store.connections.citus import CITUS, LOCK_TIMEOUT, is_distributed
from pulse.store.connections.pool import CONNECT_DEADLINE_S, Target, connect
from pulse.store.connections.session import begin_migration
from pulse.store.statements import STATEMENTS, schema_sql

if TYPE_CHECKING:
    from pulse.store.connections.session import Session

_LIMITS: Final = {"statement_timeout": "60s"}
DEADLINE_S: Final = 120.0  # the tables take a second


async def distribute(target: Target) -> bool:
    """
    Make the tables of a new queue, for Citus to keep; without an effect if they are there.

    Args:
        target: Citus's coordinator and its nodes; the role will own the tables.

    Returns:
        Whether they were made.

    Raises:
        ConfigError: The DSN has one host, there is no Citus, or the queue is there, and Citus does not keep it.
        UnavailableError: The coordinator does not answer, or is not named.
    """
    connection = await coordinator_of(target, _LIMITS)
    try:
        async with asyncio.timeout(DEADLINE_S):
            return await _make(connection)
    except TimeoutError as error:
        raise UnavailableError(f"the database {target.shown} gave no answer within {DEADLINE_S:g} s") from error
    finally:
        connection.terminate()


async def coordinator_of(target: Target, limits: Mapping[str, str]) -> Session:
    """
    A session of the coordinator, through which tables are made and changed.

    Args:
        target: The coordinator and the nodes.
        limits: Limits that the server enforces.

    Raises:
        ConfigError: The DSN has one host, or there is no Citus.
        UnavailableError: The coordinator does not answer, or is not named.
    """
    dsns = hosts_of(target.dsn)
    if len(dsns) == 1:
        raise ConfigError(
            f"PULSE_DSN {target.shown} names one host: a queue on Citus needs the coordinator and all nodes, "
            "separated by commas"
        )
    silent: list[str] = []
    for dsn in dsns:
        host = msgspec.structs.replace(target, dsn=dsn)
        try:
            connection = await connect(host, {}, limits=limits)
        except UnavailableError as error:
            silent.append(error.message)
            continue
        try:
            async with asyncio.timeout(CONNECT_DEADLINE_S):
                if await _is_coordinator(connection, host.shown):
                    return connection
        except TimeoutError:
            silent.append(f"the database {host.shown} gave no answer within {CONNECT_DEADLINE_S:g} s")
        except BaseException:
            connection.terminate()
            raise
        connection.terminate()
    reason = "; ".join(silent) or f"it is none of the hosts of {target.shown}"
    raise UnavailableError(f"tables are made and changed through the coordinator of Citus: {reason}")


async def _is_coordinator(connection: Session, shown: str) -> bool:
    try:
        return bool(await connection.fetchval(CITUS["is_coordinator"].sql))
    except asyncpg.UndefinedTableError as error:
        raise ConfigError(
            f"the database {shown} has no extension citus: it is made by CREATE EXTENSION citus"
        ) from error


async def _make(connection: Session) -> bool:
    """Whether there was something to do; the connection is of no use afterwards."""
    transaction = connection.transaction()  # not `async with`: that asks a server that is silent to roll back
    await transaction.start()
    await begin_migration(connection, LOCK_TIMEOUT)
    if await is_distributed(connection):
        return False
    if await connection.fetchval(STATEMENTS["schema_is_there"].sql):
        name = quoted(connection.schema)
        raise ConfigError(f"the schema {name} is a queue of this node alone; --citus makes a new one: set PULSE_SCHEMA")
    for command in citus_schema.for_all_nodes(schema_sql()):
        await connection.execute(command)
    await connection.execute(CITUS["keep_together"].sql)
    for command in citus_schema.rows(schema_sql()):
        await connection.execute(command)
    await transaction.commit()
    return True
