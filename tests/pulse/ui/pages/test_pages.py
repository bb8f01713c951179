"""Pages of the dashboard over answers from a table: what is odd, or too much, and what is changed behind a page."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest
from markupsafe import escape

from pulse.errors import NobodyAnswersError
from pulse.ui.app import make_app
from pulse.ui.data.poller import Poller
from pulse.ui.pages import topics
from tests.support.commandline.cli_answers import job, stats
from tests.support.servers.dashboard import Browser, Told, site_of

pytestmark = pytest.mark.anyio


def browser(questions: Told) -> Browser:
    site = site_of(questions)
    made = Browser(make_app(site), site)
    made.enter()
    return made


async def test_ten_thousand_topics() -> None:
    names = [f"t{number:05}" for number in range(10_000)]
    worker = {"name": "w", "topics": names}
    waits = [{"topic": "t09999", "ready": 5}]
    at = browser(Told(status={"workers": [worker] * 20}, topics_list={"topics": []}, stats=stats(topics=waits)))
    began_s = time.process_time()
    got = await at.ask("GET", "/topics")
    assert got.status == 200
    assert got.text.count("<tr data-row>") == topics.MOST
    assert "And 9,500 more" in got.text
    assert ">t09999</a>" in got.text
    assert time.process_time() - began_s < 2.0
    paused = {name: {"reason": "r"} for name in names}
    at = browser(Told(status={}, dispatch_status={"paused": False, "topics": paused}))
    got = await at.ask("GET", "/gate")
    assert got.text.count("<tr data-row>") == 500
    assert "And 9,500 more" in got.text


async def test_dead_letters_take_no_longer_than_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pulse.ui.pages.common.ANSWER_S", 0.05)
    asked: list[Mapping[str, Any]] = []

    def page(body: Mapping[str, Any]) -> dict[str, object]:
        asked.append(body)
        return {"jobs": [], "next": "x"}

    at = browser(Told(status={}, jobs_list=page))
    for look in ("5000", "9" * 5000, "0", "-1", ""):
        got = await asyncio.wait_for(at.ask("GET", f"/dead?look={look}"), 2.0)
        assert got.status == 200
    assert len(asked) > 1


async def test_a_traceback_is_shown_as_it_is() -> None:
    """In a list its last line, and the whole of it below; on the page of its job whole, and in its history."""
    trace = 'Traceback (most recent call last):\n  File "a.py", line 1, in n\n    raise <it>'
    error = f"ValueError: no\n{trace}"
    history = [{"attempt": 1, "outcome": "error", "error": error}]
    row = job(status="DEAD_LETTERED", last_error=error, history=history)
    at = browser(Told(status={}, jobs_list={"jobs": [row], "next": None}, jobs_get={"job": row}, jobs_why={}))
    shown = str(escape(error))
    for path, times in (("/dead", 1), (f"/jobs/{UUID(bytes=row['id'])}", 2)):
        got = await at.ask("GET", path)
        assert len(re.findall(f"<pre[^>]*>{re.escape(shown)}</pre>", got.text)) == times
    got = await at.ask("GET", "/jobs")
    assert '<span class="err">ValueError: no</span>' in got.text


async def test_odd_urls() -> None:
    at = browser(Told(status={}))
    for path in (
        "/jobs/%0d%0aset-cookie:x",
        "/jobs/<script>",
        "/jobs/x/text/args",
        "/schedules/%27",
        "/actors/a/restart",
    ):
        got = await at.ask("GET", path)
        assert got.status in {404, 502}, path
        assert "<script>" not in got.text.partition("<main")[2], path
    got = await at.ask("GET", "/jobs?topic=%22%3E%3Cscript%3E&limit=x&after=%0a")
    assert got.status == 502
    assert '<script>"' not in got.text
    assert 'value="&#34;&gt;&lt;script&gt;"' in got.text


async def test_a_page_that_fails_is_hardened() -> None:
    def broken(_body: Mapping[str, Any]) -> dict[str, object]:
        raise RuntimeError("secret")

    at = browser(Told(status={}, dispatch_status=broken))
    got = await at.ask("GET", "/gate")
    assert (got.status, "secret" in got.text) == (500, False)
    assert "default-src 'none'" in got.headers["content-security-policy"]
    assert got.headers["cache-control"] == "no-store"


class Slow(Told):
    """Tells a number that grows; the first answer comes when it may."""

    def __init__(self) -> None:
        super().__init__(supervisor={}, stats={})
        self.number = 0
        self.may = asyncio.Event()

    async def ask_fresh(
        self, kind: str, body: Mapping[str, Any] | None = None, *, within_s: float
    ) -> dict[str, object]:
        if kind != "status":
            return {}
        self.number += 1
        answer: dict[str, object] = {"jobs": {"PENDING": self.number}}
        if self.number == 1:
            await self.may.wait()
        return answer


async def test_what_was_asked_before_a_change_is_not_shown_after_it() -> None:
    """Neither before the newer answer has come nor behind it."""
    questions = Slow()
    poller = Poller(questions)
    before = asyncio.ensure_future(poller.latest(0.0))
    await asyncio.sleep(0)
    poller.forget()
    after = asyncio.ensure_future(poller.latest(time.monotonic() + 5))
    assert (await after).status.jobs == {"PENDING": 2}
    questions.may.set()
    await before
    assert poller.newest is not None
    assert poller.newest.status.jobs == {"PENDING": 2}
    questions.number = 0
    questions.may.clear()
    poller.forget()
    waiting = asyncio.ensure_future(poller.latest(0.0))
    await asyncio.sleep(0)
    poller.forget()
    questions.may.set()
    await waiting
    assert poller.newest is None


async def test_a_round_that_fails_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong in it, the next is asked: open pages would wait for ever."""
    monkeypatch.setattr("pulse.ui.data.poller.EVERY_S", 0.0)
    asked = 0

    def broken(_body: Mapping[str, Any]) -> dict[str, object]:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise RuntimeError("odd")
        raise NobodyAnswersError("no answer")

    poller = Poller(Told(supervisor=broken))
    running = asyncio.ensure_future(poller.run())

    async def first() -> int:
        async for standing in poller.watch():
            return standing.number
        raise AssertionError

    assert await asyncio.wait_for(first(), 5.0) == 1
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
