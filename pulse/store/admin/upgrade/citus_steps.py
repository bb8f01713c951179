"""
Takes the steps of an upgrade where Citus keeps the queue.

What changes tables and types goes through the coordinator to all nodes; everything else to the node that has the rows,
whose views then get the new columns. No transaction spans the two: a step that is interrupted is taken again.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from functools import partial
from typing import TYPE_CHECKING, Final

import asyncpg

from pulse.errors import UnavailableError
from pulse.store.admin.upgrade.citus_forms import refuse_other_forms
from pulse.store.admin.upgrade.plan import UPGRADE
from pulse.store.admin.upgrade.steps import Step, StepKind
from pulse.store.connections import citus_schema
from pulse.store.connections.citus import CITUS, is_distributed, shards_of
from pulse.store.connections.citus_installation import coordinator_of
from pulse.store.connections.session import in_schema, schema_in

if TYPE_CHECKING:
    from asyncpg import Connection, Record

    from pulse.store.connections.pool import Target

__all__ = ["CitusSteps", "steps_on_citus"]

LOCK_MS: Final = 50  # on the node of the rows, for a lock that others would wait behind
# A statement that is sent to all nodes with such a lock: the time limit of the coordinator is the only one they notice.
HOLD_MS: Final = 150
WEAK_LOCK_MS: Final = 5_000
# What a statement raises on a node that the rows have left: by the trigger, and when Citus has dropped the tables.
_WITHOUT_ROWS: Final = (asyncpg.ReadOnlySQLTransactionError, asyncpg.UndefinedTableError)
# The coordinator takes no COMMIT in one message with a change of a table: who hangs in between keeps the lock.
_LIMITS: Final = {"statement_timeout": "0", "lock_timeout": "0", "idle_in_transaction_session_timeout": "2000"}


@contextlib.asynccontextmanager
async def steps_on_citus(home: Connection[Record], target: Target | None) -> AsyncGenerator[CitusSteps | None]:
    """
    What takes the steps; None: Citus does not keep this queue.

    Args:
        home: A session of the node that has the rows, for this alone.
        target: The coordinator and the nodes; None: there is no Citus.
    """
    if target is None or not await is_distributed(home):
        yield None
        return
    coordinator = await coordinator_of(target, _LIMITS)
    try:
        await _become(coordinator, await home.fetchval(CITUS["owner_of_rows"].sql))
        await _become(home, await home.fetchval(CITUS["owner_of_views"].sql))
        await home.execute(CITUS["stay_local"].sql)
        await home.execute(CITUS["forget_version_of_functions"].sql)
        yield CitusSteps(home, coordinator)
    except _WITHOUT_ROWS:
        await _look_at_home(home)
        raise
    finally:
        coordinator.terminate()


async def _become(connection: Connection[Record], role: str) -> None:
    """What the session makes belongs to *role*."""
    await connection.execute(UPGRADE["upgrade_role"].sql, role)


async def _look_at_home(home: Connection[Record]) -> None:
    """Raise UnavailableError if the session's node has the rows no more."""
    found = await home.fetchrow(CITUS["home_of_rows"].sql)
    if found is None or not (found["is_here"] and found["is_attached"]):
        raise UnavailableError(
            f"Citus has moved the queue {schema_in(home)} to another node while it was upgraded: "
            "run pulse migrate again"
        )


class CitusSteps:
    """
    Takes steps.

    Args:
        home: A session of the node that has the rows, where nothing is propagated.
        coordinator: One of the coordinator.
    """

    def __init__(self, home: Connection[Record], coordinator: Connection[Record]) -> None:
        self._home = home
        self._coordinator = coordinator

    async def take(self, step: Step) -> None:
        """Take a step that is not one of batches; nothing of it is harmful when it is done again."""
        refuse_other_forms(step)
        if step.index is not None:
            await self._remove_interrupted(step.index)
        if step.locks_out:
            await self._reach_nodes()
        for command in citus_schema.commands(f"{step.sql};"):
            if command:
                await self._take(step, command)

    async def _take(self, step: Step, command: str) -> None:
        shards = await self._shards()
        if await self._is_there(citus_schema.type_made_by(command)):  # a move has begun the upgrade anew
            return
        table = (step.table or "").removeprefix("pulse.")
        if step.locks_out and table in shards:
            await self._end_autovacuum(f"pulse_rows.{table}_{shards[table]}")
        limited = partial(self._limited, locks_out=step.locks_out)
        through = citus_schema.for_coordinator(command, shards)
        if not through:
            await limited(self._home, citus_schema.for_rows(command, shards, CITUS["notice_move"].sql))
            return
        dropped = citus_schema.columns_dropped_by(command)
        await self._widen(dropped)
        if step.kind is StepKind.CONCURRENT:
            await self._coordinator.execute(*through)
        else:
            await limited(self._coordinator, *through)
        made = citus_schema.table_made_by(command)
        if made is not None and not await self._is_there(made):
            await limited(self._home, *citus_schema.view_of(command, await self._shards()))
        await self._widen(dropped)

    async def _is_there(self, name: str | None) -> bool:
        return name is not None and bool(await self._home.fetchval(CITUS["type_there"].sql, name))

    async def _shards(self) -> dict[str, int]:
        """The shards of the tables, on the node that has the rows: the session's, or the upgrade begins anew."""
        await _look_at_home(self._home)
        return await shards_of(self._home)

    async def _widen(self, dropped: list[str]) -> None:
        """Let the views have the columns of their tables, but for those that are to go: a view would keep them."""
        for row in await self._home.fetch(CITUS["wider_views"].sql, dropped):
            await self._limited(self._home, row["statement"], locks_out=True)

    async def _end_autovacuum(self, shard: str) -> None:
        """Wait until none has the table: the coordinator's time limit is too short for PostgreSQL to end one."""
        name = in_schema(self._home, shard)
        async with self._home.transaction():
            await self._home.execute(UPGRADE["upgrade_limits"].sql, f"{WEAK_LOCK_MS}", "0")
            await self._home.execute(await self._home.fetchval(UPGRADE["upgrade_guard"].sql, name))

    async def _remove_interrupted(self, index: str) -> None:
        left = await self._coordinator.fetchval(UPGRADE["upgrade_invalid_rows"].sql, index)
        if left is not None:
            await self._coordinator.execute(left)

    async def _reach_nodes(self) -> None:
        """Let the coordinator connect to the nodes, and fill its caches, before a step has little time."""
        async with self._coordinator.transaction():
            await self._coordinator.execute(UPGRADE["upgrade_limits"].sql, f"{LOCK_MS}", f"{WEAK_LOCK_MS}")
            await self._coordinator.execute(CITUS["reach_nodes"].sql)

    async def _limited(self, connection: Connection[Record], *commands: str, locks_out: bool) -> None:
        """Run commands in a transaction that others wait behind for milliseconds only, if it locks them out."""
        lock_ms, hold_ms = (LOCK_MS, HOLD_MS) if locks_out else (WEAK_LOCK_MS, 0)
        async with connection.transaction():
            await connection.execute(UPGRADE["upgrade_limits"].sql, f"{lock_ms}", f"{hold_ms}")
            for command in commands:
                await connection.execute(command)
