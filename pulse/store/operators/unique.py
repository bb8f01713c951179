"""
Submits that need a transaction of their own: repeated ones, those with unique keys, and those that wait for other jobs.

A key may belong to a transaction that is open: such a submit waits for it, on connections of its own, so that nothing
else does.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from pulse.errors import ConflictError, NotFoundError, StatementError
from pulse.store.arguments import job_columns, label_columns, uuids
from pulse.store.failures import FOREIGN_KEY_VIOLATION, UNIQUE_VIOLATION, refuse_swallowed
from pulse.store.rows import Wake
from pulse.store.statements import STATEMENTS

if TYPE_CHECKING:
    from asyncpg import Connection, Record

    from pulse.protocol import SubmittedJob
    from pulse.store.connections.pool import Pool

UNIQUE_CONNECTIONS: Final = 4  # opened when they are needed; more submits at once than that have to wait


class UniqueSubmits:
    """
    Submits with unique keys.

    Args:
        pool: Its own connections.

    Attributes:
        pool: The same.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    async def submit_again(self, jobs: Sequence[SubmittedJob], *, now: datetime | None = None) -> list[Wake]:
        """
        Insert those of *jobs* that are not there yet; all or none.

        Raises:
            ConflictError: An id belongs to a job with another name, topic or args, or occurs twice in *jobs*.
        """
        async with self.pool.connection() as connection, connection.transaction():
            return await _insert_again(connection, jobs, now)

    async def submit(
        self, jobs: Sequence[SubmittedJob], *, now: datetime | None = None
    ) -> tuple[list[bytes], list[Wake]]:
        """
        Insert *jobs*, some of which have unique keys or wait for others; all or none.

        Args:
            jobs: Each has an id.
            now: Instead of the database's clock.

        Returns:
            The id of each: its own, or the id of the job that has its key; and the levels that got work.

        Raises:
            ConflictError: Another job has a key, and is to be kept; or an id belongs to another job.
            NotFoundError: A job that one is to wait for is not there.
            StatementError: A job cannot be stored.
            StatementTimeoutError: A transaction that is open has taken a key, or lets one go.
        """
        keyed = [job for job in jobs if job.unique is not None]
        plain = [job for job in jobs if job.unique is None]
        keys = [job.unique for job in keyed], [job.unique_until for job in keyed], [job.on_conflict for job in keyed]
        try:
            async with self.pool.connection() as connection, connection.transaction():
                known = await _known(connection, [job.id for job in jobs if job.after and job.id])
                woken = await _insert_again(connection, plain, now) if plain else []
                rows = await connection.fetch(
                    STATEMENTS["submit_unique"].sql, *job_columns(keyed), *label_columns(keyed), now, *keys
                )
                found: dict[int, bytes] = {row["place"]: row["id"] for row in rows}
                places = itertools.count(1)
                ids = [(job.id or b"") if job.unique is None else found[next(places)] for job in jobs]
                stored_as = {job.id or b"": stored for job, stored in zip(jobs, ids, strict=True)}
                await _hold(
                    connection,
                    [job for job, stored in zip(jobs, ids, strict=True) if job.id == stored and stored not in known],
                    stored_as,
                )
        except StatementError as error:
            if error.sqlstate == UNIQUE_VIOLATION:
                raise ConflictError(error.message) from error
            if error.sqlstate == FOREIGN_KEY_VIOLATION:
                raise NotFoundError(error.message) from error
            raise
        return ids, [*woken, *(_wake(row, keyed) for row in rows if row["topic"] is not None)]


async def _known(connection: Connection[Record], ids: Sequence[bytes]) -> set[bytes]:
    """Which of these jobs were there before; they wait for what their first submit said."""
    return {row["id"] for row in await connection.fetch(STATEMENTS["job_statuses"].sql, uuids(ids))} if ids else set()


async def _hold(connection: Connection[Record], jobs: Sequence[SubmittedJob], stored_as: Mapping[bytes, bytes]) -> None:
    """
    Let those of *jobs*, which this transaction has inserted, wait that are to wait for others.

    Where another job has the unique key of one of these, *stored_as* has its id, and they wait for that one.
    """
    edges = [
        (job.id, parent, job.on_failure)
        for job in jobs
        if job.id
        for parent in dict.fromkeys(stored_as.get(one, one) for one in job.after or ())
    ]
    if not edges:
        return
    counts = Counter(child for child, _, _ in edges)
    await connection.fetch(STATEMENTS["hold_jobs"].sql, uuids(list(counts)), list(counts.values()))
    children, parents = uuids([child for child, _, _ in edges]), uuids([parent for _, parent, _ in edges])
    await connection.execute(STATEMENTS["add_dependencies"].sql, children, parents, [how for _, _, how in edges])


def _wake(row: Record, keyed: Sequence[SubmittedJob]) -> Wake:
    """The level of a job that is new or was replaced; only a new one counts."""
    place: int = row["place"]
    is_new = int(row["id"] == keyed[place - 1].id)
    return Wake(row["topic"], row["priority"], row["due_s"], jobs=is_new, group_key=row["group_key"])


async def _insert_again(
    connection: Connection[Record], jobs: Sequence[SubmittedJob], now: datetime | None
) -> list[Wake]:
    """In a transaction; see ``submit_again``."""
    columns = job_columns(jobs)
    rows = await connection.fetch(STATEMENTS["submit_again"].sql, *columns, *label_columns(jobs), now)
    other = await connection.fetch(STATEMENTS["submitted_differently"].sql, *columns[:4])
    refuse_swallowed(len(jobs), len(jobs) - sum(row["is_missing"] for row in other))
    if other:
        message = f"job {other[0]['id']} exists already with another name, topic or args"
        raise ConflictError(message)
    return [Wake(*row) for row in rows]
