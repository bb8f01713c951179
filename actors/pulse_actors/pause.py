"""
The pause actor: keeper of the dispatch gate, and ear for what other hosts notify.

The gate itself is tested in every claim, so a pause is exact without this actor. It reads the gate at boot, and pulse
does not start where it cannot be read: nobody could tell whether dispatch is paused. Afterwards it watches, by NOTIFY
and once a second, and wakes the dispatcher when a gate opens; one whose time is over it opens itself, and says so. It
watches the policies of topics in the same way, of which the dispatcher keeps a part in memory. Over the same
connection it hears of work that other hosts have no room for, and passes that on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import anyio
import structlog

from pulse.protocol.bus import HintEvent, TopicGate, WorkSomewhere, hint
from pulse.store.operators.gate import GATE_CHANNEL
from pulse.store.operators.policies import LivePolicy
from pulse.store.store import WORK_CHANNEL, Store
from pulse_actors.runtime import gate_summary
from pulse_actors.runtime.actor import Runtime, Turn, TurnResult, database_status
from pulse_actors.runtime.bus import Hint
from pulse_actors.runtime.pg_listen import listen
from pulse_actors.shared import identity as identities
from pulse_actors.shared.audit import note_asked

REFRESH_S: Final = 1.0  # how soon a gate that another host changed is seen here, should its NOTIFY be lost

log = structlog.get_logger()


class Pause:
    """
    Watches the gate.

    Args:
        host: This one, as notes name it.
    """

    def __init__(self, store: Store, host: str = "") -> None:
        self._store = store
        self._gate_store = store.gate
        self._topics = store.topics
        self._host = host
        self._gate: dict[str, object] = {}
        self._policies: dict[str, LivePolicy] | None = None
        self._look_s = -math.inf  # when to look at the latest
        self._has_missed = False  # work may have been told of that was not heard, and the dispatcher does not know

    async def prime(self, *, boot: bool) -> None:
        """Read the gate; the runtime refuses to start where that fails at boot."""
        del boot
        self._gate = await self._gate_store.get()
        if self._gate["paused"] or self._gate["topics"]:
            log.warning("dispatch_paused", **gate_summary.told(self._gate, {}))

    async def turn(self, turn: Turn) -> TurnResult:
        """Tell the dispatcher of work elsewhere; look at gate and policies, and tell it when they changed."""
        self._has_missed |= any(told.event == HintEvent.LISTENING for told in turn.inbox)
        await note_asked(self._store, self._host, turn.inbox)
        work = tuple(Hint("dispatcher", told.event, told.data) for told in turn.inbox if told.event == HintEvent.WORK)
        left_s = self._look_s - turn.now_s
        if work and len(work) == len(turn.inbox) and left_s > 0:  # it may come ten times a second
            return TurnResult(left_s, work)
        for topic, reason, who in await self._gate_store.expire():
            log.info("pause_expired", topic=topic, reason=reason, paused_by=who)
        gate, ends_s = await self._gate_store.look()
        next_s = REFRESH_S if ends_s is None else min(REFRESH_S, max(ends_s, 0.0))
        self._look_s = turn.now_s + next_s
        news = self._news(gate, await self._topics.live())
        missed = (hint("dispatcher", HintEvent.LISTENING),) if self._has_missed else ()
        self._has_missed = False
        return TurnResult(next_s, (*work, *missed, *news))

    def _news(self, gate: dict[str, object], policies: dict[str, LivePolicy]) -> list[Hint]:
        """What the dispatcher is to hear."""
        hints: list[Hint] = []
        if gate != self._gate:
            log.info("gate_changed", **gate_summary.told(gate, self._gate))
            self._gate = gate
            hints.append(hint("dispatcher", HintEvent.GATE_CHANGED, TopicGate()))
        if policies != self._policies:  # once at the start, too: a change may have come before
            if self._policies is not None:
                log.info("policies_changed", topics=len(policies))
            self._policies = policies
            hints.append(hint("dispatcher", HintEvent.POLICIES_CHANGED))
        return hints

    async def status(self) -> dict[str, object]:
        """The gate, and whether the database is there."""
        database = await database_status(self._store)
        return {"database": database, "gate": await self._gate_store.get() if database["ok"] else None}


async def pause(runtime: Runtime) -> None:
    """The pause actor's main part."""
    actor = Pause(runtime.store, identities.this_host(runtime.settings.host_id).id)
    await runtime.prime(actor)

    channels: dict[str, Callable[[str], None]] = {
        GATE_CHANNEL: lambda _topic: runtime.nudge(hint("pause", HintEvent.GATE_CHANGED, TopicGate())),
        WORK_CHANNEL: lambda sender: runtime.nudge(hint("pause", HintEvent.WORK, WorkSomewhere(sender))),
    }
    async with anyio.create_task_group() as tasks:
        listening = hint("pause", HintEvent.LISTENING)
        tasks.start_soon(listen, runtime.store.query.target, channels, lambda: runtime.poke(listening))
        await runtime.loop(actor)
        tasks.cancel_scope.cancel()
