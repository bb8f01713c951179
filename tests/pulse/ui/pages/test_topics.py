"""Topics: who serves one, and the server's own policy."""

from __future__ import annotations

import pytest

from tests.support.commandline.cli_answers import stats
from tests.support.servers.dashboard import Told, browser

pytestmark = pytest.mark.anyio


async def test_a_topic_names_its_workers() -> None:
    workers = [{"name": f"w{number}", "topics": ["t"], "draining": number == 3} for number in range(14)]
    told = {"topic": "t", "policy": {}, "handlers": [{"name": "n", "timeout_s": 90.0, "max_attempts": 3}]}
    at = browser(Told(status={"workers": workers}, stats=stats(), topics_get={"topic": told}))
    text = (await at.ask("GET", "/topics/view?topic=t")).text
    assert text.count('<a href="/workers">w') == 12
    assert "draining" in text
    assert "and 2 more" in text
    assert "timeout 1m30s, max_attempts 3</span>" in text


async def test_the_server_is_no_topic() -> None:
    rows = [{"topic": "", "max_attempts": 5, "backoff": None}, {"topic": "t", "lease_s": 60.0}]
    got = await browser(Told(status={}, topics_list={"topics": rows})).ask("GET", "/topics")
    assert got.text.count("<tr data-row>") == 1
    assert "Policy of the server</a>: max_attempts 5</p>" in got.text
    assert "lease 1m</td>" in got.text
