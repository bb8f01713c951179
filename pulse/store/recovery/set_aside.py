"""Jobs that the database refuses by themselves are set aside: claims skip them, and they are tried again one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from asyncpg.pgproto.pgproto import UUID

from pulse.store.arguments import MAX_ERROR_CHARS, level_columns, short, uuids
from pulse.store.rows import GroupLevel, Level, level_of
from pulse.store.statements import STATEMENTS

if TYPE_CHECKING:
    from asyncpg import Record

    from pulse.errors import StatementError
    from pulse.store.connections.pool import Pool

WAITING: Final = frozenset({"PENDING", "RETRYING"})


class Suspect(NamedTuple):
    """A job that a claim would look at; ``due_s``: when it is due, Unix seconds."""

    id: bytes
    level: Level | GroupLevel
    due_s: float


class SetAside(msgspec.Struct, frozen=True):
    """A job that is due for another try; ``suspect`` None: no claim needs it any more."""

    id: bytes
    suspect: Suspect | None
    statement: str
    sqlstate: str
    status: str | None


class SetAsideStore:
    """
    The table of them.

    Args:
        pool: The hot connections, so that the plans are those of the refused statements.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def claimable(
        self,
        topics: Sequence[str],
        limit: int,
        levels: Sequence[tuple[str, int, float | None]] | None,
        groups: Sequence[tuple[GroupLevel, float | None]] = (),
    ) -> list[Suspect]:
        """The jobs that a claim would look at: *levels* as for ``Store.claim``, *groups* as for ``LimitClaims``."""
        named = [*(levels or ()), *((level.topic, level.priority, from_s) for level, from_s in groups)]
        keys = [*(None for _ in levels or ()), *(level.group for level, _ in groups)]
        async with self._pool.connection() as connection:
            rows = await connection.fetch(
                STATEMENTS["claimable_jobs"].sql,
                topics if levels is None else [], limit, *level_columns(named), None, short(keys),
            )  # fmt: skip
        return [Suspect(row["id"], _level(row), row["due_s"]) for row in rows]

    async def add(
        self, refused: Sequence[tuple[bytes, StatementError]], pause_s: float, most: int | None = None
    ) -> set[bytes]:
        """
        Set these aside, or record that they were refused again; not if *most* jobs are set aside already.

        Returns:
            Those that are newly set aside.
        """
        ordered = sorted(dict(refused).items())
        async with self._pool.connection() as connection:
            rows = await connection.fetch(
                STATEMENTS["set_aside_jobs"].sql,
                uuids([job for job, _ in ordered]),
                [error.sqlstate for _, error in ordered],
                [error.statement for _, error in ordered],
                [error.message[:MAX_ERROR_CHARS] for _, error in ordered],
                pause_s,
                most,
            )
        return {row["id"] for row in rows}

    async def next(self, pause_s: float) -> SetAside | None:
        """The job to try now; its next turn is *pause_s* later. None: there is none."""
        async with self._pool.connection() as connection:
            row = await connection.fetchrow(STATEMENTS["next_set_aside"].sql, pause_s)
        if row is None:
            return None
        waits = row["status"] in WAITING and not row["expired"]
        suspect = Suspect(row["id"], _level(row), row["due_s"]) if waits else None
        return SetAside(row["id"], suspect, row["statement"], sqlstate=row["sqlstate"], status=row["status"])

    async def readmit_like(self, sqlstate: str) -> None:
        """Try jobs again whose claims were refused with this SQLSTATE: the cause may be gone, as for another job."""
        async with self._pool.connection() as connection:
            await connection.execute(STATEMENTS["readmit_like"].sql, sqlstate)

    async def readmit(self, ids: Sequence[bytes]) -> None:
        """The database accepts these again."""
        async with self._pool.connection() as connection:
            await connection.execute(STATEMENTS["readmit_jobs"].sql, uuids(ids))

    async def first_late(self) -> bytes | None:
        """The job that `expire` would end first."""
        async with self._pool.connection() as connection:
            row = await connection.fetchrow(STATEMENTS["first_late_job"].sql, None)
        return None if row is None else row["id"]

    async def first_from(self, first: bytes) -> bytes | None:
        """The first job in the order of ids, from *first* on."""
        async with self._pool.connection() as connection:
            row = await connection.fetchrow(STATEMENTS["first_job_from"].sql, UUID(first))
        return None if row is None else row["id"]


def _level(row: Record) -> Level | GroupLevel:
    return level_of(row["topic"], row["group_key"], row["priority"])
