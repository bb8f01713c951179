"""The answer to ``status``: the supervisor's own part at once, the rest from the actors that answer in time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
import trio
from msgspec import Struct

from pulse.errors import ProtocolError
from pulse.protocol import decode_body
from pulse_supervisor.bus.link import BusLink

GATHER_S: Final = 0.8  # of the 2 s that clients are promised; the rest is a reserve


class ActorStatus(Struct, frozen=True):
    """What one actor reports, or all together; None: unknown."""

    database: dict[str, object] | None = None
    gate: dict[str, object] | None = None
    workers: list[object] | None = None
    jobs: dict[str, int] | None = None
    jobs_exact: bool | None = None

    @property
    def is_all(self) -> bool:
        """Whether everything is known."""
        return self.database is not None and self.gate is not None and self.jobs is not None

    def or_else(self, other: ActorStatus) -> ActorStatus:
        """Fill what is unknown from *other*."""
        mine = {name: getattr(self, name) for name in self.__struct_fields__}
        return msgspec.structs.replace(other, **{name: value for name, value in mine.items() if value is not None})


class _LastGate(msgspec.Struct, frozen=True):
    gate: Mapping[str, object]
    as_of: float


class StatusCollector:
    """
    Gathers status from the actors.

    Args:
        describe: The supervisor's own part: ``supervisor``, ``actors``, ``pools``.
        listeners: The actors that can be asked now.
    """

    def __init__(self, describe: Callable[[], dict[str, object]], listeners: Callable[[], Sequence[BusLink]]) -> None:
        self._describe = describe
        self._listeners = listeners
        self._gate: _LastGate | None = None

    async def gather(self) -> dict[str, object]:
        """
        Ask all actors at once, wait until everything is known, at most GATHER_S, and combine the answers.

        Returns:
            The document of ``status``; unknown parts are None, but the gate is then the last known one with ``as_of``.
        """
        told = ActorStatus()
        links = self._listeners()
        send, receive = trio.open_memory_channel[ActorStatus](math.inf)
        async with trio.open_nursery() as nursery:
            for link in links:
                nursery.start_soon(_ask, link, send)
            with trio.move_on_after(GATHER_S):
                for _ in links:
                    told = told.or_else(await receive.receive())
                    if told.is_all:
                        break
            nursery.cancel_scope.cancel()
        return {**self._describe(), **msgspec.structs.asdict(told), "gate": self._remember(told.gate)}

    def _remember(self, gate: dict[str, object] | None) -> Mapping[str, object] | None:
        if gate is not None:
            self._gate = _LastGate(gate, time.time())
            return gate
        if self._gate is None:
            return None
        return {**self._gate.gate, "as_of": self._gate.as_of}


async def _ask(link: BusLink, answers: trio.MemorySendChannel[ActorStatus]) -> None:
    frame = await link.ask("status", {})
    try:
        answers.send_nowait(ActorStatus() if frame is None else decode_body(ActorStatus, frame))
    except ProtocolError:
        answers.send_nowait(ActorStatus())  # an actor that fails to answer adds nothing
