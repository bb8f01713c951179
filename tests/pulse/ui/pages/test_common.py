"""While the server or its database is away, a page shows what it last heard, with its age."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from pulse.routes import Queue, Routes
from pulse.ui.app import make_app
from tests.support.commandline.cli_answers import error_group, job, stats
from tests.support.servers.dashboard import NOW_S, Browser, Told, browser, site_of

pytestmark = pytest.mark.anyio
JOB = uuid.UUID(int=7)


async def test_unknown_is_not_none() -> None:
    """While the database is away the overview keeps the last counts with their age; no list is said to be empty."""
    away: dict[str, Any] = {"jobs": None, "database": {"ok": False, "error": "refused"}, "workers": []}
    told = Told(supervisor={}, stats={}, status=away)
    at = browser(told)
    got = await at.ask("GET", "/")
    assert "No job was counted since this dashboard started" in got.text
    told.replies["status"] = {"jobs": {"DEAD_LETTERED": 534}, "database": {"ok": True}}
    told.replies["jobs.list"] = {"jobs": [], "next": None}
    for status, words in ((None, "None."), (away, "Unknown.")):
        if status is not None:
            told.replies["status"] = status
            del told.replies["jobs.list"]
        at.site.changed()
        got = await at.ask("GET", "/")
        assert "<b>534</b>" in got.text
        assert ("Unknown since " in got.text) == (status is away)
        assert got.text.count(words) == 3
    assert "the database is away. The counts of jobs are those of then." in got.text
    got = await at.ask("GET", "/dead")
    assert "Unknown: the database is away." in got.text
    assert "no answer" not in got.text


async def test_while_nobody_tells_a_page_is_the_last_known_one() -> None:
    """With its age, and the counts of then; what changes something is not answered from memory."""
    told = Told(supervisor={}, stats=stats(topics=[{"topic": "t", "ready": 7}]), status={"jobs": {"RUNNING": 7}})
    at = browser(told)
    await at.ask("GET", "/jobs")
    told.replies["status"] = {"jobs": None, "database": {"ok": False, "error": "refused"}, "workers": None}
    at.site.changed()
    told.known = (40.0, {"jobs": [job(name="kept")], "topics": [], "groups": [error_group(name="kept")]})
    for path, shown in (
        ("/jobs", ">kept<"),
        ("/jobs", "Running <b>7</b>"),
        ("/topics", ">7<"),
        ("/dead", ">kept<"),
    ):
        got = await at.ask("GET", path)
        assert got.status == 200
        assert "the database is away. This page is of then." in got.text
        assert ", for 40 s: " in got.text
        assert shown in got.text
    assert (await at.ask("POST", f"/jobs/{JOB}/retry", {})).status == 502
    told.known = None
    assert "Everything is paused" not in (await at.ask("GET", "/gate")).text
    told.replies["status"] = {"gate": {"paused": True, "reason": "fire", "as_of": NOW_S}, "workers": None}
    at.site.changed()
    got = await at.ask("GET", "/gate")
    assert all(words in got.text for words in ("Everything is paused", "fire", "As it was at 03:33:20 UTC"))
    got = await at.ask("GET", "/jobs")
    assert (got.status, "Running <b>7</b>" in got.text, "Counts are those of " in got.text) == (502, True, True)


async def test_the_queue_that_it_is_of() -> None:
    """With the way to the dashboards of the others; where there is one queue, nothing is said of it."""
    links = {"mail": "https://mail.example/?a=1&b=2", "<b>": "https://b.example", "orders": "https://own", "idle": None}
    routes = Routes({name: Queue(name, f"/{name}", dashboard=link) for name, link in links.items()}, {})
    site = site_of(Told(supervisor={}, stats={}, status={}), queue="orders", routes=routes)
    at = Browser(make_app(site), site)
    at.enter()
    text = (await at.ask("GET", "/")).text
    assert '<span class="pill" title="This queue">orders</span>' in text
    assert '<a href="https://mail.example/?a=1&amp;b=2" title="The dashboard of another queue">mail</a>' in text
    assert "&lt;b&gt;</a>" in text
    assert ("https://own" in text, "idle</a>" in text) == (False, False)
    assert "queue" not in (await browser(Told(supervisor={}, stats={}, status={})).ask("GET", "/")).text
