"""Changes of jobs by operators. Each change is guarded by the status, so of two at once the first one wins."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, NamedTuple, Protocol

from asyncpg.pgproto.pgproto import UUID

from pulse.store.arguments import MAX_ERROR_CHARS, uuids
from pulse.store.rows import Canceled, Wake
from pulse.store.statements import STATEMENTS

if TYPE_CHECKING:
    from datetime import datetime

    from asyncpg import Connection, Record

    from pulse.errors import StatementError


class Connections(Protocol):
    """Lends connections to statements: a pool, or an open transaction."""

    def connection(self, deadline_s: float = ...) -> AbstractAsyncContextManager[Connection[Record]]:
        """A connection for the block."""
        ...


class ChangedJob(NamedTuple):
    """The topic and priority that a job had, and the level to wake (None: it was not moved)."""

    topic: str
    priority: int
    wake: Wake | None


class RestartedJob(NamedTuple):
    """The level to wake (None: it is held), whether it had completed, and whether it waits for jobs, or jobs for it."""

    wake: Wake | None
    had_completed: bool
    has_relatives: bool = False


class Operations(ABC):
    """Statements about jobs by their ids."""

    @property
    @abstractmethod
    def lender(self) -> Connections:
        """Lends them their connections."""

    async def cancel(self, ids: Sequence[bytes], *, now: datetime | None = None) -> list[Canceled]:
        """Cancel jobs; returns those that were. A missing one is terminal already, or does not exist."""
        async with self.lender.connection() as connection:
            rows = await connection.fetch(STATEMENTS["cancel_jobs"].sql, uuids(ids), now)
        return [Canceled(*row.values()) for row in rows]

    async def set_aside(self, identity: bytes, statement: str, error: StatementError) -> bool:
        """Set aside a job that *statement* could not change: no claim takes it any more. Returns whether it exists."""
        words = (error.sqlstate, statement, error.message[:MAX_ERROR_CHARS])
        async with self.lender.connection() as connection:
            return bool(await connection.fetch(STATEMENTS["set_aside_for_good"].sql, UUID(identity), *words))

    async def lift(self, ids: Sequence[bytes]) -> None:
        """These could be changed: they are no longer set aside."""
        async with self.lender.connection() as connection:
            await connection.execute(STATEMENTS["lift_jobs"].sql, uuids(ids))

    async def retry(self, ids: Sequence[bytes], *, now: datetime | None = None) -> dict[bytes, RestartedJob]:
        """Retry terminal jobs with fresh budgets; returns those. A missing one is not terminal, or not there."""
        async with self.lender.connection() as connection:
            rows = await connection.fetch(STATEMENTS["retry_jobs"].sql, uuids(ids), now)
        return {row["id"]: RestartedJob(_wake(row), row["had_completed"], row["has_relatives"]) for row in rows}

    async def dependents(self, ids: Sequence[bytes], limit: int) -> list[bytes]:
        """Up to *limit* jobs that wait for these, or have waited for them, directly or not."""
        async with self.lender.connection() as connection:
            rows = await connection.fetch(STATEMENTS["dependents"].sql, uuids(ids), limit)
        return [row["id"] for row in rows]

    async def prevented(self, ids: Sequence[bytes], limit: int) -> list[bytes]:
        """Up to *limit* jobs that were canceled because these had failed, directly or not; they are locked."""
        async with self.lender.connection() as connection:
            rows = await connection.fetch(STATEMENTS["prevented_jobs"].sql, uuids(ids), limit)
        return [row["id"] for row in rows]

    async def wait_again(self, retried: Sequence[bytes], prevented: Sequence[bytes] = ()) -> dict[bytes, bool]:
        """
        Let retried jobs count again for those that wait for them, and wait again themselves.

        Args:
            retried: They were retried in this transaction.
            prevented: The ones among them that were canceled because another job had failed.

        Returns:
            Whether each is held, of those that still wait: others a job that is still failed has canceled again.
        """
        async with self.lender.connection() as connection:
            rows = await connection.fetch(STATEMENTS["wait_again"].sql, uuids(retried), uuids(prevented))
        return {row["id"]: row["is_held"] for row in rows}

    async def delete(self, ids: Sequence[bytes]) -> set[bytes]:
        """Delete jobs that are terminal or set aside, with their history; returns those. A missing one is neither."""
        async with self.lender.connection() as connection:
            aside = await connection.fetch(STATEMENTS["delete_set_aside"].sql, uuids(ids))
            rows = await connection.fetch(STATEMENTS["delete_jobs"].sql, uuids(ids))
        return {row["id"] for row in (*aside, *rows)}

    async def change(
        self,
        ids: Sequence[bytes],
        *,
        topic: str | None = None,
        priority: int | None = None,
        now: datetime | None = None,
    ) -> dict[bytes, ChangedJob]:
        """
        Move jobs that wait to another topic or priority.

        Args:
            ids: Which.
            topic: None: it stays.
            priority: None: it stays.
            now: Instead of the database's clock.

        Returns:
            Those that have the new values, and the values before. A missing one does not wait, or does not exist.
        """
        async with self.lender.connection() as connection:
            rows = await connection.fetch(STATEMENTS["change_jobs"].sql, uuids(ids), topic, priority, now)
        return {
            row["id"]: ChangedJob(row["old_topic"], row["old_priority"], None if row["due_s"] is None else _wake(row))
            for row in rows
        }

    async def statuses(self, ids: Sequence[bytes]) -> dict[bytes, tuple[str, int]]:
        """Status and attempt of each of *ids* that exists."""
        async with self.lender.connection() as connection:
            rows = await connection.fetch(STATEMENTS["job_statuses"].sql, uuids(ids))
        return {row["id"]: (row["status"], row["attempts"]) for row in rows}


def _wake(row: Record) -> Wake:
    return Wake(row["topic"], row["priority"], row["due_s"], group_key=row["group_key"])
