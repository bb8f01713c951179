"""Reads jobs with corrupt values: the columns that can be read, and the names of those that cannot."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import asyncpg

from pulse.store.failures import Meaning, meaning_of
from pulse.store.reading.page_size import LONG
from pulse.store.statements import STATEMENTS

if TYPE_CHECKING:
    from asyncpg import Connection, Record
    from asyncpg.pgproto.pgproto import UUID


async def legible_job(connection: Connection[Record], identity: UUID) -> dict[str, object] | None:
    """The readable columns of a job; ``omitted`` names the others. None: there is no such job."""
    found = await connection.fetchrow(STATEMENTS["jobs_in_brief"].sql, [identity])
    if found is None:
        return None
    row: dict[str, object] = {**found, **dict.fromkeys(LONG)}
    omitted = list[str]()
    for name in LONG:

        async def read(name: str = name) -> None:
            row[name] = await connection.fetchval(STATEMENTS["job_text"].sql, identity, name)

        if not await _is_read(connection, read):
            omitted.append(name)
    return {**row, "omitted": omitted} if omitted else row


async def legible_history(connection: Connection[Record], identity: UUID) -> list[Record]:
    """Its attempts; empty where they cannot be read."""
    rows: list[Record] = []

    async def read() -> None:
        rows.extend(await connection.fetch(STATEMENTS["job_history"].sql, identity))

    await _is_read(connection, read)
    return rows


async def legible_jobs(
    connection: Connection[Record], ids: Sequence[UUID], statement: str
) -> list[Mapping[str, object]]:
    """The rows of *statement*; one by one where some cannot be read."""
    rows: list[Mapping[str, object]] = []

    async def read() -> None:
        rows.extend(map(dict, await connection.fetch(STATEMENTS[statement].sql, ids)))

    if not ids or await _is_read(connection, read):
        return rows
    if len(ids) == 1:
        job = await legible_job(connection, ids[0])
        return [] if job is None else [job]
    middle = len(ids) // 2
    first = await legible_jobs(connection, ids[:middle], statement)
    return first + await legible_jobs(connection, ids[middle:], statement)


async def _is_read(connection: Connection[Record], read: Callable[[], Awaitable[None]]) -> bool:
    """Whether the database can read it; raises if the database is away."""
    try:
        async with connection.transaction():
            await read()
    except asyncpg.PostgresError as error:
        if meaning_of(error) in {Meaning.AWAY, Meaning.CONTESTED}:
            raise
        return False
    return True
