"""What the statistics say while waiting jobs were not counted, or only sampled."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pulse.errors import UnavailableError
from pulse.store.reading.counts import Depths
from pulse.store.store import Store
from pulse_actors.dispatcher.monitoring.answer import StatsReporter
from pulse_actors.dispatcher.monitoring.counters import DispatchCounters
from pulse_actors.dispatcher.workers.registry import WorkerRegistry

pytestmark = pytest.mark.anyio

HELD = {"a job": SimpleNamespace(topic="t"), "another": SimpleNamespace(topic="t")}


async def _away(*_asked: object) -> Depths:
    raise UnavailableError


def reporter(depths: Depths | None) -> StatsReporter:
    """Of a dispatcher whose database is away; *depths*: as it counted before."""
    store = SimpleNamespace(gate=None, depths=SimpleNamespace(read=_away))
    worker = SimpleNamespace(facts=SimpleNamespace(topics=["t"]), held=HELD)
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
