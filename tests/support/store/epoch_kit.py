"""A database that goes back: what it held is kept aside, and put back as a restore does it, in one transaction."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from pulse.store.recovery.epochs import DatabaseState, Held, HostContact, Witnessed
from pulse.store.store import Store
from tests.support.store.helpers import Sql

ME: Final = UUID(int=7)
OTHER: Final = UUID(int=8)
HOST: Final = "here"
LEASE_S: Final = 30.0
_TABLES: Final = ("jobs", "attempts", "epochs", "witnesses")


async def keep(connection: Sql) -> None:
    await connection.execute("DROP SCHEMA IF EXISTS kept CASCADE; CREATE SCHEMA kept")
    for table in _TABLES:
        columns = ", ".join(await _columns(connection, table))
        await connection.execute(f"CREATE TABLE kept.{table} AS SELECT {columns} FROM pulse.{table}")


async def put_back(connection: Sql) -> None:
    """As a restore of the data does: the rows are as they were."""
    async with connection.transaction():
        for table in _TABLES:
            columns = ", ".join(await _columns(connection, table))
            await connection.execute(f"DELETE FROM pulse.{table}")
            await connection.execute(f"INSERT INTO pulse.{table} ({columns}) SELECT {columns} FROM kept.{table}")


async def _columns(connection: Sql, table: str) -> list[str]:
    sql = "SELECT attname FROM pg_attribute WHERE attrelid = $1::text::regclass AND attnum > 0 AND NOT attisdropped"
    return [row["attname"] for row in await connection.fetch(sql, f"pulse.{table}")]


async def clean(connection: Sql) -> None:
    await connection.execute(
        "DELETE FROM pulse.witnesses; DELETE FROM pulse.epochs WHERE epoch > 1; DELETE FROM pulse.jobs"
    )


async def come(store: Store, instance: UUID = ME, *, highest: int = 1000) -> tuple[DatabaseState, Witnessed]:
    seen = await store.epochs.look(instance, None, LEASE_S)
    _, mark = await store.epochs.begin(seen, HostContact(instance, HOST, 0, highest))
    assert mark is not None
    return seen, Witnessed(instance, mark.counter, seen.epoch, seen.started_at, seen.relation)


async def raised(
    store: Store, epoch: int, instance: UUID = ME, *, highest: int = 1000, held: Held | None = None
) -> tuple[int, int] | None:
    """A host raises the epoch; its number and its floor, None: another host was faster."""
    seen = await store.epochs.look(instance, None, LEASE_S)
    made, _ = await store.epochs.begin(seen, HostContact(instance, HOST, 1, highest), epoch=epoch, held=held)
    return made
