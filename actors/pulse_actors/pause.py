"""
The pause actor: watches the gate (the switch that pauses dispatch) and listens to other hosts.

Every claim reads the gate itself, so a pause is exact without this actor. The actor reads the gate at boot, and pulse
does not start if that fails: nobody would know whether dispatch is paused. Then it watches the gate, by NOTIFY and once
a second, wakes the dispatcher when a topic is resumed, and ends pauses whose time is over. It watches the policies of
topics in the same way, since the dispatcher keeps a part of them in memory. On the same connection it receives
notifications of work that other hosts have no room for, and passes them on.
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

LIMITS: Final = "limits"  # what pulse.set_limit notifies; a topic of that name is looked at later
REFRESH_S: Final = 1.0  # how soon a change by another host is noticed if its NOTIFY is lost

log = structlog.get_logger()


class Pause:
    """
    Watches the gate.

    Args:
        host: This host, for audit entries.
    """

    def __init__(self, store: Store, host: str = "") -> None:
        self._store = store
        self._gate_store = store.gate
        self._topics = store.topics
        self._host = host
        self._gate: dict[str, object] = {}
        self._policies: dict[str, LivePolicy] | None = None
        self._look_s = -math.inf  # latest time of the next look
        self._has_missed = False  # notifications of work may have been missed, and the dispatcher does not know yet

    async def prime(self, *, boot: bool) -> None:
        """Read the gate; at boot the runtime refuses to start if that fails."""
        del boot
        self._gate = await self._gate_store.get()
        if self._gate["paused"] or self._gate["topics"]:
            log.warning("dispatch_paused", **gate_summary.told(self._gate, {}))

    async def turn(self, turn: Turn) -> TurnResult:
        """Pass notifications of work to the dispatcher; look at gate and policies, and report changes to it."""
        self._has_missed |= any(told.event == HintEvent.LISTENING for told in turn.inbox)
        await note_asked(self._store, self._host, turn.inbox)
        work = tuple(Hint("dispatcher", told.event, told.data) for told in turn.inbox if told.event == HintEvent.WORK)
        left_s = self._look_s - turn.now_s
        if work and len(work) == len(turn.inbox) and left_s > 0:  # they may come ten times a second
            return TurnResult(left_s, work)
        for topic, reason, who in await self._gate_store.expire():
            log.info("pause_expired", topic=topic, reason=reason, paused_by=who)
        gate, ends_s = await self._gate_store.look()
        next_s = REFRESH_S if ends_s is None else min(REFRESH_S, max(ends_s, 0.0))
        self._look_s = turn.now_s + next_s
        news = self._news(gate, await self._topics.live())
        missed = (hint("dispatcher", HintEvent.LISTENING),) if self._has_missed else ()
        self._has_missed = False
        if any(told.event == HintEvent.LIMITS_CHANGED for told in turn.inbox):
            news = [*news, hint("dispatcher", HintEvent.POLICIES_CHANGED)]
        return TurnResult(next_s, (*work, *missed, *news))

    def _news(self, gate: dict[str, object], policies: dict[str, LivePolicy]) -> list[Hint]:
        """The hints for the dispatcher."""
        hints: list[Hint] = []
        if gate != self._gate:
            log.info("gate_changed", **gate_summary.told(gate, self._gate))
            self._gate = gate
            hints.append(hint("dispatcher", HintEvent.GATE_CHANGED, TopicGate()))
        if policies != self._policies:  # also at the start: a change may have come before
            if self._policies is not None:
                log.info("policies_changed", topics=len(policies))
            self._policies = policies
            hints.append(hint("dispatcher", HintEvent.POLICIES_CHANGED))
        return hints

    async def status(self) -> dict[str, object]:
        """The gate, and whether the database is there."""
        database = await database_status(self._store)
        return {"database": database, "gate": await self._gate_store.get() if database["ok"] else None}


def _gate_hint(text: str) -> Hint:
    if text == LIMITS:
        return hint("pause", HintEvent.LIMITS_CHANGED)
    return hint("pause", HintEvent.GATE_CHANGED, TopicGate())


async def pause(runtime: Runtime) -> None:
    """The pause actor's main part."""
    actor = Pause(runtime.store, identities.this_host(runtime.settings.host_id).id)
    await runtime.prime(actor)

    channels: dict[str, Callable[[str], None]] = {
        GATE_CHANNEL: lambda text: runtime.nudge(_gate_hint(text)),
        WORK_CHANNEL: lambda sender: runtime.nudge(hint("pause", HintEvent.WORK, WorkSomewhere(sender))),
    }
    async with anyio.create_task_group() as tasks:
        listening = hint("pause", HintEvent.LISTENING)
        tasks.start_soon(listen, runtime.store.query.target, channels, lambda: runtime.poke(listening))
        await runtime.loop(actor)
        tasks.cancel_scope.cancel()
