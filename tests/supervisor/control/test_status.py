"""What the supervisor waits for when it is asked for the status."""

from __future__ import annotations

from typing import cast

import msgspec
import pytest
import trio
import trio.testing

from pulse.protocol import Frame
from pulse_supervisor.bus.link import BusLink
from pulse_supervisor.control.status import GATHER_S, StatusCollector

KNOWN = {"database": {}, "gate": {"paused": False}, "jobs": {}}


class Actor:
    """Answers with *body*; never, if that is None."""

    def __init__(self, body: dict[str, object] | None) -> None:
        self.body = body

    async def ask(self, kind: str, _body: object) -> Frame:
        assert kind == "status"
        if self.body is None:
            await trio.sleep_forever()
        return Frame("ok", 1, msgspec.Raw(msgspec.msgpack.encode(self.body)))


@pytest.mark.parametrize(
    ("body", "waited_s"), [(KNOWN, 0.0), ({"database": {}, "gate": {}}, GATHER_S)], ids=["all", "a part"]
)
def test_nobody_waits_for_more_than_all(body: dict[str, object], waited_s: float) -> None:
    """As soon as one has told all, those that hang are not waited for."""

    async def ask() -> float:
        links = cast("list[BusLink]", [Actor(None), Actor(body)])
        told = await StatusCollector(dict, lambda: links).gather()
        assert told["gate"] == body["gate"]
        return trio.current_time()

    clock = trio.testing.MockClock(autojump_threshold=0)
    began_s = clock.current_time()
    assert trio.run(ask, clock=clock) - began_s == pytest.approx(waited_s)
