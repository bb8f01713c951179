"""The list of jobs: its tabs, and what it waits for."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from typing import Any

import pytest

from pulse.errors import BadRequestError
from pulse.protocol import answers
from pulse.protocol.stats import FoundCounts, JobCounts
from pulse.ui.data.filters import Filters
from pulse.ui.data.poller import SystemSnapshot
from pulse.ui.pages.jobs import TABS, UNHANDLED, UNHANDLED_AT, tabs_of
from tests.support.commandline.cli_answers import job
from tests.support.servers.dashboard import Told, browser

pytestmark = pytest.mark.anyio
JOB = uuid.UUID(int=7)


async def test_tabs_have_the_counts_of_the_filter() -> None:
    """Whatever the state; what is counted anyway is not asked for."""
    asked: list[Mapping[str, Any]] = []

    def count(body: Mapping[str, Any]) -> dict[str, object]:
        asked.append(body)
        return {"ready": 3, "least": ["ready"]}

    at = browser(Told(status={}, jobs_list={"jobs": []}, jobs_count=count))
    assert "Waiting <b>3+</b>" in (await at.ask("GET", "/jobs?status=RUNNING&name=n&due=yes")).text
    await at.ask("GET", "/jobs?status=RUNNING")
    assert asked == [{"name": "n"}]


async def test_a_list_waits_for_no_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Told):
        async def ask(self, kind: str, body: Mapping[str, Any] | None = None, *, within_s: float = 1.0) -> Any:
            if kind == "jobs.count":
                await asyncio.Event().wait()
            return await super().ask(kind, body, within_s=within_s)

    monkeypatch.setattr("pulse.ui.pages.jobs.COUNT_S", 0.0)
    at = browser(Slow(status={}, jobs_list={"jobs": [job()]}))
    got = await asyncio.wait_for(at.ask("GET", "/jobs?name=n"), 5.0)
    assert got.text.count("<tr data-row>") == 1


def test_jobs_without_a_handler_have_a_tab_of_their_own() -> None:
    """Where there are any, or one looks at it; the other tabs do not keep what it looks for."""
    known = answers.StatusAnswer(jobs={"PENDING": 7}, waiting=JobCounts(ready=0, scheduled=0, retrying=0, unhandled=7))
    there, none = SystemSnapshot(known, {}, None, 0.0, 1), SystemSnapshot(answers.StatusAnswer(), {}, None, 0.0, 1)
    tab = tabs_of(Filters(topic="a"), there)[UNHANDLED_AT]
    assert (tab.name, tab.number, tab.is_here) == ("Unhandled", "", False)
    assert tab.to == "/jobs?status=PENDING&status=RETRYING&q=no+handler+named&topic=a"
    counted = tabs_of(Filters(topic="a"), there, FoundCounts(ready=1, unhandled=2))
    assert (counted[0].number, counted[UNHANDLED_AT].number) == ("3", "2")
    here = Filters(status=("PENDING", "RETRYING"), q=UNHANDLED)
    tabs = {tab.name: tab for tab in tabs_of(here, there)}
    assert [(name, tab.number) for name, tab in tabs.items() if tab.is_here] == [("Unhandled", "7")]
    assert tabs["Running"].to == "/jobs?status=RUNNING"
    assert [name for name in ("Unhandled",) if name in {one.name for one in tabs_of(here, none)}] == ["Unhandled"]
    assert {one.name for one in tabs_of(Filters(), none)} == {name for name, _, _ in TABS}


async def test_an_id_leads_to_its_job() -> None:
    got = await browser(Told(status={})).ask("GET", f"/jobs?q={JOB}")
    assert (got.status, got.headers["location"]) == (303, f"/jobs/{JOB}")


async def test_a_list_that_is_refused_says_why() -> None:
    def refuse(_body: Mapping[str, Any]) -> dict[str, object]:
        raise BadRequestError("jobs.list: older_s is -1")

    got = await browser(Told(status={}, jobs_list=refuse)).ask("GET", "/jobs")
    assert (got.status, "jobs.list: older_s is -1" in got.text) == (422, True)
