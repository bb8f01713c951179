"""
The pause actor: keeper of the dispatch gate, and ear for what other hosts notify.

The gate itself is tested in every claim, so a pause is exact without this actor. It reads the gate at boot, and pulse
does not start where it cannot be read: nobody could tell whether dispatch is paused. Afterwards it watches, by NOTIFY
and once a second, and wakes the dispatcher when a gate opens. Over the same connection it hears of work that other
hosts have no room for, and passes that on.
"""

from __future__ import annotations

import math
from typing import Final

import anyio
import structlog

from pulse.store.gate import GATE_CHANNEL
from pulse.store.store import WORK_CHANNEL, Store
from pulse_actors.bus import Hint
from pulse_actors.listening import listen
from pulse_actors.runtime import Runtime, Turn, TurnResult, database_status

REFRESH_S: Final = 1.0  # how soon a gate that another host changed is seen here, should its NOTIFY be lost
WORK: Final = "work"  # hint: there is work; ``from``: who has said so

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
        self._read_s = -math.inf

    async def prime(self, *, boot: bool) -> None:
        """Read the gate; the runtime refuses to start where that fails at boot."""
        del boot
        self._gate = await self._store.gate.get()
        if self._gate["paused"] or self._gate["topics"]:
            log.warning("dispatch_paused", **self._gate)

    async def turn(self, turn: Turn) -> TurnResult:
        """Tell the dispatcher of work elsewhere; look at the gate, and tell it when that changed."""
        work = tuple(Hint("dispatcher", WORK, hint.data) for hint in turn.inbox if hint.event == WORK)
        left_s = self._read_s + REFRESH_S - turn.now_s
        if work and len(work) == len(turn.inbox) and left_s > 0:  # it may come ten times a second
            return TurnResult(left_s, work)
        gate = await self._store.gate.get()
        self._read_s = turn.now_s
        if gate == self._gate:
            return TurnResult(REFRESH_S, work)
        self._gate = gate
        log.info("gate_changed", **gate)
        return TurnResult(REFRESH_S, (*work, Hint("dispatcher", "gate changed")))

    async def status(self) -> dict[str, object]:
        """The gate, and whether the database is there."""
        database = await database_status(self._store)
        return {"database": database, "gate": await self._store.gate.get() if database["ok"] else None}


async def pause(runtime: Runtime) -> None:
    """The pause actor's main part."""
    actor = Pause(runtime.store)
    await runtime.prime(actor)

    def gate(_topic: str) -> None:
        runtime.poke(Hint("pause", "gate changed"))

    def work(sender: str) -> None:
        runtime.poke(Hint("pause", WORK, {"from": sender}))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listen, runtime.store.query.target, {GATE_CHANNEL: gate, WORK_CHANNEL: work})
        await runtime.loop(actor)
        tasks.cancel_scope.cancel()
