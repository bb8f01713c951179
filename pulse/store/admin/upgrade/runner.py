"""
Upgrades the schema step by step, while servers of both releases work.

Each step is committed by itself and noted in the same transaction, so an upgrade that was interrupted goes on where it
was. A step that locks out others waits for its lock for milliseconds only, since everybody else waits behind it, and
tries again later. Large tables are filled in batches. The version is written at the end, when all steps are done.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import asyncpg

from pulse.errors import SchemaError, UnavailableError
from pulse.store.admin import schema
from pulse.store.admin.checks import connected
from pulse.store.admin.roles import grants_sql, standing
from pulse.store.admin.upgrade.citus_steps import CitusSteps, steps_on_citus
from pulse.store.admin.upgrade.plan import UPGRADE, StepProgress, noted, steps_between
from pulse.store.admin.upgrade.steps import Step, StepKind
from pulse.store.connections.session import in_schema, schema_in

if TYPE_CHECKING:
    from asyncpg import Connection, Record

    from pulse.store.connections.pool import Target

__all__ = ["Upgrade", "upgrade"]

LOCK_MS: Final = 50  # longest wait for a lock that others would wait behind, and longest batch
HOLD_MS: Final = 80  # longest statement with such a lock, with its wait: claims are not held up for 100 ms
# Longest wait for a lock that no reader or writer waits behind; after a second PostgreSQL ends an autovacuum for it.
WEAK_LOCK_MS: Final = 5_000
PATIENCE_S: Final = 60.0  # how long a step tries to get its lock
RETRY_S: Final = 0.2  # between two tries; half of it to all of it
OTHERS_S: Final = 30.0  # how long to wait for another upgrade
SEEN_S: Final = 30.0  # a server says that it is there at each sweep, every 10 s
FIRST_ROWS: Final = 500
LEAST_ROWS: Final = 100  # fewer would not take less time: on a machine with too much to do a batch waits for its turn
MOST_ROWS: Final = 20_000
TOLD_EVERY_S: Final = 2.0
_LATER: Final = (asyncpg.LockNotAvailableError, asyncpg.QueryCanceledError, asyncpg.DeadlockDetectedError)
# Of the session; each transaction has its own limits.
_SETTINGS: Final = {"statement_timeout": "0", "lock_timeout": "0", "idle_in_transaction_session_timeout": "60000"}

Say = Callable[[str], None]
T = TypeVar("T")


async def upgrade(target: Target, say: Say = lambda _: None, *, alone: bool = False) -> int:
    """
    Bring the schema to the version of this pulse; install it where there is none.

    Args:
        target: The database, and the role with the right to do so.
        say: Called with what was done, and how far a long step has come.
        alone: No server runs, whatever the database remembers.

    Returns:
        The version that was found; 0: none.

    Raises:
        UnavailableError: Another upgrade is under way, or a table was locked for too long. What is done stays done.
        SchemaError: The schema is newer than this pulse can use, servers run that would not work with it, or the role
            lacks a right.
    """
    async with connected(target, _SETTINGS, owns_session=True) as connection:
        return await Upgrade(connection, say, alone=alone, target=target).run()


class Upgrade:
    """
    An upgrade of the database of one session, which nobody else uses.

    Args:
        say, alone: As for ``upgrade``.
        target: Where the coordinator is found, too, if Citus keeps the queue.
    """

    def __init__(
        self, connection: Connection[Record], say: Say, *, alone: bool = False, target: Target | None = None
    ) -> None:
        self._connection = connection
        self._say = say
        self._alone = alone
        self._target = target
        self._citus: CitusSteps | None = None
        self._told_s = time.monotonic()

    async def run(self) -> int:
        """Do all that is left to do; the version that was found."""
        found = await schema.ensure_schema(self._connection, any_older=True)
        if found == 0 or found >= schema.SCHEMA_VERSION:
            return found
        try:
            await self._lock()
            version = await schema.installed_version(self._connection)  # another upgrade may have ended meanwhile
            if version < schema.SCHEMA_VERSION:
                async with steps_on_citus(self._connection, self._target) as self._citus:
                    await self._upgrade(version)
        except asyncpg.InsufficientPrivilegeError as error:
            raise SchemaError(await schema.why_refused(self._connection, found, str(error.args[0]))) from error
        return found

    async def _lock(self) -> None:
        deadline_s = time.monotonic() + OTHERS_S
        while not await self._connection.fetchval(UPGRADE["upgrade_lock"].sql):
            if time.monotonic() > deadline_s:
                message = (
                    f"another upgrade of the schema {schema_in(self._connection)} has been under way for "
                    f"{OTHERS_S:.0f} s: wait until it is done"
                )
                raise UnavailableError(message)
            await asyncio.sleep(RETRY_S)

    async def _upgrade(self, found: int) -> None:
        if not self._alone:
            await self._refuse_old_servers(found)
        me = await standing(self._connection)
        if me.prefix is not None:
            await self._connection.execute(UPGRADE["upgrade_role"].sql, f"{me.prefix}owner")
        await self._connection.execute(UPGRADE["upgrade_notes"].sql)
        done = await noted(self._connection)
        for version in range(found + 1, schema.SCHEMA_VERSION + 1):
            steps = steps_between(version - 1, version)
            for number, step in enumerate(steps, 1):
                before = done.get((version, step.name), StepProgress())
                if not before.is_done:
                    self._say(f"version {version}, step {number} of {len(steps)}: {step.name}")
                    await self._take(step, before)
            await self._finish(version, me.prefix)

    async def _refuse_old_servers(self, found: int) -> None:
        """A server works with the schema before and after its own: two versions at once would break those that run."""
        if found >= schema.SCHEMA_VERSION - 1:
            return
        hosts = [row["host"] for row in await self._connection.fetch(UPGRADE["upgrade_servers"].sql, SEEN_S)]
        if hosts:
            raise SchemaError(
                f"the schema {schema_in(self._connection)} is at version {found}, this pulse brings "
                f"{schema.SCHEMA_VERSION}, and servers that run would not work with it, on {', '.join(hosts)}: "
                f"stop them, run this again {SEEN_S:.0f} s later; or upgrade release by release"
            )

    async def _take(self, step: Step, before: StepProgress) -> None:
        if self._citus is not None and step.kind is not StepKind.BATCHES:
            await self._patiently(step, partial(self._citus.take, step))
            await self._note(step, StepProgress(is_done=True))
            return
        match step.kind:
            case StepKind.BRIEF | StepKind.LONG:
                await self._patiently(step, partial(self._once, step))
            case StepKind.CONCURRENT:
                await self._concurrently(step)
            case StepKind.BATCHES:
                await self._fill(step, before)

    async def _once(self, step: Step) -> None:
        """Take a step and note it; its locks are held by the server's work alone, not by a round trip."""
        await self._connection.execute(UPGRADE["upgrade_begin"].sql)
        try:
            await self._note(step, StepProgress(is_done=True))
            await self._limit(WEAK_LOCK_MS, 0)
            if step.locks_out:
                guard = await self._connection.fetchval(
                    UPGRADE["upgrade_guard"].sql, step.table and in_schema(self._connection, step.table)
                )
                if guard is not None:
                    await self._connection.execute(guard)
                await self._limit(LOCK_MS, HOLD_MS)
            await self._connection.execute(f"{step.sql}\n{UPGRADE['upgrade_commit'].sql}")
        except asyncpg.PostgresError:
            await self._connection.execute(UPGRADE["upgrade_rollback"].sql)
            raise

    async def _concurrently(self, step: Step) -> None:
        left = None if step.index is None else await self._connection.fetchval(
            UPGRADE["upgrade_invalid"].sql, step.index
        )  # fmt: skip
        if left is not None:
            await self._connection.execute(left)
        await self._connection.execute(step.sql)
        await self._note(step, StepProgress(is_done=True))

    async def _fill(self, step: Step, before: StepProgress) -> None:
        reached, rows, size = before.reached, before.rows, FIRST_ROWS
        last = await self._patiently(step, partial(self._last, step))  # else it may go on for as long as rows come
        while True:
            began_s = time.monotonic()
            looked = await self._patiently(step, partial(self._batch, step, reached, size, last))
            if looked is None:
                return
            took_s = time.monotonic() - began_s
            reached, rows = looked[0], rows + looked[1]
            size = next_size(size, took_s)
            self._tell(f"{step.name}: {rows:,} rows")
            await asyncio.sleep(took_s)  # half of the time is for others

    async def _last(self, step: Step) -> str | None:
        """The last key that there is now; None: there is none."""
        async with self._connection.transaction():
            await self._limit(LOCK_MS, 0)
            table = in_schema(self._connection, step.table or "")
            found: str | None = await self._connection.fetchval(
                await self._connection.fetchval(UPGRADE["upgrade_last"].sql, step.key, table)
            )
            return found

    async def _batch(self, step: Step, reached: str | None, size: int, last: str | None) -> tuple[str, int] | None:
        """The key that was reached, and how many rows were looked at; None: there are no more up to the last."""
        async with self._connection.transaction():
            await self._limit(LOCK_MS, 0)
            row = await self._connection.fetchrow(step.sql, reached, size, last)
            if row is None or not row["rows"]:
                await self._note(step, StepProgress(is_done=True))
                return None
            await self._note(step, StepProgress(row["reached"], row["rows"]))
            return row["reached"], row["rows"]

    async def _finish(self, version: int, prefix: str | None) -> None:
        async with self._connection.transaction():
            await self._connection.execute(UPGRADE["upgrade_done"].sql, version, schema.RELEASES[version])
            if version == schema.SCHEMA_VERSION:
                await self._connection.execute(UPGRADE["upgrade_forget"].sql)
            if prefix is not None:
                await self._connection.execute(grants_sql(prefix))  # for new tables and functions, too

    async def _patiently(self, step: Step, take: Callable[[], Awaitable[T]]) -> T:
        """Take a step; again, while another session has what it needs."""
        deadline_s = time.monotonic() + PATIENCE_S
        table = in_schema(self._connection, step.table or "its locks")
        while True:
            try:
                return await take()
            except _LATER as error:
                if time.monotonic() > deadline_s:
                    message = (
                        f"step {step.name} of version {step.version} did not get {table} "
                        f"within {PATIENCE_S:.0f} s ({error}); `pulse doctor` shows who holds it; then run this again"
                    )
                    raise UnavailableError(message) from error
            self._tell(f"{step.name}: waits for {table}")
            await asyncio.sleep(RETRY_S * random.uniform(0.5, 1.0))  # noqa: S311 - spreads retries, guards nothing

    async def _limit(self, lock_ms: int, hold_ms: int) -> None:
        """Limit this transaction; 0: for ever. It does not wait for the disk: a step is lost with its note, or not."""
        await self._connection.execute(UPGRADE["upgrade_limits"].sql, f"{lock_ms}", f"{hold_ms}")

    async def _note(self, step: Step, noted: StepProgress) -> None:
        values = step.version, step.name, noted.reached, noted.rows, noted.is_done
        await self._connection.execute(UPGRADE["upgrade_note"].sql, *values)

    def _tell(self, text: str) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s >= TOLD_EVERY_S:
            self._told_s = now_s
            self._say(text)


def next_size(size: int, took_s: float) -> int:
    """How many rows the next batch has: it shall take a quarter to a half of what others may have to wait."""
    target_s = LOCK_MS / 1000
    if took_s > target_s:
        return max(LEAST_ROWS, size // 2)
    return min(MOST_ROWS, size * 2) if took_s < target_s / 4 else size
