"""What the statistics say while waiting jobs were not counted, or only sampled."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pulse.errors import UnavailableError
from pulse.protocol import StatsRequest
from pulse.store.operators.gate import GateStore
from pulse.store.reading.counts import Depths
from pulse.store.reading.limits import LimitReader, LimitUsage
from pulse.store.store import Store
from pulse_actors.dispatcher.monitoring.answer import MOST_LIMITS, StatsReporter
from pulse_actors.dispatcher.monitoring.counters import DispatchCounters
from pulse_actors.dispatcher.workers.registry import WorkerRegistry

pytestmark = pytest.mark.anyio

WORKER: dict[str, Any] = {"capacity": 4, "places": 2, "taken": 2, "is_draining": False}
HELD = {"a job": SimpleNamespace(topic="t", started=True), "another": SimpleNamespace(topic="t", started=True)}


async def _away(*_asked: object) -> Depths:
    raise UnavailableError


async def _no_limits(*_asked: object) -> tuple[list[LimitUsage], int]:
    return [], 0


async def _open() -> dict[str, object]:
    return {"paused": False, "topics": {}}


def reporter(depths: Depths | None) -> StatsReporter:
    """Of a dispatcher whose database is away; *depths*: as it counted before."""
    nothing = SimpleNamespace(usage=_no_limits)
    store = SimpleNamespace(gate=None, depths=SimpleNamespace(read=_away), limit_reads=nothing, pools={})
    worker = SimpleNamespace(facts=SimpleNamespace(topics=["t"], names=["n"]), held=HELD, **WORKER)
    registry = SimpleNamespace(workers=lambda: [worker])
    made = StatsReporter(cast("Store", store), cast("WorkerRegistry", registry), DispatchCounters())
    made._depths = depths
    return made


@pytest.mark.parametrize(("depths", "held"), [
    (None, Counter(t=2)), (Depths((), is_exact=False, now_s=0.0), Counter(t=2)),
    (Depths((), is_exact=True, now_s=0.0), None),
])  # fmt: skip
def test_running_jobs_that_nobody_counted(depths: Depths | None, held: Counter[str] | None) -> None:
    """Those of the own workers stand for them."""
    assert reporter(depths)._held() == held


async def test_what_waits_is_unknown_until_it_was_counted() -> None:
    assert await reporter(None).waiting() is None
    waiting = {"ready": 0, "scheduled": 0, "retrying": 0, "unhandled": 0, "exact": True}
    assert await reporter(Depths((), is_exact=True, now_s=0.0)).waiting() == waiting


async def test_jobs_are_not_counted_twice_in_a_moment() -> None:
    counted: list[object] = []

    async def read(*_asked: object) -> Depths:
        counted.append(None)
        return Depths((), is_exact=True, now_s=0.0)

    made = reporter(None)
    depths: Any = made._depth_store
    depths.read = read
    await made.waiting()
    await made.waiting()
    assert len(counted) == 1


async def test_limits_are_cut_as_topics_are() -> None:
    """Each topic has the limit that it goes by, also where that is not listed; `status` has the full ones."""
    made = reporter(None)
    usages = [
        LimitUsage("a", 2, 3, None, ["t"]),
        LimitUsage("b", None, 1, 0.5, ["u"]),
        LimitUsage("c", 9, 0, None, ["c"]),
    ]

    async def usage(most: int) -> tuple[list[LimitUsage], int]:
        assert most == MOST_LIMITS
        return usages, 4

    made._limit_reads = cast("LimitReader", SimpleNamespace(usage=usage))
    made._gate = cast("GateStore", SimpleNamespace(get=_open))
    told: Any = await made.answer(StatsRequest(topics=1))
    assert (told["limits_omitted"], [one["limit"] for one in told["topics"]]) == (6, ["a"])
    assert told["limits"] == [{"name": "a", "running": 3, "concurrency": 2, "full": True, "retry_s": None}]
    assert [one["name"] for one in made.full_limits()] == ["a"]
