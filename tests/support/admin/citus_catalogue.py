"""
What pulse asks of Citus, in a plain PostgreSQL: a catalogue in which it is the coordinator and the node with the rows.

Nothing is distributed or moved by it: tests/citus has the real one.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, urlsplit

import asyncpg

from pulse.store.connections.citus_installation import distribute
from pulse.store.connections.pool import Target

if TYPE_CHECKING:
    from tests.support.store.helpers import Sql

_CATALOGUE: Final = """
    SET allow_system_table_mods = on;
    INSERT INTO pg_extension VALUES (99999, 'citus', 10, 11, false, '13.0', NULL, NULL);
    CREATE TABLE pg_catalog.pg_dist_local_group AS SELECT 0 AS groupid;
    CREATE TABLE pg_catalog.pg_dist_node AS
        SELECT 0 AS groupid, 'here' AS nodename, 5432 AS nodeport, 'primary' AS noderole;
    CREATE TABLE pg_catalog.pg_dist_shard (logicalrelid regclass, shardid bigint);
    CREATE TABLE pg_catalog.pg_dist_placement (shardid bigint, groupid int);
    GRANT SELECT ON pg_dist_local_group, pg_dist_node, pg_dist_shard, pg_dist_placement TO PUBLIC;
    CREATE FUNCTION pg_catalog.lock_shard_metadata(int, bigint[]) RETURNS void LANGUAGE sql AS '';
    RESET allow_system_table_mods;
"""
_TABLES: Final = "SELECT relname::text FROM pg_class WHERE relnamespace = 'pulse_rows'::regnamespace AND relkind = 'r'"
_FIRST_SHARD: Final = 102_000


async def with_catalogue(dsn: str) -> Target:
    """An empty database gets the catalogue; as two hosts, of which the first is as good as the second."""
    connection: Sql = await asyncpg.connect(dsn)
    try:
        await connection.execute(f"{_CATALOGUE}; ALTER DATABASE {urlsplit(dsn).path[1:]} SET citus.version = '13.0'")
    finally:
        await connection.close(timeout=5)
    host = parse_qs(urlsplit(dsn).query)["host"][0]
    return Target(dsn.replace(f"host={host}", f"host={host},{host}"), "tests")


async def with_queue(dsn: str) -> Target:
    """And a queue, whose tables have the names that they have on a node."""
    target = await with_catalogue(dsn)
    assert await distribute(target)
    connection: Sql = await asyncpg.connect(dsn)
    try:
        for (table,), shard in zip(await connection.fetch(_TABLES), itertools.count(_FIRST_SHARD)):
            name = f"pulse_rows.{table}"
            await connection.execute(
                f"CREATE TABLE {name}_{shard} (LIKE {name} INCLUDING ALL EXCLUDING IDENTITY);"
                f"INSERT INTO pg_dist_shard VALUES ('{name}', {shard});"
                f"INSERT INTO pg_dist_placement VALUES ({shard}, 0)"
            )
            if await connection.fetchval(f"SELECT EXISTS (SELECT FROM {name})"):  # else it may have generated columns
                await connection.execute(f"INSERT INTO {name}_{shard} SELECT * FROM {name}")
    finally:
        await connection.close(timeout=5)
    return target
