"""Connections: a server on an older timeline than this host has seen is refused, and others are tried."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import msgspec
import pytest
from anyio.lowlevel import checkpoint

from pulse.common.dsn import database_of
from pulse.errors import UnavailableError
from pulse.store.connections.pool import Pool, Target
from pulse.store.connections.session import schema_in
from pulse.store.recovery.timelines import ServerTimeline, Timelines
from pulse.store.store import Store
from pulse_actors.shared.epoch_memory import MemoryFile
from tests.support.store.helpers import Patch, Sql

pytestmark = pytest.mark.heavy


class Pools:
    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.made: list[Pool] = []

    def of(self, timelines: Timelines, dsn: str | None = None, schema: str = "pulse") -> Pool:
        self.made.append(Pool(Target(dsn or self.dsn, "t", schema), size=1, timelines=timelines))
        return self.made[-1]


@pytest.fixture
async def pools(dsn: str) -> AsyncIterator[Pools]:
    made = Pools(dsn)
    yield made
    for pool in made.made:
        pool.close()
    await checkpoint()  # the loop closes their sockets at its next turn


async def system_of(connection: Sql) -> str:
    return str(await connection.fetchval("SELECT system_identifier FROM pg_control_system()"))


def ahead(system_id: str) -> Timelines:
    timelines = Timelines()
    timelines.learn(ServerTimeline(system_id, 2))
    return timelines


async def test_a_server_on_an_older_timeline(pools: Pools, connection: Sql) -> None:
    timelines = ahead(await system_of(connection))
    pool = pools.of(timelines)
    with pytest.raises(UnavailableError, match="on timeline 1, and this host has seen timeline 2"):
        await pool.open()
    assert timelines.refused is not None


async def test_a_standby_takes_no_writes(connection: Sql) -> None:
    """It may have become one after the driver has looked."""
    await connection.execute("""
        CREATE FUNCTION public.pg_is_in_recovery() RETURNS bool RETURN true; SET search_path = public, pg_catalog""")
    try:
        with pytest.raises(UnavailableError, match="the database here is a standby: it takes no writes"):
            await Timelines().admit(connection, "here", writable=True)
        assert (await Timelines().admit(connection, "here")).timeline is None
    finally:
        await connection.execute("RESET search_path; DROP FUNCTION public.pg_is_in_recovery()")


async def test_what_another_process_has_seen(pools: Pools, connection: Sql, tmp_path: Path) -> None:
    """The state directory has it, read at each new connection; not of a promoted copy that it uses elsewhere."""
    timelines = Store(Target(pools.dsn, "t")).timelines
    timelines.directory = tmp_path
    book = MemoryFile(tmp_path)
    known = msgspec.structs.replace(book.open(UUID(int=1)), system_id=await system_of(connection), timeline=2)
    for database in ("", "staging:5432/pulse"):
        book.keep(msgspec.structs.replace(known, database=database))
        await pools.of(timelines).open()
    book.keep(msgspec.structs.replace(known, database=database_of(pools.dsn)))
    with pytest.raises(UnavailableError, match="this host has seen timeline 2"):
        await pools.of(timelines).open()


async def test_idle_connections_to_an_older_timeline(pools: Pools, connection: Sql) -> None:
    """They are dropped as soon as a newer one is seen; until then they are used again."""
    timelines = Timelines()
    pool = pools.of(timelines)
    async with pool.connection() as first:
        pass
    async with pool.connection() as again:
        assert again is first
    timelines.learn(ServerTimeline(await system_of(connection), 2))
    with pytest.raises(UnavailableError, match="is on timeline 1"):
        await pool.open()
    assert first.is_closed()


async def test_other_hosts_are_tried(pools: Pools, connection: Sql, monkeypatch: Patch) -> None:
    """Where the first that takes writes is too old, the others, each by itself; the schema that is meant stays."""
    dsn = pools.dsn
    query = parse_qs(urlsplit(dsn).query)
    place = f"{query['host'][0]}", query["port"][0]
    several = f"postgresql:///{urlsplit(dsn).path[1:]}?host={place[0]},{place[0]}&port={place[1]},{place[1]}&user=pulse"
    timelines = ahead(await system_of(connection))
    admit, asked = timelines.admit, list[str]()

    async def second_is_newer(connection: Sql, shown: str, *, writable: bool) -> ServerTimeline:
        asked.append(shown)
        assert writable
        return ServerTimeline("another", 1) if len(asked) == 2 else await admit(connection, shown, writable=writable)

    monkeypatch.setattr(timelines, "admit", second_is_newer)
    async with pools.of(timelines, several, "orders").connection() as found:
        assert schema_in(found) == '"orders"'
    assert ["," in one for one in asked] == [False, False]
