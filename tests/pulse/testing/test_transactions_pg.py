"""``ctx.transaction`` in the testing kit: the job is in memory, the effects are on the connection of the test."""

from __future__ import annotations

import contextlib
from typing import Any, Final

import psycopg
import pytest

import pulse
from pulse.testing import Inline, RecordingContext, run_submitted, run_submitted_async, submitted, submitted_async
from tests.pulse.sql.connections import KINDS, Peer, peer
from tests.support.servers.postgres import Postgres
from tests.support.store.helpers import Sql

pytestmark = [pytest.mark.postgres, pytest.mark.anyio]

app: Final = pulse.App()


class Mine:
    """Has what the handlers work on."""

    def __init__(self, connection: Any, inline: Inline | None = None) -> None:
        self.connection = connection
        self.inline = inline


@app.handler("sell", max_attempts=2)
def sell(ctx: pulse.Context, how: str, mine: Mine = pulse.provided()) -> str:
    with ctx.transaction(mine.connection):
        pulse.sql.submit(mine.connection, "bill", {"how": how})
        ctx.complete(how)
        if how == "discard":
            raise pulse.Discard("no")
        if how == "lost" and mine.inline is not None and ctx.attempt == 1:
            mine.inline.lose_lease(ctx.job_id)
    return "not stored"


@app.handler("sell-async")
async def sell_async(ctx: pulse.Context, how: str, mine: Mine = pulse.provided()) -> None:
    async with ctx.transaction(mine.connection):
        await pulse.sql.submit_async(mine.connection, "bill", {"how": how})
        ctx.complete(how)
        if how == "discard":
            raise pulse.Discard("no")


@pytest.fixture(scope="module")
def server(newest_server: Postgres) -> Postgres:
    """The drivers are tested; the statements say the same to every PostgreSQL."""
    return newest_server


async def _run(mine: Peer) -> list[tuple[str, object]]:
    values = {Mine: Mine(mine.connection)}
    if mine.is_async:
        ran = await run_submitted_async(mine.connection, app, values=values)
    else:
        ran = run_submitted(mine.connection, app, values=values)
    return [(job.status, job.result) for job in ran]


async def _bills(mine: Peer) -> list[object]:
    if mine.is_async:
        return [job.args for job in await submitted_async(mine.connection, "bill")]
    return [job.args for job in submitted(mine.connection, "bill")]


@pytest.mark.parametrize("kind", list(KINDS))
async def test_it_is_a_savepoint_in_the_transaction_of_the_test(kind: str, dsn: str, connection: Sql) -> None:
    async with peer(kind, dsn) as mine:
        with contextlib.suppress(LookupError):
            async with mine.begin():
                for how in ("discard", "well"):
                    await mine.submit(sell_async if mine.is_async else sell, {"how": how})
                assert await _run(mine) == [("DEAD_LETTERED", None), ("COMPLETED", "well")]
                assert await _bills(mine) == [{"how": "well"}]
                raise LookupError
    assert await connection.fetchval("SELECT count(*) FROM pulse.jobs") == 0


@pytest.mark.parametrize("kind", list(KINDS))
async def test_outside_of_one_it_is_a_transaction(kind: str, dsn: str, connection: Sql) -> None:
    async with peer(kind, dsn) as mine:
        inline = Inline(app, values={Mine: Mine(mine.connection)})
        for how in ("discard", "well"):
            if mine.is_async:
                await inline.arun(sell_async, how)
            else:
                inline.run(sell, how)
        assert await connection.fetchval("SELECT args ->> 'how' FROM pulse.jobs") == "well"
    assert [(job.status, job.result) for job in inline.submitted()] == [("DEAD_LETTERED", None), ("COMPLETED", "well")]


async def test_an_attempt_that_has_lost_its_job_commits_nothing(dsn: str, connection: Sql) -> None:
    inline = Inline(app)
    with psycopg.connect(dsn, autocommit=True) as own:
        inline.values[Mine] = Mine(own, inline)
        job = inline.run(sell, "lost")
        assert (job.status, job.attempts, job.result) == ("COMPLETED", 2, "lost")
        assert await connection.fetchval("SELECT count(*) FROM pulse.jobs") == 1


async def test_a_context_that_is_made_by_hand_holds_its_job(dsn: str, connection: Sql) -> None:
    ctx = RecordingContext()
    with psycopg.connect(dsn, autocommit=True) as own:
        sell(ctx, "well", Mine(own))
        ctx = RecordingContext()
        ctx.link.lease_lost = True
        with pytest.raises(pulse.StaleAttemptError, match=r"^the attempt no longer holds its job$"):
            sell(ctx, "lost", Mine(own))
    assert await connection.fetchval("SELECT args ->> 'how' FROM pulse.jobs") == "well"
