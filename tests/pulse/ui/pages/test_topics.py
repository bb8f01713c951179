"""Topics: who serves one, and the server's own policy."""

from __future__ import annotations

import re
from uuid import UUID

import pytest

from pulse.errors import BadRequestError
from pulse.ui.pages import topics
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


async def test_a_topic_shows_its_limit_and_its_groups() -> None:
    """Those that are full, paused or halted, with the dead letter; and that there may be more."""
    dead = UUID("0190163d-8694-739b-aea5-966c26f8ad91")
    limits = [{"name": "api", "running": 3, "concurrency": 2, "full": True}, {"name": "rated", "running": 1}]
    counts = stats(topics=[{"topic": "t", "limit": "api"}, {"topic": "u", "limit": "rated"}], limits=limits)
    groups = [
        {"group_key": "hot", "ready": 1000, "running": 2, "oldest_s": 90.0, "concurrency": 2, "full": True},
        {"group_key": "off", "later": 1, "concurrency": 0}, {"group_key": "stuck", "halted_by": dead.bytes},
    ]  # fmt: skip
    told = {"topic": "t", "policy": {}}
    more = {"groups": groups, "is_all": False}
    replies = Told(status={"limits": limits[:1]}, stats=counts, topics_get={"topic": told}, topics_groups=more)
    at = browser(replies)
    text = (await at.ask("GET", "/topics/view?topic=t")).text
    assert '<dt>limit</dt><dd>api <span class="warn">full</span>: 3 of 2 run</dd>' in text
    assert text.count("<tr data-row") == 3
    for shown in ("1,000+</td>", "2 of 2</td>", 'warn">paused</span>', f'halted</span> by <a href="/jobs/{dead}">'):
        assert shown in text
    assert "more groups than were looked at" in text
    assert "<dt>limit</dt><dd>rated: 1 run</dd>" in (await at.ask("GET", "/topics/view?topic=u")).text
    off = {"name": "api", "running": 0, "concurrency": 0, "full": True}
    paused = browser(Told(status={}, stats={**counts, "limits": [off]}, topics_get={"topic": told}))
    shown = (await paused.ask("GET", "/topics/view?topic=t")).text
    assert '<dd>api <span class="pill warn">paused</span></dd>' in shown
    replies.replies["topics.groups"] = {"groups": groups[:1], "is_all": True}
    assert "more groups" not in (await at.ask("GET", "/topics/view?topic=t")).text
    assert "full limits</dt><dd>api <span" in (await at.ask("GET", "/")).text
    replies.replies["topics.list"] = {"topics": []}
    assert 'limit api, <span class="warn">full' in (await at.ask("GET", "/topics")).text


async def test_a_topic_whose_groups_nobody_knows() -> None:
    at = browser(Told(status={}, stats=stats(), topics_get={"topic": {"topic": "t", "policy": {}}}))
    got = await at.ask("GET", "/topics/view?topic=t")
    assert (got.status, "Groups with waiting jobs" in got.text) == (200, False)


@pytest.mark.parametrize(("name", "text", "value"), [
    ("publish", "true", True), ("publish", "False", False), ("limit", "5", "5"), ("max_attempts", "5", 5),
    ("timeout_s", "1m", 60.0), ("publish", None, None),
])  # fmt: skip
def test_what_a_form_says(name: str, text: str | None, value: object) -> None:
    found = topics._value(name, text)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(("name", "text", "said"), [
    ("publish", "maybe", "publish is 'maybe': true or false is allowed"),
    ("max_attempts", "few", "max_attempts is 'few': a whole number is allowed"),
])  # fmt: skip
def test_what_a_form_may_not_say(name: str, text: str, said: str) -> None:
    with pytest.raises(BadRequestError, match=f"^{re.escape(said)}$"):
        topics._value(name, text)
