"""Jobs in memory wait for others as those in the database do: the same submits and ends, and the same errors."""

from __future__ import annotations

import uuid
from typing import Any, Final

import pytest

import pulse
from pulse.errors import PulseError
from pulse.store.statements import STATEMENTS
from pulse.testing import Inline
from tests.pulse.sql.connections import peer
from tests.support.store.helpers import Sql

pytestmark = pytest.mark.postgres

app: Final = pulse.App()
ID: Final = [uuid.UUID(int=number + 1) for number in range(12)]
NOWHERE: Final = uuid.UUID(int=99)
# What is submitted, or the place of a job that is canceled then.
STEPS: Final[list[list[dict[str, Any]] | int]] = [
    [{"id": ID[0]}, {"id": ID[1], "after": [ID[0]] * 2}, {"id": ID[2], "after": [ID[0], ID[1]], "on_failure": "run"}],
    [{"id": ID[1], "after": [ID[2]]}],  # it is there already: it stays as it is
    [{"id": ID[3]}, {"id": ID[4], "after": [NOWHERE]}],
    [{"id": ID[3]}, {"id": ID[4], "after": [ID[3]], "on_failure": "cancel"}, {"id": ID[5], "after": [ID[4]]}],
    [{"id": ID[6], "after": [ID[3]], "on_failure": "run"}, {"id": ID[7], "after": [ID[5], ID[6]], "on_failure": "run"}],
    3,
    [{"id": ID[8], "after": [ID[3]]}, {"id": ID[9], "after": [ID[3]], "on_failure": "run"}],
    [{"id": ID[10], "after": [ID[10]]}],
    6,
    1,
    0,  # one that waited for it was canceled before, and stays as it is
]  # fmt: skip


@app.handler("a")
def a() -> None: ...


def _said(error: PulseError) -> str:
    return f"{type(error).__name__}: {error.message}"


@pytest.mark.anyio
async def test_the_same_jobs_wait(dsn: str, connection: Sql) -> None:
    inline = Inline(app)
    async with peer("psycopg", dsn) as mine:
        for step in STEPS:
            if isinstance(step, int):
                inline.cancel(ID[step])
                await connection.execute(STATEMENTS["cancel_jobs"].sql, [ID[step]], None)
            else:
                jobs: list[Any] = [{"name": "a", **one} for one in step]
                said = list[object]()
                try:
                    said.append(inline.client.submit_many(jobs))
                except PulseError as error:
                    said.append(_said(error))
                try:
                    said.append(await mine.submit_many(jobs))
                except PulseError as error:
                    said.append(_said(error))
                assert said[0] == said[1], step
            rows = await connection.fetch("SELECT id, status::text, waiting_on, last_error FROM pulse.jobs ORDER BY id")
            kept = [inline.client.get(row["id"]) for row in rows]
            told = [(job.id, str(job.status), job.waiting_on, job.last_error) for job in kept]
            assert [tuple(row) for row in rows] == told, step
            assert len(rows) == len(inline.submitted())


def test_they_run_in_their_order() -> None:
    """A handler that fails for good cancels those that wait for it, and those that wait for these."""
    own = pulse.App()

    @own.handler("fails", max_attempts=1)
    def fails() -> None:
        raise ValueError("no")

    @own.handler("runs")
    def runs(ctx: pulse.Context) -> list[str]:
        return [str(parent.status) for parent in ctx.parents()]

    inline, batch = Inline(own), pulse.Batch()
    first, ran = batch.add("fails"), batch.add("runs")
    canceled = batch.add("runs", after=[first, ran])
    last = batch.add("runs", after=[canceled, ran], on_failure="run", delay_s=60)
    inline.client.submit_batch(batch)
    assert {job.id for job in inline.run_until_idle()} == {first, ran}
    assert inline.job(canceled).last_error == f"canceled: it waited for other jobs, and {first} is DEAD_LETTERED"
    assert inline.job(last).waiting_on == 0
    inline.advance(60)
    assert [(job.id, job.result) for job in inline.run_until_idle()] == [(last, ["COMPLETED", "CANCELED"])]
