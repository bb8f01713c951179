"""Pages of the dashboard over answers from a table: odd ones, huge ones, and changes behind a page."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import AsyncGenerator, Mapping
from typing import Any, cast

import pytest
from markupsafe import escape

from pulse.common.version import VERSION
from pulse.errors import BadRequestError, NobodyAnswersError
from pulse.ui.app import make_app
from pulse.ui.data.poller import Poller
from pulse.ui.pages import topics
from pulse.ui.rendering import unknown
from tests.support.checking.cost import cpu_time
from tests.support.commandline.cli_answers import error_group, job, stats
from tests.support.servers.dashboard import Told, ask_about, browser, site_of

pytestmark = pytest.mark.anyio
JOB = uuid.UUID(int=7)


async def test_ten_thousand_topics() -> None:
    names = [f"t{number:05}" for number in range(10_000)]
    worker = {"name": "w", "topics": names}
    waits = [{"topic": "t09999", "ready": 5}]
    at = browser(Told(status={"workers": [worker] * 20}, topics_list={"topics": []}, stats=stats(topics=waits)))
    with cpu_time(at_most_s=2.0):
        got = await at.ask("GET", "/topics")
    assert got.status == 200
    assert got.text.count("<tr data-row>") == topics.MOST
    assert "And 9,500 more" in got.text
    assert ">t09999</a>" in got.text
    paused = {name: {"reason": "r"} for name in names}
    at = browser(Told(status={}, dispatch_status={"paused": False, "topics": paused}))
    got = await at.ask("GET", "/gate")
    assert got.text.count("<tr data-row>") == 500
    assert "And 9,500 more" in got.text


async def test_a_traceback_is_shown_as_it_is() -> None:
    """In a list its last line, and the whole of it below; on the page of its job whole, and in its history."""
    trace = 'Traceback (most recent call last):\n  File "a.py", line 1, in n\n    raise <it>'
    error = f"ValueError: no\n{trace}"
    history = [{"attempt": 1, "outcome": "error", "error": error}]
    row = job(status="DEAD_LETTERED", last_error=error, history=history)
    at = browser(
        Told(
            status={},
            jobs_list={"jobs": [row], "next": None},
            jobs_get={"job": row},
            jobs_why={},
            jobs_errors={"groups": [error_group(error=error)]},
        )
    )
    shown = str(escape(error))
    for path, times in (("/dead", 1), (f"/jobs/{uuid.UUID(bytes=row['id'])}", 2)):
        got = await at.ask("GET", path)
        assert len(re.findall(f"<pre[^>]*>{re.escape(shown)}</pre>", got.text)) == times
    got = await at.ask("GET", "/jobs")
    assert '<span class="err">ValueError: no</span>' in got.text


async def test_a_file_that_is_not_there_needs_no_login() -> None:
    """Nor does it show the menu of those who have logged in."""
    at, cookie = browser(Told(status={})), ""
    for known, has_menu in ((at.cookie, True), (cookie, False)):
        at.cookie = known
        got = await at.ask("GET", "/static/none.js")
        assert (got.status, 'href="/jobs"' in got.text) == (404, has_menu)


async def test_a_worker_that_has_gone_is_not_drained() -> None:
    at = browser(Told(status={"workers": [{"identity": "here", "name": "w"}]}))
    for identity, status in (("here", 200), ("gone", 404)):
        assert (await at.ask("GET", f"/workers/drain?worker={identity}")).status == status


async def test_nobody_is_asked_while_nobody_answers() -> None:
    """The overview says why once, and is there at once."""
    asked: list[object] = []

    def page(body: Mapping[str, Any]) -> dict[str, object]:
        asked.append(body)
        return {"jobs": []}

    at = browser(Told(supervisor={}, jobs_list=page))
    standing = await at.site.poller.latest(0.0)
    assert standing.cause is not None
    assert (await at.ask("GET", "/")).status == 200
    assert asked == []
    silent, refusal = NobodyAnswersError("no answer"), BadRequestError("odd")
    assert [unknown(one, standing) for one in (silent, refusal)] == [f"Unknown: {standing.cause}.", "odd"]


async def test_a_server_that_starts_is_not_down() -> None:
    """The overview says so, in no alarm's colour; a dispatcher that died before is another matter."""
    for restarts, health, words in ((0, "warning", "the dispatcher is starting"), (1, "down", "does not answer")):
        row = {"name": "dispatcher", "state": "starting", "restarts": restarts}
        at = browser(Told(supervisor={"supervisor": {"pid": 1, "version": VERSION}, "actors": [row]}))
        text = (await at.ask("GET", "/")).text
        standing = await at.site.poller.latest(0.0)
        assert (standing.health, words in standing.summary) == (health, True)
        assert words in text
        assert "Nothing is wrong" not in text
        assert ('class="flash error"' in text) == (health == "down")


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


async def test_it_begins_and_ends_with_its_server() -> None:
    """The poller, the tasks and the connections live as long as the server does; so does the link that it prints."""
    site = site_of(Told(status={}))
    heard = iter(["lifespan.startup", "lifespan.shutdown"])
    said: list[str] = []

    async def receive() -> dict[str, Any]:
        return {"type": next(heard)}

    async def send(message: Any) -> None:
        said.append(message["type"])

    await make_app(site)({"type": "lifespan", "state": {}}, receive, send)
    assert said == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert site.link_token


async def test_a_page_that_is_missing_has_the_menu() -> None:
    at = browser(Told(status={}))
    got = await at.ask("GET", "/jbos")
    assert (got.status, "There is no such page here" in got.text, 'href="/topics"' in got.text) == (404, True, True)


async def test_a_page_that_fails_is_hardened() -> None:
    def broken(_body: Mapping[str, Any]) -> dict[str, object]:
        raise RuntimeError("secret")

    got = await browser(Told(status={}, dispatch_status=broken)).ask("GET", "/gate")
    assert (got.status, "secret" in got.text) == (500, False)
    assert "default-src 'none'" in got.headers["content-security-policy"]
    assert got.headers["cache-control"] == "no-store"


async def test_a_form_that_changes_nothing_is_not_sent() -> None:
    policy = {"max_attempts": {"value": 3, "source": "topic"}, "max_crashes": {"value": 9, "source": "server"}}
    at = browser(Told(topics_get={"topic": {"topic": "t", "policy": policy}}, topics_set={}))
    questions = cast("Told", at.site.questions)
    for given, sent in (("3", []), ("4", [{"max_attempts": 4}])):
        got = await at.ask("POST", "/topics/save", {"topic": "t", "max_attempts": given})
        assert (got.status, got.headers["location"]) == (303, "/topics/view?topic=t")
        assert [body["policy"] for _, body, _ in questions.changed] == sent
    await at.ask("POST", "/topics/save", {"topic": "t", "max_attempts": "3", "backoff": "fixed:2m"})
    assert questions.changed[-1][1]["policy"] == {"backoff": "fixed:120"}
    await at.ask("POST", "/topics/save", {"topic": "t", "max_attempts": "3", "limit": "7 m"})
    assert questions.changed[-1][1]["policy"] == {"limit": "7 m"}


async def test_an_action_that_no_schedule_has_is_not_sent() -> None:
    at = browser(Told(schedules_explode={}))
    assert (await at.ask("POST", f"/schedules/{uuid.UUID(int=7)}/explode")).status == 404
    assert cast("Told", at.site.questions).changed == []


async def test_what_becomes_of_a_schedule() -> None:
    """A job that it fires is shown; what is deleted has no page to go back to, and no undo."""
    schedule, job = uuid.UUID(int=7), uuid.UUID(int=8)
    at = browser(Told(schedules_trigger={"id": job.bytes}, schedules_delete={"id": schedule.bytes}))
    assert at.session is not None
    got = await at.ask("POST", f"/schedules/{schedule}/trigger")
    assert got.headers["location"] == f"/schedules/{schedule}"
    assert [flash.link for flash in at.session.told()] == [f"/jobs/{job}"]
    got = await at.ask("POST", f"/schedules/{schedule}/delete")
    assert got.headers["location"] == "/schedules"
    assert not at.session.undos


@pytest.mark.parametrize(("code", "looks"), [("no_worker", "why bad"), ("no_handler", "why bad"), ("not_due", "why")])
async def test_a_job_that_nobody_takes_looks_wrong(code: str, looks: str) -> None:
    why = {"id": JOB.bytes, "name": "n", "topic": "t", "status": "PENDING", "reasons": [{"code": code, "text": "so"}]}
    at = browser(Told(jobs_get={"job": job(status="PENDING")}, jobs_why=why, status={}))
    assert f'<section class="{looks}">' in (await at.ask("GET", f"/jobs/{JOB}")).text


async def test_its_keys_are_shown() -> None:
    keyed = job(status="PENDING", unique_key="doc:<42>", unique_until="start", attempts=0, group_key="tenant<7>")
    at = browser(Told(jobs_get={"job": keyed}, jobs_why={}, status={}))
    page = (await at.ask("GET", f"/jobs/{JOB}")).text
    assert "doc:&lt;42&gt; (until it starts)" in page
    assert "tenant&lt;7&gt;" in page


async def test_parts_of_a_job() -> None:
    """Whole, as a file; only what a job's page shows, and only what is there."""
    job = {"id": JOB.bytes, "args": '{"a": 1}', "locked_by": "host", "last_error": "bo\udc80m"}
    at = browser(Told(jobs_get={"job": job}))
    got = await at.ask("GET", f"/jobs/{JOB}/text/args")
    assert (got.status, got.text) == (200, '{"a": 1}')
    assert got.headers["content-disposition"] == 'attachment; filename="args.txt"'
    assert (await at.ask("GET", f"/jobs/{JOB}/text/last_error")).text == "bo\\udc80m"
    for part in ("result", "locked_by"):
        assert (await at.ask("GET", f"/jobs/{JOB}/text/{part}")).status == 404


async def test_the_overview_looks_for_no_jobs_where_there_are_none() -> None:
    asked: list[object] = []

    def page(body: Mapping[str, Any]) -> dict[str, object]:
        asked.append(body["status"])
        return {"jobs": []}

    at = browser(Told(status={"jobs": {"RUNNING": 1}}, jobs_list=page))
    await at.site.poller.latest(0.0)
    assert (await at.ask("GET", "/")).status == 200
    assert asked == [["RUNNING"]]


@pytest.mark.parametrize("answers", [0, 1, 2])
async def test_what_was_found_before_the_server_fell_silent_is_shown(answers: int) -> None:
    """Nothing at all is an error; and after the last page none is asked for."""
    asked = 0

    def page(_body: Mapping[str, Any]) -> dict[str, object]:
        nonlocal asked
        asked += 1
        if asked > answers:
            raise NobodyAnswersError("no answer")
        return {"jobs": [{"id": JOB.bytes, "name": "lost"}], "next": "x" if asked < 2 else None}

    form = {"verb": "cancel", "all": "1"}
    got = await ask_about(browser(Told(status={}, jobs_list=page)), "/bulk/preview", form)
    assert (got.status, "lost" in got.text) == ((200, True) if answers else (502, False))
    assert asked == (2 if answers else 1)


async def test_a_question_looks_for_no_more_than_it_shows() -> None:
    asked: list[object] = []

    def page(body: Mapping[str, Any]) -> dict[str, object]:
        asked.append(body.get("after"))
        return {"jobs": [{"id": JOB.bytes, "name": "a"}] * body["limit"], "next": "x" if len(asked) < 3 else None}

    got = await ask_about(browser(Told(status={}, jobs_list=page)), "/bulk/preview", {"verb": "cancel", "all": "1"})
    assert (got.status, asked) == (200, [None])


@pytest.mark.parametrize(
    ("status", "asks"), [("PENDING", {"change"}), ("DEAD_LETTERED", {"delete"}), ("RUNNING", set[str]())]
)
async def test_a_job_is_changed_and_deleted_on_its_page(status: str, asks: set[str]) -> None:
    """After a question; a deleted one has no page to go back to."""
    row = job(status=status)
    at = browser(Told(status={}, jobs_get={"job": row}, jobs_why={}))
    here = f"/jobs/{uuid.UUID(bytes=row['id'])}"
    text = (await at.ask("GET", here)).text
    assert set(re.findall('id="ask-([a-z]+)"', text)) == asks
    form = text[text.index('action="/bulk/preview"') :] if asks else ""
    assert [f'name="next" value="{to}"' in form for to in (here, "/jobs")] == ["change" in asks, "delete" in asks]


async def test_a_server_that_keeps_no_audit() -> None:
    """An older one does not know the request; a filter that is wrong is another matter."""

    def refuse(_body: Mapping[str, Any]) -> dict[str, object]:
        raise BadRequestError("unknown request")

    at = browser(Told(status={}, audit_list=refuse))
    assert (await at.ask("GET", "/audit")).status == 200
    assert (await at.ask("GET", "/audit?topic=t")).status != 200


async def test_an_action_that_no_page_of_a_job_has_is_not_done() -> None:
    at = browser(Told(jobs_delete={"done": [JOB.bytes], "refused": []}))
    assert (await at.ask("POST", f"/jobs/{JOB}/delete")).status == 404
    assert cast("Told", at.site.questions).changed == []


async def test_what_is_forgotten_cannot_be_undone() -> None:
    at = browser(Told(status={}))
    assert at.session is not None
    assert (await at.ask("GET", "/tasks/gone")).status == 404
    for path, said in (
        ("/tasks/gone/undo", "there is no such task"),
        ("/undo/gone", "That cannot be undone any more."),
    ):
        assert (await at.ask("POST", path)).status == 303
        assert [flash.text for flash in at.session.told()] == [said]


async def test_a_question_can_be_come_back_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """The button "back" leads to it, and it may be loaded again; of many the oldest is forgotten."""
    monkeypatch.setattr("pulse.ui.auth.sessions._MOST_ASKED", 1)
    at = browser(Told(status={}))
    asked = [await at.ask("POST", "/bulk/preview", {"verb": "cancel", "id": str(JOB), "next": "/x"}) for _ in range(2)]
    for got, status in zip(asked, (404, 200), strict=True):
        assert got.status == 303
        shown = [await at.ask("GET", got.headers["location"]) for _ in range(2)]
        assert {(one.status, 'name="next" value="/x"' in one.text) for one in shown} == {(status, status == 200)}
    for form in ({"verb": "burn", "id": str(JOB)}, {"verb": "cancel", "id": str(JOB), "q": "x" * 200_000}):
        assert (await at.ask("POST", "/bulk/preview", form)).status == 422


async def test_ticked_jobs_are_not_looked_for() -> None:
    got = await ask_about(browser(Told(status={})), "/bulk/preview", {"verb": "cancel", "id": str(JOB)})
    assert got.status == 200
    assert f"job {JOB}" in got.text


async def test_a_completed_job_runs_again_only_after_a_question() -> None:
    """By its own button, and among ticked ones; what has run again cannot be undone, and no undo is offered."""
    row = job(status="COMPLETED", last_error=None, ran_by="h0st/b00t/42/1234.99/pool/1")
    key = uuid.UUID(bytes=row["id"])
    done = {"done": [row["id"]], "refused": [], "completed": [row["id"]]}
    at = browser(Told(status={}, jobs_get={"job": row}, jobs_find={"jobs": [row]}, jobs_retry=done))
    questions = cast("Told", at.site.questions)
    got = await at.ask("GET", f"/jobs/{key}")
    assert "pool/1 on h0st, pid 1234" in got.text
    assert "Retry…" in got.text
    for path, form in ((f"/jobs/{key}/retry", {}), ("/bulk/preview", {"verb": "retry", "id": str(key)})):
        got = await ask_about(at, path, form)
        assert "1 job has completed: it runs again, and that cannot be taken back." in got.text
        assert "It can be taken back" not in got.text
    assert questions.changed == []
    await at.ask("POST", "/bulk/start", {"verb": "retry", "id": str(key)})
    assert [kind for kind, _, _ in questions.changed] == ["jobs.retry"]
    assert at.session is not None
    assert not at.session.undos


class Slow(Told):
    """Counts up; the first answer waits for a signal."""

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


async def test_a_fresh_answer_is_not_asked_for_again() -> None:
    poller = Poller(Told(status={}))
    first = await poller.latest(0.0)
    assert await poller.latest(time.monotonic() + 5) is first


async def test_only_so_many_pages_wait_for_news(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more gets none, until another has closed."""
    monkeypatch.setattr("pulse.ui.data.poller.MOST_WATCHERS", 1)
    poller = Poller(Told(status={}))
    await poller.latest(0.0)
    watching = poller.watch()
    assert (await anext(watching)).number == 1
    assert await anext(poller.watch(), None) is None
    await cast("AsyncGenerator[Any]", watching).aclose()
    assert await anext(poller.watch(), None) is not None


async def test_a_round_that_fails_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """After any error the next is asked: open pages would wait for ever."""
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
