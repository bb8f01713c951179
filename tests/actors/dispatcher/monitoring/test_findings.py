"""What of the doctor's findings all tools show: what is wrong now, and no more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import anyio
import pytest

from pulse.ops.doctor.checks import CHECKS
from pulse.ops.doctor.finding import Finding, State
from pulse.ops.doctor.verdicts import CheckContext, verdicts
from pulse.store.admin.doctor import FindingStore
from pulse_actors.dispatcher.monitoring import findings
from pulse_actors.dispatcher.monitoring.findings import ASKED, Findings, judge
from tests.support.waiting import until_async

HOLDER: Final = {"kind": "session", "name": "7", "user_name": "ann", "application": "", "state": "idle", "age_s": 61.0,
                 "xids": 1, "query": ""}  # fmt: skip


def test_queries_of_others_are_not_told() -> None:
    """There may be args in them, and a viewer may not see those."""
    (found,) = judge({"xmin": [{**HOLDER, "query": "SELECT pulse.submit('n', 'secret')"}]}, CheckContext())
    assert "session 7 (ann)" in str(found)
    assert "secret" not in str(found)


def test_what_could_not_be_asked() -> None:
    assert [one.check for one in judge({"xmin": [HOLDER], "queue_hosts": None}, CheckContext())] == ["xmin"]


def test_each_check_that_all_tools_tell_of_is_looked_at() -> None:
    """A check of the database that no statement asks for would be the doctor's alone."""
    own = {"processes", "workers", "statements", "memory"}  # of this process, and of the supervisor
    told = {check for check, one in CHECKS.items() if one.everywhere}
    assert told - own == {check for check in verdicts(CheckContext()) if CHECKS[check].question in ASKED} - {"standbys"}


def test_what_the_doctor_alone_tells() -> None:
    """An asynchronous standby may be as it should be: no alert for ever, though its statement is asked."""
    row = {"in_recovery": False, "awaited": "", "waits": "on", "standbys": 1, "synchronous": 0, "hidden": 0}
    waiting = {**row, "awaited": "b", "waiting": 1, "waited_s": 60.0}
    assert judge({"replication": [{**row, "waiting": 0, "waited_s": 0.0}]}, CheckContext()) == []
    assert [one.check for one in judge({"replication": [waiting]}, CheckContext())] == ["commits"]


class Asked:
    schema = "pulse"

    def __init__(self) -> None:
        self.count = 0
        self.gate = anyio.Event()
        self.is_away = False

    async def ask(self, question: str) -> list[Mapping[str, Any]] | None:
        self.count += 1
        await self.gate.wait()
        return [HOLDER] if question == "xmin" and not self.is_away else None


@pytest.mark.anyio
async def test_what_is_known_without_the_database() -> None:
    one = Finding("memory", State.WARNING, "so")
    assert await Findings(cast("FindingStore", Asked()), own_findings=lambda: [one]).current() == [one]


@pytest.mark.anyio
async def test_it_looks_while_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "WAIT_S", 0.01)
    store = Asked()
    found = Findings(cast("FindingStore", store))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(found.run)
        await anyio.wait_all_tasks_blocked()
        assert store.count == 0
        assert await found.current() == []
        store.gate.set()
        monkeypatch.setattr(findings, "WAIT_S", 10.0)
        told = await found.current()
        assert [one.check for one in told] == ["xmin"]
        assert [await found.current() for _ in range(50)] == [told] * 50
        assert (await found.snapshot(), store.count) == (told[0], len(ASKED))
        monkeypatch.setattr(findings, "OLD_S", 0.0)
        assert await found.current() == []
        tasks.cancel_scope.cancel()


@pytest.mark.anyio
async def test_an_outage_ends_nothing_that_was_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last answers count while there are no new ones, until they are old."""
    monkeypatch.setattr(findings, "EVERY_S", 0.0)
    monkeypatch.setattr(findings, "pause_s", lambda _took_s: 0.0)
    store = Asked()
    store.gate.set()
    found = Findings(cast("FindingStore", store))

    async def another_look() -> bool:
        assert [one.check for one in await found.current()] == ["xmin"]
        return store.count >= 2 * len(ASKED)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(found.run)
        assert [one.check for one in await found.current()] == ["xmin"]
        store.is_away = True
        await until_async(another_look, "another look")
        assert [one.check for one in await found.current()] == ["xmin"]
        monkeypatch.setattr(findings, "OLD_S", -1.0)
        assert await found.current() == []
        tasks.cancel_scope.cancel()


def test_the_pause_after_a_look() -> None:
    """Looking takes a fiftieth of the time at most; but after one that an outage made long, the next one comes soon."""
    assert [findings.pause_s(took_s) for took_s in (0.01, 0.2, 20.0)] == [5.0, 10.0, 30.0]
