"""Jobs that a test submitted in its own transaction run there, and are gone with it."""

from __future__ import annotations

from typing import Any, Final

import psycopg
import pytest
from psycopg.rows import dict_row

import pulse
from pulse.errors import ForbiddenError, InlineError, SchemaError, TransactionError
from pulse.testing import run_submitted, run_submitted_async, submitted, submitted_async
from tests.pulse.sql.connections import KINDS, Peer, peer, role_without_rights
from tests.support.servers.postgres import Postgres
from tests.support.store.helpers import Sql

pytestmark = [pytest.mark.postgres, pytest.mark.anyio]

app: Final = pulse.App()
asked: Final[list[psycopg.Connection[Any]]] = []


@app.handler("double", backoff="fixed:3600")
def double(ctx: pulse.Context, number: int) -> int:
    if ctx.attempt == 1:
        raise ValueError("not yet")
    ctx.progress(1)
    return 2 * number


@app.on_dead_letter
def bury(job: pulse.FailedJob) -> str:
    return job.name


@app.handler("never")
def never() -> None:
    raise pulse.Discard("never")


@app.handler("chain")
def chain(left: int) -> None:
    if left:
        pulse.sql.submit(asked[-1], pulse.call(chain, left - 1))


@pytest.fixture(scope="module")
def server(newest_server: Postgres) -> Postgres:
    """The drivers are tested; the statements say the same to every PostgreSQL."""
    return newest_server


async def _run(mine: Peer) -> list[Any]:
    if mine.is_async:
        return list(await run_submitted_async(mine.connection, app))
    return list(run_submitted(mine.connection, app))


async def _submitted(mine: Peer, *words: Any, **args: Any) -> Any:
    if mine.is_async:
        return await submitted_async(mine.connection, *words, **args)
    return submitted(mine.connection, *words, **args)


@pytest.mark.parametrize("kind", list(KINDS))
async def test_jobs_run_in_the_transaction_that_submitted_them(kind: str, dsn: str, connection: Sql) -> None:
    async with peer(kind, dsn) as mine:

        async def inside() -> None:
            job_id = await mine.submit(pulse.call(double, 21))
            await mine.submit("bill", {"order": 7})
            await mine.submit(pulse.call(double, 1), delay_s=60)
            (job,) = await _run(mine)
            assert (job.id, job.status, job.result, job.delays_s) == (job_id, "COMPLETED", 42, (3600.0,))
            (row,) = await _submitted(mine, double, number=21)
            assert (row.status, row.attempts, row.result, row.progress) == ("COMPLETED", 2, 42, {"value": 1})
            assert row.ran_by == "inline"
            assert str(row.last_error).startswith("ValueError: not yet")
            assert await _run(mine) == []
            assert [one.status for one in await _submitted(mine)] == ["COMPLETED", "PENDING", "PENDING"]
            assert repr(await _submitted(mine, "mail")).startswith("<no job mail(), but double(number=21) COMPLETED")
            await mine.submit(never)
            assert [one.result for one in await _run(mine)] == [None, "never"]
            raise LookupError

        with pytest.raises(LookupError):
            async with mine.begin():
                await inside()
    assert await connection.fetchval("SELECT count(*) FROM pulse.jobs") == 0


@pytest.mark.rest
def test_the_first_is_the_most_urgent_and_what_they_submit_runs_too(dsn: str) -> None:
    factory: Any = dict_row  # as a suite may have it
    with psycopg.connect(dsn, row_factory=factory) as connection:
        asked.append(connection)
        pulse.sql.submit(connection, pulse.call(chain, 0))
        pulse.sql.submit(connection, pulse.call(chain, 2), priority=5)
        assert [dict(job.args)["left"] for job in run_submitted(connection, app)] == [2, 0, 1, 0]  # type: ignore[arg-type]
        pulse.sql.submit(connection, pulse.call(chain, 500))
        with pytest.raises(InlineError, match="jobs still submit jobs after 100 rounds"):
            run_submitted(connection, app)
        connection.rollback()
        assert repr(submitted(connection)) == "<no job(): nothing was submitted>"


async def _ask_a_failed_transaction(mine: Peer) -> None:
    async with mine.begin():
        with pytest.raises(Exception, match="division by zero"):
            await mine.execute("SELECT 1 / 0")
        await _submitted(mine)


@pytest.mark.parametrize("kind", list(KINDS))
async def test_what_cannot_be_asked(kind: str, dsn: str, empty_dsn: str) -> None:
    """One clear error each, as of ``pulse.sql``."""
    async with peer(kind, dsn) as mine:
        with pytest.raises(pulse.BadRequestError, match=r"^pulse\.testing: a .* (is async|blocks): use `"):
            submitted(mine.connection) if mine.is_async else await submitted_async(mine.connection)
        with pytest.raises(TransactionError, match="the transaction of the test has failed before: roll it back"):
            await _ask_a_failed_transaction(mine)
    async with peer(kind, empty_dsn) as mine:
        with pytest.raises(SchemaError, match="does not exist: this database is not pulse's"):
            await _run(mine)


async def test_roles_of_an_application_are_not_enough(dsn: str, connection: Sql) -> None:
    async with role_without_rights(connection, "stranger_of_tests"), peer("psycopg", dsn) as mine:
        await mine.execute("SET ROLE stranger_of_tests")
        with pytest.raises(ForbiddenError, match=r"permission denied .* as the owner of the schema may"):
            await _submitted(mine)


async def test_what_is_no_connection_is_refused() -> None:
    for one in ("dsn", None):
        with pytest.raises(
            pulse.BadRequestError, match=r"^pulse\.testing: a \w+ is no connection; a psycopg connection"
        ):
            submitted(one)
        with pytest.raises(pulse.BadRequestError, match=r"^pulse\.testing: a \w+ is no connection; a connection of"):
            await submitted_async(one)
