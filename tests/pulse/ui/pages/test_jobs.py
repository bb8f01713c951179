"""The list of jobs: its tabs, and what it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.commandline.cli_answers import job
from tests.support.servers.dashboard import Told, browser

pytestmark = pytest.mark.anyio


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
