"""Changes of many jobs: they hit exactly the confirmed ones, and can be undone."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest

from pulse.errors import BadRequestError, ConflictError, ForbiddenError, UnavailableError
from pulse.protocol import answers
from pulse.ui.app import make_app
from pulse.ui.data import bulk_tasks as tasks_module
from pulse.ui.data.bulk_orders import BulkOrder, ordered
from pulse.ui.data.bulk_tasks import BulkTask, BulkTasks
from tests.support.servers.dashboard import Browser, Told, ask_about, site_of

pytestmark = pytest.mark.anyio
NOW_S = 2_000_000_100.0


def identity(number: int) -> bytes:
    return number.to_bytes(16)


class Queue(Told):
    def __init__(self, jobs: Mapping[int, Mapping[str, Any]]) -> None:
        super().__init__(jobs_list=self._list)
        self.jobs = {number: {"status": "PENDING", "topic": "t", "priority": 0, **job} for number, job in jobs.items()}
        for verb in ("cancel", "retry", "change", "delete"):
            self.replies[f"jobs.{verb}"] = self._done
        self.listed: list[Mapping[str, Any]] = []
        self.is_free = asyncio.Event()
        self.is_free.set()

    async def change(
        self, kind: str, body: Mapping[str, Any], *, behalf: str, within_s: float = 1.0
    ) -> dict[str, object]:
        await self.is_free.wait()
        return await super().change(kind, body, behalf=behalf, within_s=within_s)

    def _list(self, body: Mapping[str, Any]) -> dict[str, object]:
        self.listed.append(body)
        before = int(body.get("after", 1 << 60))
        found = [number for number in sorted(self.jobs, reverse=True) if number < before][:3]
        rows = [{"id": identity(number), "submitted_at": NOW_S - 100, **self.jobs[number]} for number in found]
        return {"jobs": rows, "next": str(found[-1]) if len(found) == 3 else None}

    def _done(self, body: Mapping[str, Any]) -> dict[str, object]:
        before = []
        for one in body["ids"]:
            job = self.jobs[int.from_bytes(one)]
            before.append((one, job["topic"], job["priority"]))
            job.update({key: body[key] for key in ("topic", "priority") if key in body})
        return {"done": list(body["ids"]), "refused": [], "before": before}

    def hit(self, kind: str) -> set[int]:
        return {int.from_bytes(one) for what, body, _ in self.changed if what == kind for one in body["ids"]}


async def done(tasks: BulkTasks, order: BulkOrder) -> BulkTask:
    task = tasks.begin(order, "ann")
    assert task.runner is not None
    await task.runner
    assert (task.state, task.error) == ("done", None)
    return task


def confirmed(verb: str, *found: int, at_s: float = NOW_S, **more: str) -> BulkOrder:
    """The order of the form of a page that has counted these jobs."""
    form = {"verb": [verb], "all": ["1"], "at": [repr(at_s)], **{key: [value] for key, value in more.items()}}
    if found:
        form["found"] = [str(UUID(bytes=identity(number))) for number in found]
    return ordered(form, NOW_S + 60, is_final=True)


async def test_what_was_counted_is_what_is_changed() -> None:
    """Newer matches are left alone, and so are jobs that no longer match."""
    queue = Queue({number: {} for number in range(1, 9)})
    queue.jobs[5]["topic"] = "other"
    await done(BulkTasks(queue), confirmed("cancel", 2, 5, 7, topic="t"))
    assert queue.hit("jobs.cancel") == {2, 7}
    assert {who for _, _, who in queue.changed} == {"ann"}


async def test_it_ends_where_all_were_met() -> None:
    queue = Queue({number: {} for number in range(1, 90)})
    await done(BulkTasks(queue), confirmed("cancel", 88, 89))
    assert (queue.hit("jobs.cancel"), len(queue.listed)) == ({88, 89}, 1)


async def test_ages_are_meant_as_of_the_page() -> None:
    """A page that was open for a minute: jobs of that minute are not meant, nor those that have grown old in it."""
    order = confirmed("cancel")
    assert order.filters == {"older_s": 60.0, "brief": True}
    assert order.matches is not None
    assert order.matches(answers.JobInfo(identity(1), submitted_at=NOW_S - 1))
    assert not order.matches(answers.JobInfo(identity(1), submitted_at=NOW_S + 30))
    order = confirmed("cancel", older="1h", newer="2h")
    assert order.filters == {"older_s": 3660.0, "newer_s": 7260.0, "brief": True}
    assert ordered({"verb": ["cancel"], "all": ["1"], "at": ["nan"]}, NOW_S, is_final=True).filters == {"brief": True}
    order = confirmed("cancel", at_s=NOW_S + 1e6)
    assert order.filters == {"brief": True}
    assert order.matches is not None
    assert not order.matches(answers.JobInfo(identity(1), submitted_at=NOW_S + 600))
    with pytest.raises(BadRequestError, match="a job has no id that is one"):
        ordered({"verb": ["cancel"], "all": ["1"], "found": ["x"]}, NOW_S, is_final=True)


async def test_statuses_and_names_are_looked_at_again() -> None:
    """A name with a space before it is another name; the row's own status counts."""
    order = confirmed("retry", status="DEAD_LETTERED", topic=" t")
    assert order.filters is not None
    assert order.filters["topic"] == " t"
    assert order.matches is not None
    assert not order.matches(answers.JobInfo(identity(1), status="COMPLETED", topic=" t", submitted_at=NOW_S - 9))
    assert not order.matches(answers.JobInfo(identity(1), status="DEAD_LETTERED", topic="t", submitted_at=NOW_S - 9))
    assert order.matches(answers.JobInfo(identity(1), status="DEAD_LETTERED", topic=" t", submitted_at=NOW_S - 9))


@pytest.mark.parametrize(("verb", "reverse"), [("cancel", "retry"), ("retry", "cancel"), ("change", "change")])
async def test_a_task_is_taken_back(verb: str, reverse: str) -> None:
    queue = Queue({number: {"topic": f"t{number % 2}", "priority": number % 3} for number in range(1, 9)})
    was = {number: dict(job) for number, job in queue.jobs.items()}
    tasks = BulkTasks(queue)
    task = await done(tasks, confirmed(verb, to_priority="50"))
    assert (task.done, task.undoable) == (8, 8)
    queue.changed.clear()
    back = tasks.undo(task, "bob")
    assert back.runner is not None
    await back.runner
    assert (back.done, queue.hit(f"jobs.{reverse}"), queue.jobs) == (8, set(range(1, 9)), was)
    assert {who for _, _, who in queue.changed} == {"bob"}
    assert back.undoable == 0
    for again in (task, back):
        with pytest.raises(ConflictError, match="cannot be undone any more"):
            tasks.undo(again, "bob")


async def test_what_undoes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """All tasks share the room: the oldest make way; a task that is too large is not kept at all."""
    monkeypatch.setattr(tasks_module, "MOST_UNDOABLE", 6)
    tasks = BulkTasks(Queue({number: {} for number in range(1, 6)}))
    first, second = [await done(tasks, confirmed("cancel")) for _ in range(2)]
    assert [(one.undoable, one.back is None) for one in (first, second)] == [(0, True), (5, False)]
    tasks = BulkTasks(Queue({number: {} for number in range(1, 13)}))
    task = await done(tasks, confirmed("cancel"))
    assert (task.done, task.undoable, task.back is None) == (12, 0, True)
    task = await done(tasks, confirmed("delete"))
    assert (task.undoable, task.back is None) == (0, False)


async def test_from_the_list_to_the_undo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pulse.ui.guard.time.time", lambda: NOW_S)
    queue = Queue({number: {} for number in range(1, 8)})
    site = site_of(queue)
    at = Browser(make_app(site), site)
    at.enter()
    got = await ask_about(at, "/bulk/preview", {"verb": "cancel", "all": "1", "topic": "t"})
    assert "Cancel 7 jobs?" in got.text
    assert "They start at once then" in got.text
    assert got.text.count('name="found"') == 7
    queue.jobs[8] = dict(queue.jobs[7])
    form = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', got.text))
    found = "&".join(f"found={one}" for one in re.findall(r'name="found" value="([^"]*)"', got.text))
    rest = "&".join(f"{key}={value}" for key, value in form.items() if key not in {"found", "next"})
    queue.is_free.clear()
    got = await at.ask("POST", "/bulk/start", f"{rest}&{found}".encode())
    (task,) = site.tasks.all()
    assert got.headers["location"] == f"/tasks/{task.key}"
    assert "1 task running" in (await at.ask("GET", "/gate")).text
    queue.is_free.set()
    assert task.runner is not None
    await task.runner
    assert queue.hit("jobs.cancel") == set(range(1, 8))
    assert "Undo: retry them" in (await at.ask("GET", f"/tasks/{task.key}")).text
    got = await at.ask("POST", f"/tasks/{task.key}/undo")
    assert got.headers["location"] == f"/tasks/{site.tasks.all()[0].key}"
    assert "It cannot be undone here any more" in (await at.ask("GET", f"/tasks/{task.key}")).text
    await at.ask("POST", f"/tasks/{task.key}/undo")
    assert "cannot be undone any more" in (await at.ask("GET", "/tasks")).text
    await site.tasks.aclose()


async def test_an_undo_tells_what_was_refused() -> None:
    queue = Queue({1: {}, 2: {}})
    queue.replies["jobs.retry"] = {"done": [identity(1)], "refused": [[identity(2), "conflict"]]}
    site = site_of(queue)
    at = Browser(make_app(site), site)
    at.enter()
    form = b"&".join(b"id=" + str(UUID(bytes=identity(number))).encode() for number in (1, 2))
    assert at.session is not None
    await at.ask("POST", "/bulk/start", b"verb=cancel&csrf=" + at.session.token.encode() + b"&" + form)
    (undo,) = at.session.undos
    at.session.told()
    await at.ask("POST", f"/undo/{undo}")
    assert [flash.text for flash in at.session.told()] == ["1 job could not be taken back."]


async def test_so_many_at_once_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks_module, "MOST_RUNNING", 2)
    tasks = BulkTasks(Queue({}))
    for _ in range(2):
        tasks.begin(confirmed("cancel"), "ann")
    with pytest.raises(ConflictError, match="2 such tasks are under way"):
        tasks.begin(confirmed("cancel"), "ann")
    await tasks.aclose()
    assert len(tasks.all()) == 2


@pytest.mark.parametrize(("failures", "state"), [(tasks_module.MOST_FAILURES - 1, "done"), (99, "failed")])
async def test_a_server_that_is_away_for_a_moment(monkeypatch: pytest.MonkeyPatch, failures: int, state: str) -> None:
    """It is asked again, a few times; looking is no change, which the person's own connection would be for."""
    monkeypatch.setattr(tasks_module, "RETRY_S", 0.0)
    queue, left = Queue({1: {}}), failures

    def cancel(body: Mapping[str, Any]) -> dict[str, object]:
        nonlocal left
        left -= 1
        if left >= 0:
            raise UnavailableError("the database is away")
        return queue._done(body)

    queue.replies["jobs.cancel"] = cancel
    task = BulkTasks(queue).begin(confirmed("cancel"), "ann")
    assert task.runner is not None
    await task.runner
    assert (task.state, task.error) == (state, None if state == "done" else "the database is away")
    assert {kind for kind, _, _ in queue.changed} == {"jobs.cancel"}
    assert len(queue.changed) == tasks_module.MOST_FAILURES


async def test_a_refusal_is_the_end() -> None:
    def refuse(_body: Mapping[str, Any]) -> dict[str, object]:
        raise ForbiddenError("you may not")

    queue = Queue({1: {}})
    queue.replies["jobs.cancel"] = refuse
    task = BulkTasks(queue).begin(confirmed("cancel"), "ann")
    assert task.runner is not None
    await task.runner
    assert (task.state, task.error, len(queue.changed)) == ("failed", "you may not", 1)
