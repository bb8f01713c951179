"""A claim that has its snapshot, and waits for the test before it locks or takes anything."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

import asyncpg

from tests.support.store.helpers import Sql
from tests.support.waiting import until_blocked

GATE_LOCK: Final = 7
# In front of the gate, which a claim reads first: a view that waits for the test.
SLOW_GATE: Final = f"""
    ALTER TABLE pulse.dispatch_control RENAME TO gate;
    CREATE FUNCTION pulse.wait() RETURNS boolean LANGUAGE plpgsql VOLATILE AS
        'BEGIN PERFORM pg_advisory_xact_lock_shared({GATE_LOCK}); RETURN true; END';
    CREATE VIEW pulse.dispatch_control AS SELECT * FROM pulse.gate WHERE pulse.wait() OFFSET 0;
"""


@dataclass(frozen=True, slots=True)
class Held:
    """The session that holds the claim back: it alone passes the gate, and so may claim meanwhile."""

    session: Sql
    results: list[Any] = field(default_factory=list)

    @contextlib.asynccontextmanager
    async def connection(self, deadline_s: float = 0.0) -> AsyncIterator[Sql]:
        del deadline_s
        yield self.session


@contextlib.asynccontextmanager
async def held(dsn: str, connection: Sql, claim: Coroutine[Any, Any, Any]) -> AsyncIterator[Held]:
    """Meanwhile *claim* waits, with a snapshot of before; afterwards its result is in ``results``."""
    await connection.execute(SLOW_GATE)
    session = await asyncpg.connect(dsn)
    try:
        await session.execute(f"SELECT pg_advisory_lock({GATE_LOCK})")
        waiting = asyncio.ensure_future(claim)
        await until_blocked(connection, by=session.get_server_pid())
        meanwhile = Held(session)
        yield meanwhile
        await session.execute(f"SELECT pg_advisory_unlock({GATE_LOCK})")
        meanwhile.results.append(await waiting)
    finally:
        await session.close(timeout=5)
