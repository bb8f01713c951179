"""The dashboard of one of several queues: which topics it gives to jobs."""

from __future__ import annotations

import uuid
from typing import cast

import pytest

from pulse.routes import Queue, Routes
from pulse.ui.app import make_app
from tests.support.servers.dashboard import Browser, Told, browser, site_of

pytestmark = pytest.mark.anyio

KEY = uuid.UUID(int=7)
ROUTES = Routes(
    {name: Queue(name, f"/run/{name}.sock") for name in ("mail", "orders")}, {"mail.*": "mail", "pay": "orders"}
)
RULE = {"name": "mark", "kind": "every", "every": "60"}
FOREIGN = "topic 'pay' belongs to queue orders: a topic of queue mail is allowed"


def of_mail() -> Browser:
    schedule = {"id": KEY.bytes, "name": "mark", "kind": "every", "every_s": 60.0, "topic": "mail.a"}
    changed = {"done": [KEY.bytes], "refused": []}
    answers = Told(
        status={}, schedules_create={}, schedules_update={}, schedules_get={"schedule": schedule}, jobs_change=changed
    )
    site = site_of(answers, queue="mail", routes=ROUTES)
    made = Browser(make_app(site), site)
    made.enter()
    return made


def sent(at: Browser) -> list[tuple[str, object]]:
    """The changes that the server was asked for, with the topic of each."""
    return [(kind, body.get("topic")) for kind, body, _ in cast("Told", at.site.questions).changed]


async def test_a_schedule_gets_a_topic_of_its_queue() -> None:
    """The form stays, and says what is wrong."""
    at = of_mail()
    for path in ("/schedules/new", f"/schedules/{KEY}/edit"):
        refused = await at.ask("POST", path, {**RULE, "topic": "pay"})
        assert FOREIGN in refused.text.replace("&#39;", "'")
    assert sent(at) == []
    for path, kind in (("/schedules/new", "create"), (f"/schedules/{KEY}/edit", "update")):
        assert (await at.ask("POST", path, {**RULE, "topic": "mail.b"})).status == 303
        assert sent(at)[-1] == (f"schedules.{kind}", "mail.b")


async def test_jobs_get_a_topic_of_their_queue() -> None:
    at = of_mail()
    assert at.session is not None
    form = {"verb": "change", "id": str(KEY)}
    await at.ask("POST", "/bulk/start", {**form, "to_topic": "pay"})
    assert [flash.text for flash in at.session.told()] == [FOREIGN]
    assert sent(at) == []
    await at.ask("POST", "/bulk/start", {**form, "to_topic": "mail.b"})
    await at.ask("POST", "/bulk/start", {**form, "to_priority": "5"})
    assert sent(at) == [("jobs.change", "mail.b"), ("jobs.change", None)]


async def test_where_there_is_one_queue_every_topic_is_allowed() -> None:
    at = browser(Told(status={}, schedules_create={}))
    assert (await at.ask("POST", "/schedules/new", {**RULE, "topic": "pay"})).status == 303
