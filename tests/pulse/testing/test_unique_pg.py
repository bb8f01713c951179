"""Unique keys in memory, as the database has them: the same submits find the same jobs, and fail in the same words."""

from __future__ import annotations

import re
import uuid
from typing import Any, Final

import pytest

import pulse
from pulse.errors import ConflictError
from pulse.protocol.answers import JobInfo
from pulse.testing import Inline
from pulse.testing.memory import MemoryJob
from tests.pulse.sql.connections import peer
from tests.support.store.helpers import STATUSES, Sql, forge

pytestmark = [pytest.mark.postgres, pytest.mark.anyio]

app: Final = pulse.App()
KEY: Final = {"unique": "k"}
STEPS: Final[list[list[dict[str, Any]]]] = [
    [{"name": "a", **KEY, "args": {"v": 1}, "group_key": "g"}],
    [{"name": "a", **KEY, "args": {"v": 2}}],
    [{"name": "b", **KEY}],
    [{"name": "b", **KEY, "on_conflict": "replace"}],
    [{"name": "a", **KEY, "on_conflict": "error"}],
    [{"name": "a", **KEY, "args": {"v": 3}, "on_conflict": "replace", "delay_s": 60, "group_key": "h"}],
    [{"name": "a", **KEY, "id": 0, "args": {"v": 1}}],
    [{"name": "a", "id": 0, "args": {"v": 1}}],
    [{"name": "a", **KEY, "id": 0, "topic": "t"}],
    [{"name": "a", **KEY, "args": {"v": 4}, "on_conflict": "replace"}, {"name": "a", **KEY, "on_conflict": "error"}],
    [{"name": "a"}, {"name": "a", "unique": "j"}, {"name": "a", "unique": "j"}],
    [{"name": "a", "unique": "s", "unique_until": "start"}, {"name": "b", "unique": "j", "on_conflict": "skip"}],
]


@app.handler("a")
def a(v: int = 0) -> None: ...


def _numbered(step: int, jobs: list[dict[str, Any]]) -> list[Any]:
    """Each with an id by its place, so that the answers are the same everywhere."""
    return [
        {**one, "id": uuid.UUID(int=(one["id"] or 100) if "id" in one else 100 * (step + 1) + place)}
        for place, one in enumerate(jobs)
    ]


def _said(error: ConflictError) -> str:
    return re.sub("a job with this id|job [0-9a-f-]{36} exists already", "it", error.message.replace(" exists,", ""))


async def test_the_same_submits(dsn: str, connection: Sql) -> None:
    inline = Inline(app)
    async with peer("psycopg", dsn) as mine:
        for step, jobs in enumerate(STEPS):
            told: list[object] = []
            for submit in (inline.client.submit_many, mine.submit_many):
                try:
                    found: Any = submit(_numbered(step, jobs))
                    ids = await found if hasattr(found, "__await__") else found
                    told.append([(one, one.is_new) for one in ids])
                except ConflictError as error:
                    told.append(_said(error))
            assert told[0] == told[1], jobs
    columns = "id, args, group_key, unique_key, unique_until, next_run_at > submitted_at + interval '30 s' AS is_later"
    rows = await connection.fetch(f"SELECT {columns} FROM pulse.jobs ORDER BY id")
    kept = [inline.client.get(row["id"]) for row in rows]
    assert len(rows) == len(inline.submitted())
    for row, job in zip(rows, kept, strict=True):
        assert job.next_run_at is not None
        assert job.submitted_at is not None
        is_later = (job.next_run_at - job.submitted_at).total_seconds() > 30
        text = str(row["args"]).replace(" ", "")
        assert (row["unique_key"], row["unique_until"], row["is_later"]) == (job.unique_key, job.unique_until, is_later)
        assert row["group_key"] == job.group_key
        assert text == str(job.args).replace(" ", "").replace("'", '"')


def test_a_job_that_waits_for_one_whose_key_is_taken() -> None:
    inline = Inline(app)
    holder, taken = inline.client.submit("a", unique="k"), uuid.uuid4()
    given, child = inline.client.submit_many(
        [{"name": "a", "unique": "k", "id": taken}, {"name": "a", "after": [taken]}]
    )
    assert (given, [one.id for one in inline.client.parents(child).jobs]) == (holder, [holder])


@pytest.mark.parametrize("until", ["start", "end", None])
@pytest.mark.parametrize(
    ("status", "attempts"), [(one, attempts) for one in STATUSES for attempts in (0, 1) if one != "RUNNING" or attempts]
)
async def test_who_has_a_key(connection: Sql, status: str, until: str | None, attempts: int) -> None:
    job = await forge(connection, status, unique_key="k", unique_until=until, attempts=attempts)
    found = await connection.fetchval("SELECT pulse.submit('n', unique_key => 'k')")
    info = JobInfo(job, status=status, attempts=attempts, unique_key="k", unique_until=until)
    assert MemoryJob(info).holds("k") is (found.bytes == job)
    assert not MemoryJob(info).holds("j")
    assert not MemoryJob(JobInfo(job, status=status, attempts=attempts)).holds(None)


async def test_a_job_that_runs_is_not_replaced() -> None:
    """It has its args already."""
    own, inline, found = pulse.App(), Inline(pulse.App()), list[Any]()

    @own.handler("a")
    def again(v: int = 0) -> int:
        found.append(inline.client.submit("a", {"v": 9}, unique="k", on_conflict="replace"))
        return v

    inline = Inline(own)
    job = inline.client.submit("a", {"v": 1}, unique="k")
    assert (inline.run_job(job).args, found) == ({"v": 1}, [job])
    assert inline.client.submit("a", unique="k") != job
