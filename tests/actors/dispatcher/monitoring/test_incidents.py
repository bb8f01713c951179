"""Which of the doctor's findings the dashboard shows: what is wrong now, and no more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import anyio
import pytest

from pulse.ops.doctor.finding import Finding, State
from pulse.store.admin.doctor import ASKED, IncidentStore
from pulse_actors.dispatcher.monitoring import incidents
from pulse_actors.dispatcher.monitoring.incidents import Incidents, judge

ATTEMPT: Final = {"name": "n", "topic": "t", "outcome": "crashed", "attempts": 1, "killed": 0, "age_s": 5.0,
                  "error": "e", "job": "0190", "worker": "h/b/1/2.3/w", "jobs_dead": 0}  # fmt: skip
HOST: Final = {"host": "h", "age_s": 61.0, "running": 0, "lapsed": 0}
HOLDER: Final = {"kind": "session", "name": "7", "user_name": "ann", "application": "", "state": "idle", "age_s": 61.0,
                 "xids": 1, "query": ""}  # fmt: skip


def checks(**rows: Any) -> list[str]:
    return [one.check for one in judge(rows)]


@pytest.mark.parametrize(("changed", "told"), [
    ({}, ["crashes"]), ({"age_s": 900.0}, ["crashes"]), ({"age_s": 901.0}, []),
    ({"outcome": "lease_expired"}, ["hung"]), ({"outcome": "timeout", "attempts": 2}, []),
    ({"outcome": "timeout", "attempts": 3}, ["hung"]), ({"outcome": "stalled", "killed": 1}, ["hung"]),
])  # fmt: skip
def test_attempts(changed: Mapping[str, Any], told: list[str]) -> None:
    """Crashes, lapsed leases and killed handlers are news for a quarter of an hour; a limit that works is none."""
    assert checks(queue_attempts=[{**ATTEMPT, **changed}]) == told


@pytest.mark.parametrize(("changed", "told"), [({}, []), ({"running": 1}, ["hosts"]), ({"lapsed": 1}, ["hosts"])])
def test_hosts(changed: Mapping[str, Any], told: list[str]) -> None:
    assert checks(queue_hosts=[{**HOST, **changed}]) == told


def test_jobs_that_nobody_handles() -> None:
    row = {"topic": "t", "name": "n", "jobs": 1, "age_s": 1.0, "job": "0190", "handlers": []}
    assert checks(queue_unhandled=[row]) == ["unhandled"]


def test_queries_of_others_are_not_told() -> None:
    """There may be args in them, which a viewer may not see."""
    (found,) = judge({"xmin": [{**HOLDER, "query": "SELECT pulse.submit('n', 'secret')"}]})
    assert "session 7 (ann)" in str(found)
    assert "secret" not in str(found)


def test_what_could_not_be_asked() -> None:
    assert checks(xmin=[HOLDER], queue_hosts=None) == ["xmin"]


class Asked:
    def __init__(self) -> None:
        self.count = 0
        self.gate = anyio.Event()

    async def ask(self, question: str) -> list[Mapping[str, Any]]:
        self.count += 1
        await self.gate.wait()
        return [HOLDER] if question == "xmin" else []


@pytest.mark.anyio
async def test_what_is_known_without_the_database() -> None:
    one = Finding("memory", State.WARNING, "so")
    assert await Incidents(cast("IncidentStore", Asked()), lambda: [one]).current() == [one]


def test_a_database_that_has_gone_back() -> None:
    unknown = dict.fromkeys(("back_to", "lost_s", "reopened"))
    row: Mapping[str, Any] = {"epoch": 2, "host": "h", "jobs": [], **unknown}
    assert [checks(queue_epochs=[{**row, "age_s": age_s}]) for age_s in (1.0, 90_000.0)] == [["epochs"], []]


@pytest.mark.anyio
async def test_it_looks_while_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incidents, "WAIT_S", 0.01)
    store = Asked()
    found = Incidents(cast("IncidentStore", store))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(found.run)
        await anyio.wait_all_tasks_blocked()
        assert store.count == 0
        assert await found.current() == []
        store.gate.set()
        monkeypatch.setattr(incidents, "WAIT_S", 10.0)
        told = await found.current()
        assert [one.check for one in told] == ["xmin"]
        assert [await found.current() for _ in range(50)] == [told] * 50
        assert (await found.snapshot(), store.count) == (told[0], len(ASKED))
        monkeypatch.setattr(incidents, "OLD_S", 0.0)
        assert await found.current() == []
        tasks.cancel_scope.cancel()
