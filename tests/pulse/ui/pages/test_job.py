"""The page of a job that waits for others, or that others wait for; and their graph."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Mapping
from typing import Any

import pytest

from pulse.errors import NotFoundError
from tests.support.commandline.cli_answers import job
from tests.support.servers.dashboard import Told, browser

pytestmark = pytest.mark.anyio
JOB = uuid.UUID(int=7)


async def test_what_a_job_waits_for() -> None:
    """And what waits for it: each with its status and page; a due time that means nothing is not shown."""
    parents = [{"id": bytes([one] * 16), "name": f"p{one}", "status": "RUNNING"} for one in range(30)]
    children = [{"id": b"c" * 16, "on_failure": "run"}, {"id": b"d" * 16, "name": "d", "status": "CANCELED"}]
    row = job(
        status="PENDING", waiting_on=30, next_run_at=time.time(), completed_at=None, schedule_id=None,
        parents=parents, parents_total=40, children=children, children_total=2,
    )  # fmt: skip
    at = browser(Told(status={}, jobs_get={"job": row}, jobs_why={}, jobs_list={"jobs": [row]}))
    path = f"/jobs/{uuid.UUID(bytes=row['id'])}"
    got = await at.ask("GET", path)
    assert "waits for 30 other jobs to end" in got.text
    assert "<dt>due</dt>" not in got.text
    assert len(re.findall(r">p\d+</a>", got.text)) == 20
    assert "and 20 other jobs" in got.text
    assert re.search(rf"{uuid.UUID(bytes=b'c' * 16)}</span> deleted <span class=\"dim\">even if this fails", got.text)
    assert f'href="/jobs/{uuid.UUID(bytes=b"d" * 16)}">d</a>' in got.text
    assert f'href="{path}/graph"' in got.text
    assert "waits for 30 other jobs to end" in (await at.ask("GET", "/jobs")).text


async def test_a_job_that_an_earlier_one_of_its_schedule_holds_back() -> None:
    row = job(status="PENDING", next_run_at=253402128000.0, completed_at=None)
    at = browser(Told(status={}, jobs_get={"job": row}, jobs_why={}, jobs_list={"jobs": [row]}))
    for path in ("/jobs", f"/jobs/{uuid.UUID(bytes=row['id'])}"):
        got = await at.ask("GET", path)
        assert "held back behind an earlier job of its schedule" in got.text
        assert "9999" not in got.text


async def test_the_graph_of_a_job() -> None:
    jobs = [{"id": bytes([one]) * 16, "name": "n", "status": "PENDING"} for one in range(100)]
    graph = {"jobs": jobs, "edges": [[0, one] for one in range(1, 100)], "is_all": False}
    got = await browser(Told(status={}, jobs_graph=graph)).ask("GET", f"/jobs/{JOB}/graph")
    said = " ".join(re.sub("<.*?>", " ", got.text).split())
    assert "100 jobs and 99 dependencies: there are more." in said
    assert "too many to draw" in said

    def gone(_body: object) -> Mapping[str, object]:
        raise NotFoundError("gone")

    assert (await browser(Told(status={}, jobs_graph=gone)).ask("GET", f"/jobs/{JOB}/graph")).status == 404


@pytest.mark.parametrize("verb", ["cancel", "retry"])
async def test_a_job_with_its_dependents(verb: str) -> None:
    """A button of the page says so; of a job that has completed the question keeps it."""
    asked: list[Mapping[str, Any]] = []

    def change(body: Mapping[str, Any]) -> dict[str, object]:
        asked.append(body)
        return {"done": [JOB.bytes], "refused": []}

    for status in ("DEAD_LETTERED", "COMPLETED"):
        found = {"jobs": [job(id=JOB.bytes, status=status)]}
        at = browser(Told(status={}, jobs_find=found, jobs_cancel=change, jobs_retry=change))
        got = await at.ask("POST", f"/jobs/{JOB}/{verb}", {"with_dependents": "1"})
        if verb == "retry" and status == "COMPLETED":
            question = await at.ask("GET", got.headers["location"])
            assert 'name="with_dependents" value="1"' in question.text
            await at.ask("POST", "/bulk/start", {"verb": verb, "id": str(JOB), "with_dependents": "1"})
    assert asked == [{"ids": [JOB.bytes], "with_dependents": True}] * 2
    asked.clear()
    at = browser(Told(status={}, jobs_cancel=change, jobs_retry=change))
    await at.ask("POST", f"/jobs/{JOB}/{verb}" if verb == "cancel" else "/bulk/start", {"verb": verb, "id": str(JOB)})
    assert asked == [{"ids": [JOB.bytes]}]
