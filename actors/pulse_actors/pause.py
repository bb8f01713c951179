"""
The pause actor: keeper of the dispatch gate.

The gate itself is tested in every claim, so a pause is exact without this actor. It reads the gate at boot, and pulse
does not start where it cannot be read: nobody could tell whether dispatch is paused. Afterwards it watches, by NOTIFY
and once a second, and wakes the dispatcher when a gate opens; one whose time is over it opens itself, and says so. It
watches the policies of topics in the same way, of which the dispatcher keeps a part in memory.
"""

from __future__ import annotations

import asyncio
from typing import Final

import anyio
import asyncpg
import structlog

from pulse.errors import PulseError
from pulse.store.gate import GATE_CHANNEL
from pulse.store.pool import STATEMENT_DEADLINE_S, connect
from pulse.store.store import Store
from pulse.store.topics import LivePolicy
from pulse_actors.bus import Hint
from pulse_actors.runtime import Backoff, Runtime, Turn, TurnResult, database_status

REFRESH_S: Final = 1.0  # how soon a gate that another host changed is seen here, should its NOTIFY be lost

log = structlog.get_logger()


class Pause:
    """
    Watches the gate.

    Args:
        store: The database.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._gate: dict[str, object] = {}
        self._policies: dict[str, LivePolicy] | None = None

    async def prime(self, *, boot: bool) -> None:
        """Read the gate; the runtime refuses to start where that fails at boot."""
        del boot
        self._gate = await self._store.gate.get()
        if self._gate["paused"] or self._gate["topics"]:
            log.warning("dispatch_paused", **self._gate)

    async def turn(self, turn: Turn) -> TurnResult:
        """Look at the gate and the policies; tell the dispatcher what changed."""
        del turn
        hints: list[Hint] = []
        for topic, reason, who in await self._store.gate.expire():
            log.info("pause_expired", topic=topic, reason=reason, paused_by=who)
        gate, left_s = await self._store.gate.look()
        if gate != self._gate:
            self._gate = gate
            log.info("gate_changed", **gate)
            hints.append(Hint("dispatcher", "gate changed"))
        policies = await self._store.topics.live()
        if policies != self._policies:
            if self._policies is not None:
                log.info("policies_changed", topics=len(policies))
            self._policies = policies
            hints.append(Hint("dispatcher", "policies changed"))
        return TurnResult(REFRESH_S if left_s is None else min(REFRESH_S, max(left_s, 0.0)), tuple(hints))

    async def status(self) -> dict[str, object]:
        """The gate, and whether the database is there."""
        database = await database_status(self._store)
        return {"database": database, "gate": await self._store.gate.get() if database["ok"] else None}


async def _listen(runtime: Runtime) -> None:
    """Turn each NOTIFY into a turn, on a connection of its own; the refresh is behind it."""
    backoff = Backoff()

    def heard(*_notification: object) -> None:
        runtime.poke(Hint("pause", "gate changed"))

    while True:
        lost = asyncio.Event()
        try:
            connection = await connect(runtime.store.query.target, {})
        except PulseError:
            await anyio.sleep(backoff.next_s())
            continue
        try:
            connection.add_termination_listener(lambda _connection, lost=lost: lost.set())
            async with asyncio.timeout(STATEMENT_DEADLINE_S):
                await connection.add_listener(GATE_CHANNEL, heard)
            backoff.reset()
            await lost.wait()
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            log.debug("listen_failed", error=str(error))
        finally:
            connection.terminate()
        await anyio.sleep(backoff.next_s())


async def pause(runtime: Runtime) -> None:
    """The pause actor's main part."""
    actor = Pause(runtime.store)
    await runtime.prime(actor)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_listen, runtime)
        await runtime.loop(actor)
        tasks.cancel_scope.cancel()
