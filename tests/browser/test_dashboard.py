"""The dashboard in a real browser, over a real system."""

from __future__ import annotations

import json
import os
import re
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

import pulse
from tests.browser.kit import PASSWORD, PHONE, USER, Dashboard, axe, check_looks, dashboard
from tests.support.systems.system_kit import Whole
from tests.support.waiting import until

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.patient, pytest.mark.rest]

Visit = Callable[..., "Page"]
Picture = Callable[..., None]
ANSWER_S: Final = 2.0
PAGES: Final = (
    "/", "/jobs?oldest=1", "/dead", "/topics", "/topics/view?topic=mail", "/topics/view?topic=letters",
    "/limits", "/limits/view?name=api",
    "/schedules", "/schedules/new", "/workers", "/actors", "/actors/dispatcher/restart", "/gate", "/audit", "/tasks",
)  # fmt: skip
HOSTILE: Final = '</pre><script>alert("args")</script><img src=x onerror=alert(1)>\u202egnp.exe\u2066'


@pytest.fixture(scope="module")
def client(whole: Whole) -> Iterator[pulse.Client]:
    with pulse.Client(whole.path) as made:
        yield made


@pytest.fixture(scope="module")
def work(client: pulse.Client, whole: Whole) -> dict[str, str]:
    """Something of everything, for pages to show: ids by name."""
    gate = str(whole.gate("work"))
    many: list[Any] = [
        {"name": "fail", "args": {"text": f"smtp says 421 to user{number}"}, "topic": "mail", "max_attempts": 1}
        for number in range(25)
    ]
    client.submit_many(many)
    client.topics_set("default", backoff="fixed:600")
    running = client.submit("hold", {"gate": gate}, priority=50)
    failing = client.submit("fail", {"text": "no path\n  in the second line"})
    schedule = client.schedules_create("nap", {"seconds": 0}, cron="30 2 * * 1-5", timezone="Europe/Berlin")
    client.topics_set("mail", max_attempts=2, backoff="fixed:600")
    client.set_limit("api", concurrency=50, rate=100, burst=10, group_rate=5, sequence="halt")
    client.set_limit("api", group_key="tenant-7", concurrency=0)
    client.topics_set("reports", limit="api")
    client.pause("reports", "the books are closed", for_s=3600)
    client.submit("monthly", {"month": 11}, topic="reports")
    client.set_limit("letters", group_key="tenant-7", concurrency=0)
    for tenant in ("tenant-7", "tenant-8"):
        client.submit("mark", {}, topic="letters", group_key=tenant, delay_s=86400)
    until(lambda: len(client.jobs(status="DEAD_LETTERED").jobs) == 25, "the dead letters")
    until(lambda: client.get(failing).history, "an attempt")
    return {"running": str(running), "failing": str(failing), "schedule": str(schedule.id)}


def says(page: Page, text: str) -> None:
    page.locator(".flash", has_text=text).first.wait_for()


def test_every_page(visit: Visit, work: dict[str, str], picture: Picture) -> None:
    """Each answers in time, is clean for those who cannot see it, and fits a phone."""
    page = visit()
    mine = (f"/jobs/{work['failing']}", f"/jobs/{work['running']}", f"/jobs/{work['running']}/stack",
            f"/schedules/{work['schedule']}", f"/schedules/{work['schedule']}/edit",
            f"/schedules/{work['schedule']}/delete")  # fmt: skip
    for number, path in enumerate((*PAGES, *mine)):
        got = page.goto(path)
        assert got is not None
        assert got.status == 200, path
        name = re.sub(r"\W+", "-", re.sub(r"[0-9a-f-]{36}", "id", path)).strip("-") or "overview"
        check_looks(page, picture, f"{number:02}-{name}", path)


def test_login(visit: Visit, ui: Dashboard) -> None:
    """Without a session there is only the login; a wrong password is refused, the right one leads on."""
    page = visit(log_in=False)
    page.goto("/gate")
    assert "/login?next=%2Fgate" in page.url
    assert axe(page) == []
    page.fill("[name=user]", USER)
    page.fill("[name=password]", "wrong")
    page.click("button")
    says(page, "do not fit")
    until(lambda: _tried(page) == f"{ui.url}/gate", "it is let in when it has waited")
    assert page.locator("h1").inner_text() == "Gate"
    page.click("button[title='Log out']")
    page.goto("/jobs")
    assert "/login" in page.url


def _tried(page: Page) -> str:
    page.goto("/login?next=/gate")
    page.fill("[name=user]", USER)
    page.fill("[name=password]", PASSWORD)
    page.click("button")
    return page.url


def test_news_come_by_themselves(visit: Visit, client: pulse.Client, work: dict[str, str]) -> None:
    page = visit()
    page.goto("/jobs?status=PENDING&topic=live")
    page.wait_for_selector("#pace.live")
    first = client.submit("mark", {}, topic="live")
    page.wait_for_selector(f"#job-{first}")
    page.check("input[name=id]")
    assert page.locator("#ticked").inner_text() == "1 ticked"
    second = client.submit("mark", {}, topic="live")
    page.wait_for_selector("#pace.held")
    assert page.locator(f"#job-{second}").count() == 0
    page.uncheck("input[name=id]")
    page.wait_for_selector(f"#job-{second}")


def test_news_that_come_late_leave_ticks_alone(visit: Visit, client: pulse.Client) -> None:
    ids = client.submit_many([{"name": "mark", "topic": "late"} for _ in range(2)])
    page = visit()
    page.goto("/jobs?topic=late")
    page.wait_for_selector("#pace.live")
    held: list[Route] = []

    def hold(route: Route) -> None:  # playwright marks what it is given: a method of a list it cannot
        held.append(route)

    page.route("**/jobs?*", hold)

    def asked() -> bool:  # again, if the page had just asked by itself
        page.evaluate("document.body.dispatchEvent(new Event('pulse:tick'))")
        return bool(held)

    until(asked, "news are on their way")
    page.check(f"input[value='{ids[0]}']")
    with page.expect_response("**/jobs?*"):
        held[0].continue_()
    page.wait_for_selector("#live:not(.htmx-request)")
    assert page.locator("#ticked").inner_text() == "1 ticked"
    page.wait_for_selector("#pace.held")


def test_dead_letters_are_retried_by_their_error(
    visit: Visit, client: pulse.Client, work: dict[str, str], picture: Picture
) -> None:
    page = visit()
    page.goto("/dead")
    row = page.locator("tr", has_text="smtp says 421")
    assert row.count() == 1
    assert row.locator("td").first.inner_text() == "25"
    row.locator("button[value=retry]").click()
    assert page.locator("h1").inner_text() == "Retry 25 jobs?"
    assert axe(page) == []
    picture(page, "90-confirm")
    page.click("text=Yes, retry them")
    page.wait_for_selector(".status.completed")
    assert page.locator("#done").inner_text() == "25"
    assert axe(page) == []
    picture(page, "91-task")
    until(lambda: {job.attempts for job in client.jobs(topic="mail").jobs} == {2}, "all have been tried again")


def test_ticked_jobs_are_canceled_and_taken_back(visit: Visit, client: pulse.Client) -> None:
    ids = client.submit_many([{"name": "mark", "topic": "undone"} for _ in range(3)])
    page = visit()
    page.goto("/jobs?topic=undone")
    assert page.locator("#verbs").is_hidden()
    page.check(f"input[value='{ids[0]}']")
    page.check(f"input[value='{ids[2]}']")
    page.click("button[value=cancel]")
    assert page.locator("h1").inner_text() == "Cancel 2 jobs?"
    page.click("text=Yes, cancel them")
    says(page, "2 jobs canceled")
    assert [client.get(one).status for one in ids] == ["CANCELED", "PENDING", "CANCELED"]
    page.click("text=Undo: retry them")
    says(page, "Undone")
    assert {client.get(one).status for one in ids} == {"PENDING"}


def test_what_is_found_is_changed_and_deleted(visit: Visit, client: pulse.Client) -> None:
    ids = client.submit_many([{"name": "mark", "topic": "moved", "priority": number} for number in range(4)])
    page = visit()
    page.goto("/jobs?topic=moved")
    page.check("#tick-all")
    page.click("button[value=change]")
    page.fill("[name=to_priority]", "70")
    page.fill("[name=to_topic]", "moved-on")
    page.click("text=Yes, change them")
    assert {(client.get(one).priority, client.get(one).topic) for one in ids} == {(70, "moved-on")}
    page.click("text=Undo: change them back")
    assert [(client.get(one).priority, client.get(one).topic) for one in ids] == [(n, "moved") for n in range(4)]
    client.cancel(*ids[:3])
    page.goto("/jobs?topic=moved")
    page.check("[name=all]")
    page.click("button[value=delete]")
    assert "It cannot be taken back" in page.locator("main").inner_text()
    assert "1 of them cannot be deleted" in page.locator("main").inner_text()
    page.click("text=Yes, delete them")
    page.wait_for_selector(".status.completed")
    assert "3 deleted, 1 refused (invalid transition)" in " ".join(page.locator("#live").inner_text().split())
    assert [job.id for job in client.jobs(topic="moved").jobs] == [ids[3]]
    page.goto("/audit?action=jobs.delete")
    row = page.locator("tr[data-row]").first.inner_text()
    assert f"{USER} by uid {os.getuid()}" in row
    assert "topic “moved”" in row


def test_pause_and_resume(visit: Visit, client: pulse.Client) -> None:
    page = visit()
    page.goto("/topics/view?topic=slow/ly")
    page.fill("[name=reason]", "the <b>disk</b> is full")
    page.fill("[name=for]", "10m")
    page.click("button:text('Pause')")
    gate: Any = client.dispatch_status()
    assert gate["topics"]["slow/ly"]["reason"] == "the <b>disk</b> is full"
    assert "paused" in page.locator("h1").inner_text()
    page.goto("/")
    page.wait_for_selector("text=reason: the <b>disk</b> is full")
    page.goto("/gate")
    page.locator("tr", has_text="slow/ly").get_by_role("button").click()
    page.goto("/topics/view?topic=slow/ly")
    assert "paused" not in page.locator("h1").inner_text()
    assert "slow/ly" not in json.dumps(client.dispatch_status())
    page.goto("/gate")
    page.click("button.danger")
    assert client.dispatch_status()["paused"] is True
    page.wait_for_selector("#standing .pill.warn")
    page.click("#resume-all")
    assert client.dispatch_status()["paused"] is False
    page.fill("[name=for]", "soon")
    page.click("button.danger")
    says(page, "for is 'soon'")


def test_a_policy_is_edited(visit: Visit, client: pulse.Client) -> None:
    page = visit()
    page.goto("/topics/view?topic=policed")
    page.fill("[name=max_attempts]", "7")
    page.click("text=Save")
    says(page, "max_attempts 7")
    assert _option(client, "max_attempts") == {"value": 7, "source": "topic"}
    page.click("text=Undo")
    assert _option(client, "max_attempts")["source"] != "topic"
    page.goto("/topics/view?topic=policed")
    page.fill("[name=backoff]", "often")
    page.click("text=Save")
    says(page, "backoff")


def _option(client: pulse.Client, name: str) -> Any:
    topic: Any = client.topics_get("policed")
    return topic["policy"][name]


def test_a_schedule_is_made_edited_triggered_and_deleted(visit: Visit, client: pulse.Client) -> None:
    page = visit()
    page.goto("/schedules/new")
    page.fill("[name=name]", "mark")
    page.fill("[name=cron]", "61 * * * *")
    page.fill("[name=timezone]", "Asia/Kathmandu")
    page.click("text=Create")
    assert page.locator("[role=alert]").inner_text()
    assert page.input_value("[name=timezone]") == "Asia/Kathmandu"
    page.fill("[name=cron]", "15 6 * * *")
    page.click("text=Create")
    says(page, "created")
    assert "06:15:00" in page.locator(".times li").first.inner_text()
    schedule = uuid.UUID(page.url.rpartition("/")[2])
    page.click("#trigger")
    page.click("text=Show it")
    job = uuid.UUID(page.url.rpartition("/")[2])
    assert client.get(job).schedule_id == schedule
    page.goto(f"/schedules/{schedule}/edit")
    page.check("[value=every]")
    page.fill("[name=every]", "90")
    page.click("text=Save")
    changed = client.schedules_get(schedule)
    assert (changed.kind, changed.every_s) == ("every", 90.0)
    page.click("text=Undo")
    assert (client.schedules_get(schedule).kind, client.schedules_get(schedule).timezone) == ("cron", "Asia/Kathmandu")
    page.goto(f"/schedules/{schedule}")
    page.click("#toggle")
    assert client.schedules_get(schedule).paused
    page.click("#delete")
    page.click("text=Yes, delete it")
    says(page, "deleted")
    with pytest.raises(pulse.NotFoundError):
        client.schedules_get(schedule)


def test_the_page_of_a_job(visit: Visit, client: pulse.Client, work: dict[str, str]) -> None:
    page = visit()
    page.goto(f"/jobs/{work['failing']}")
    assert "ValueError: no path" in page.locator(".line").inner_text()
    assert "It is tried again" in page.locator(".why").inner_text()
    page.goto(f"/jobs/{work['running']}")
    page.click("#to-stack")
    assert "hold" in page.locator("pre").inner_text()
    page.go_back()
    page.click("#do-cancel")
    says(page, "1 job canceled")
    assert client.get(work["running"]).status == "CANCELED"


def test_keys(visit: Visit, work: dict[str, str]) -> None:
    """Search, go, walk, tick and help without a mouse; the focus is visible."""
    page = visit()
    page.keyboard.press("g")
    page.keyboard.press("j")
    page.wait_for_url("**/jobs")
    page.wait_for_selector("tr[data-row]")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.name") == "q"
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.closest('tr').rowIndex") == 1
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("x")
    assert page.locator("#ticked").inner_text() == "1 ticked"
    page.keyboard.press("?")
    assert page.locator("#help").is_visible()
    assert axe(page) == []
    page.keyboard.press("Escape")
    page.keyboard.press("Enter")
    page.wait_for_url("**/jobs/*")
    page.goto("/")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def test_without_scripts(visit: Visit, client: pulse.Client) -> None:
    ids = client.submit_many([{"name": "mark", "topic": "plain"} for _ in range(2)])
    page = visit(java_script_enabled=False)
    page.goto("/jobs")
    page.fill("[name=topic]", "plain")
    page.click("text=Filter")
    assert page.locator("tr[data-row]").count() == 2
    page.check("[name=all]")
    page.click("button[value=cancel]")
    later = client.submit("mark", topic="plain")  # behind the page that asks
    page.click("text=Yes, cancel them")
    page.wait_for_url("**/tasks/*")  # a reload before that would break the navigation off

    def has_ended() -> bool:
        page.reload()
        return page.locator("#undo").count() == 1

    until(has_ended, "the page offers to undo what has been done")
    assert {client.get(one).status for one in ids} == {"CANCELED"}
    page.click("text=Undo: retry them")
    page.locator("h1", has_text="Retry").wait_for()
    until(lambda: {client.get(one).status for one in ids} == {"PENDING"}, "that is taken back")
    assert (client.get(later).status, client.get(later).attempts) == ("PENDING", 0)
    actions: Any = client.audit(limit=2)["audit"]
    assert {(one["action"], one["behalf"]) for one in actions} == {("jobs.cancel", USER), ("jobs.retry", USER)}
    page.click("button[title^=Light]")
    page.locator("html[data-theme=dark]").wait_for()


def test_what_is_hostile_is_text(visit: Visit, client: pulse.Client, picture: Picture) -> None:
    """A page of 1000 hostile rows: no script runs, no direction turns, nothing is broken."""
    name, topic = '<script>alert("name")</script>' + "n" * 150, "t\u202eopic<b>" + "x" * 150
    jobs: list[Any] = [{"name": name, "topic": topic, "args": {"x": HOSTILE, "n": number}} for number in range(998)]
    client.submit_many(jobs)
    big = client.submit(name, {"x": HOSTILE + "y" * 1_000_000}, topic=topic)
    odd = client.submit("a\u0001b\u200bc\u2028d", {"\u0000x".strip("\u0000"): "\u0007"}, topic=topic)
    page = visit()
    page.goto("/jobs?limit=1000")
    assert page.locator("tr[data-row]").count() == 1000
    assert page.locator("main script, main img, main b b").count() == 0
    text = page.locator("main").inner_text()
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u200b\u2028\u0001\u0007]", text)
    assert "\\u202egnp.exe" in text
    picture(page, "92-hostile")
    for one in (big, odd):
        page.goto(f"/jobs/{one}")
        assert page.locator("main script, main img").count() == 0
        assert len(page.content()) < 100_000
    page.set_viewport_size(PHONE)
    page.goto(f"/jobs/{big}")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    picture(page, "93-hostile-phone")
    with page.expect_download() as download:
        page.click("text=all of it, as a file")
    assert Path(download.value.path()).stat().st_size > 1_000_000


def test_read_only(visit: Visit, whole: Whole, work: dict[str, str]) -> None:
    with dashboard(whole, "--read-only") as ui:
        page = visit(ui, log_in=False)
        (link,) = ui.links()
        page.goto(link)
        page.wait_for_url(f"{ui.url}/")
        for path in ("/jobs", "/dead", "/topics", "/topics/view?topic=mail", f"/schedules/{work['schedule']}", "/gate"):
            page.goto(path)
            assert page.locator("main form[method=post]").count() <= (1 if "/view" in path or path == "/jobs" else 0), (
                path
            )
            assert page.locator("main form[method=post] button").count() == 0, path
        page.click("button[title='Log out']")
        assert page.url.endswith("/login")
        refused = page.request.post("/gate/pause", form={"topic": ""})
        assert refused.status == 403
        assert "only reads" in refused.text()
        assert ui.ask("GET", link.removeprefix(ui.url)).status == 403
        assert len(ui.links()) == 2
        assert ui.stop() == 0


def test_what_is_down_is_told_in_time(visit: Visit, ui: Dashboard, whole: Whole, work: dict[str, str]) -> None:
    page = visit()
    ui.log_in()
    dispatcher = whole.pids()["dispatcher"]
    assert whole.process is not None
    frozen = (whole.process.pid, dispatcher)
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    try:
        for path in ("/", "/jobs", "/topics", f"/jobs/{work['failing']}"):
            until(lambda path=path: "the dispatcher does not answer" in timely(ui, path), f"{path} says so")  # type: ignore[misc]
        page.wait_for_selector(".health.down")
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
    page.wait_for_selector(".health:not(.down)", timeout=20_000)


def timely(ui: Dashboard, path: str) -> str:
    start_s = time.monotonic()
    text = ui.ask("GET", path).text
    assert time.monotonic() - start_s < ANSWER_S, path
    return text
