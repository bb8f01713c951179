"""pulse.sql: jobs are submitted on the caller's connection, in his transaction, whatever driver he has."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import asyncpg
import django.db  # type: ignore[import-untyped]
import psycopg
import psycopg.rows
import pytest
import sqlalchemy
import sqlalchemy.orm
from sqlalchemy.ext import asyncio as sqlalchemy_asyncio

import pulse
from pulse.app.transactions.drivers import USUAL, errors_told_apart, state_of
from pulse.encryption import FernetCodec
from pulse.errors import (
    BadRequestError,
    ConflictError,
    ForbiddenError,
    NotFoundError,
    SchemaError,
    TransactionError,
)
from tests.pulse.sql.connections import KINDS, Peer, peer, role_without_rights
from tests.support.servers.postgres import Postgres
from tests.support.store.helpers import Sql

pytestmark = [pytest.mark.postgres, pytest.mark.anyio]

each_driver = pytest.mark.parametrize("kind", list(KINDS))
app = pulse.App()
SOON = datetime(2040, 1, 1, tzinfo=UTC)
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@app.handler("resize")
async def resize(ctx: pulse.Context, path: str, width: int = 64) -> None: ...


async def many() -> None: ...


@pytest.fixture(scope="module")
def server(newest_server: Postgres) -> Postgres:
    """The drivers are tested; the statement is tested on every PostgreSQL."""
    return newest_server


async def names(connection: Sql) -> list[str]:
    return [row["name"] for row in await connection.fetch("SELECT name FROM pulse.jobs ORDER BY name")]


async def together(mine: Peer, *deeds: Callable[[], Awaitable[object]]) -> None:
    async with mine.begin():
        for deed in deeds:
            await deed()


async def fail() -> None:
    raise LookupError


@each_driver
async def test_a_job_exists_if_the_transaction_commits(kind: str, dsn: str, connection: Sql) -> None:
    async with peer(kind, dsn) as mine:

        async def back_to_a_savepoint() -> None:
            with pytest.raises(LookupError):
                await together(mine, lambda: mine.submit("undone"), fail)
            assert await names(connection) == []

        await together(mine, lambda: mine.submit("kept"), back_to_a_savepoint, lambda: mine.submit("kept, too"))
        assert await names(connection) == ["kept", "kept, too"]
        with pytest.raises(LookupError):
            await together(mine, lambda: mine.submit("rolled back"), fail)
    assert await names(connection) == ["kept", "kept, too"]


@each_driver
async def test_jobs_that_wait_for_others(kind: str, dsn: str, connection: Sql) -> None:
    """A batch in the transaction; a job to wait for that is not there is one clear error."""
    batch = pulse.Batch([{"name": "first"}])
    batch.add("second", after=batch.ids)
    async with peer(kind, dsn) as mine:
        await together(mine, lambda: mine.submit_many(batch))
        await together(mine, lambda: mine.submit("third", after=[str(batch.ids[1])], on_failure="run"))
        for wrong, said, error in (
            ({"after": [uuid.UUID(int=7)]}, "and there is no such job", NotFoundError),
            ({"after": ["x"]}, "not a UUID: 'x'", BadRequestError),
            ({"after": batch.ids, "on_failure": "skip"}, "on_failure is 'skip'", BadRequestError),
            ({"on_failure": "run"}, "on_failure is given; it is allowed with after only", BadRequestError),
        ):
            with pytest.raises(error, match=said):
                await together(mine, partial(mine.submit, "wrong", **wrong))
    rows = await connection.fetch("SELECT name, waiting_on, is_parent FROM pulse.jobs ORDER BY name")
    assert [tuple(row) for row in rows] == [("first", None, True), ("second", 1, True), ("third", 1, None)]


@each_driver
async def test_all_options(kind: str, dsn: str, connection: Sql) -> None:
    """As with a client: delays count from the database's clock, args are ready JSON, ids are returned in order."""
    own = uuid.uuid4()
    async with peer(kind, dsn) as mine, mine.begin():
        one = await mine.submit(
            pulse.call(resize, 'a"b%s:x.png', width=3), topic="images", priority=5, run_at=SOON, max_attempts=2,
            timeout_s=1.5, expires_at=SOON + timedelta(days=1), id=own, traceparent=TRACE, group_key="g",
        )  # fmt: skip
        many = await mine.submit_many(
            [pulse.call(resize, "c.png"), {"name": resize, "args": {"path": "ä"}, "delay_s": 60, "expires_in_s": 90}]
        )
    rows = {row["id"]: row for row in await connection.fetch("SELECT * FROM pulse.jobs")}
    assert (one, [*rows]) == (own, [own, *many])
    expected = {
        "name": "resize", "args": '{"path": "a\\"b%s:x.png", "width": 3}', "topic": "images", "priority": 5,
        "next_run_at": SOON, "max_attempts": 2, "timeout_s": 1.5, "expires_at": SOON + timedelta(days=1),
        "traceparent": TRACE, "group_key": "g",
    }  # fmt: skip
    assert {key: rows[own][key] for key in expected} == expected
    later = rows[many[1]]
    assert later["args"] == '{"path": "ä"}'
    waits_s = (later["next_run_at"] - later["submitted_at"]).total_seconds()
    assert waits_s == pytest.approx(60, abs=1)
    assert (later["expires_at"] - later["submitted_at"]).total_seconds() == pytest.approx(90, abs=1)


@each_driver
async def test_unique_jobs(kind: str, dsn: str, connection: Sql) -> None:
    """The answer says which id it is, and whether it is new, whatever rows the connection makes."""
    async with peer(kind, dsn) as mine, mine.begin():
        first = await mine.submit(resize, {"path": "a"}, unique="k")
        again = await mine.submit(resize, {"path": "b"}, unique="k", unique_until="end", on_conflict="replace")
        many = await mine.submit_many([{"name": "x"}, {"name": "resize", "unique": "k"}, {"name": "y", "unique": "j"}])
    rows = await connection.fetch("SELECT id FROM pulse.jobs ORDER BY name")
    assert [row["id"] for row in rows] == [first, many[0], many[2]]
    assert [(one == first, one.is_new) for one in (first, again, *many)] == [
        (True, True), (True, False), (False, True), (True, False), (False, True),
    ]  # fmt: skip
    async with peer(kind, dsn) as mine:
        with pytest.raises(ConflictError, match=f"unique key 'k' belongs to job {first}"):
            await mine.submit("resize", unique="k", on_conflict="error")


async def test_rows_of_a_connection_that_are_no_tuples(dsn: str) -> None:
    async with peer("psycopg", dsn, row_factory=psycopg.rows.dict_row) as mine:
        first = await mine.submit("n", unique="k")
        assert await mine.submit("n", unique="k") == first


async def test_a_function_is_enough(dsn: str, connection: Sql) -> None:
    """Without any worker: with its options it waits where workers will look for it."""
    app.handler("many", topic="images", max_attempts=2, timeout_s=9)(many)
    async with peer("psycopg", dsn) as mine:
        await mine.submit(pulse.call(many))
        await mine.submit(many)
    rows = await connection.fetch("SELECT topic, max_attempts, timeout_s FROM pulse.jobs")
    assert [tuple(row) for row in rows] == [("images", 2, 9.0)] * 2


async def test_with_autocommit_it_is_there_at_once(dsn: str, connection: Sql) -> None:
    async with peer("psycopg", dsn) as mine:
        await mine.submit("now")
        assert await names(connection) == ["now"]


async def test_args_are_encrypted(dsn: str, connection: Sql) -> None:
    codec = FernetCodec(FernetCodec.new_key())
    async with peer("psycopg", dsn) as mine:
        await mine.submit("secret", {"card": "4711"}, codec=codec)
    (row,) = await connection.fetch("SELECT args::text AS args FROM pulse.jobs")
    assert "4711" not in row["args"]


async def test_values_of_derived_classes(dsn: str, connection: Sql) -> None:
    """Such as Django's SafeString and NumPy's float64."""
    text, number, seconds = (type("Derived", (kind,), {}) for kind in (str, int, float))
    async with peer("psycopg", dsn) as mine:
        await mine.submit(text("n"), topic=text("t"), priority=number(3), timeout_s=seconds(1.5))
    (row,) = await connection.fetch("SELECT name, topic, priority, timeout_s FROM pulse.jobs")
    assert tuple(row) == ("n", "t", 3, 1.5)


@pytest.mark.parametrize(("options", "said"), [
    ({"priority": 101}, "jobs[0].priority is 101; allowed is a whole number from -100 to 100"),
    ({"priority": True}, "jobs[0].priority is True; allowed is a whole number from -100 to 100"),
    ({"priority": object()}, "jobs[0].priority is of type object, which cannot be sent"),
    ({"topic": "a\0"}, "a value cannot be sent: it contains a NUL character"),
    ({"timeout_s": float("nan")}, "jobs[0].timeout_s is nan; allowed is a number above 0, up to 1,000,000,000"),
    ({"expires_at": 1e12}, "jobs[0].expires_at is 1000000000000.0; allowed is a number from "),
    ({"run_at": -1e11}, "a value cannot be sent: date value out of range"),
    ({"group_key": "*"}, "jobs[0].group_key is '*'; allowed is text of 1 to 200 characters, but not * alone"),
    ({"group_key": ""}, "jobs[0].group_key is ''; allowed is text of 1 to 200 characters, but not * alone"),
    ({"group_key": "x" * 201}, "jobs[0].group_key is 'xxx"),
    ({"traceparent": "x"}, "jobs[0].traceparent is 'x'; allowed is a traceparent of W3C Trace Context, 00-"),
])  # fmt: skip
async def test_a_wrong_value_is_not_sent(options: Any, said: str) -> None:
    """In the words of the server; so the transaction goes on."""
    with pytest.raises(BadRequestError) as caught:
        pulse.sql.submit("no connection is needed", "n", **options)
    assert str(caught.value).startswith(f"submit: {said}")


@each_driver
async def test_what_the_database_refuses(kind: str, dsn: str, connection: Sql) -> None:
    """One clear error each; nothing is stored."""
    taken = uuid.uuid4()
    await connection.execute(f"SELECT pulse.submit('other', id => '{taken}')")
    async with peer(kind, dsn) as mine:
        for more, kind_of, message in (
            ('"priority": 101', BadRequestError, "submit: new row .* violates check constraint"),
            ('"delay_s": -1', BadRequestError, "^delay_s is -1; seconds from 0 to 1e9 are allowed$"),
            (f'"id": "{taken}"', ConflictError, f"^job {taken} exists already with another name, topic or args$"),
        ):
            with pytest.raises(kind_of, match=message):
                await together(mine, lambda: mine.run(f'[{{"name": "n", {more}}}]'))  # noqa: B023 - it is awaited here

        async def break_it() -> None:
            with pytest.raises(Exception, match="division by zero"):
                await mine.execute("SELECT 1 / 0")

        with pytest.raises(TransactionError, match="has failed before: roll it back, then submit"):
            await together(mine, break_it, lambda: mine.submit("n"))
        with pytest.raises(TransactionError, match="read-only"):
            await together(mine, lambda: mine.execute("SET TRANSACTION READ ONLY"), lambda: mine.submit("n"))
        await together(mine, lambda: mine.submit("goes on"))
    assert await names(connection) == ["goes on", "other"]


@each_driver
async def test_a_database_without_pulse(kind: str, empty_dsn: str) -> None:
    async with peer(kind, empty_dsn) as mine:
        with pytest.raises(SchemaError, match=r"schema .pulse. does not exist: this database is not pulse's"):
            await together(mine, lambda: mine.submit("n"))


async def test_an_old_schema(own_database: str) -> None:
    async with peer("psycopg", own_database) as mine:
        await mine.execute("DROP FUNCTION pulse.submit_many")
        with pytest.raises(SchemaError, match="its schema is old; run `pulse migrate`"):
            await mine.submit("n")


async def test_a_role_without_rights(dsn: str, connection: Sql) -> None:
    async with role_without_rights(connection, "stranger_of_sql"), peer("psycopg", dsn) as mine:
        await mine.execute("SET ROLE stranger_of_sql")
        with pytest.raises(ForbiddenError, match=r"permission denied .* members of pulse_submit"):
            await mine.submit("n")


@pytest.mark.parametrize("kind", ["psycopg", "psycopg async", "asyncpg", "SQLAlchemy", "SQLAlchemy async"])
async def test_a_closed_connection(kind: str, dsn: str) -> None:
    """Sessions and Django's connections open another one."""
    async with peer(kind, dsn) as mine:
        closing = mine.close()
        if mine.is_async:
            await closing
        with pytest.raises(TransactionError, match="the connection is closed"):
            await mine.submit("n")


async def test_a_connection_that_was_given_back(dsn: str) -> None:
    async with asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool:
        async with pool.acquire() as lent:
            await pulse.sql.submit_async(lent, "n")
        with pytest.raises(TransactionError, match="the connection is closed"):
            await pulse.sql.submit_async(lent, "n")


@pytest.mark.parametrize(("kind", "spoil", "message"), [
    ("SQLAlchemy", lambda mine: mine.invalidate(), "the transaction has failed before: roll it back, then submit"),
    ("Session", lambda mine: mine.rollback(), "Can't operate on closed transaction"),
    ("Django", lambda mine: mine.set_rollback(True), "the transaction has failed before: roll it back, then submit"),
    ("Django", lambda mine: mine.close(), "the connection is closed"),
])  # fmt: skip
async def test_what_the_driver_refuses(
    kind: str, spoil: Callable[[Any], None], message: str, dsn: str, connection: Sql
) -> None:
    """Without a word of the database: a transaction that is spoiled, or over."""
    async with peer(kind, dsn) as mine:

        async def spoil_it() -> None:
            spoil(mine.connection)

        with pytest.raises(TransactionError, match=message):
            await together(mine, spoil_it, lambda: mine.submit("n"))
        await mine.submit("goes on")
        if "Django" not in kind:
            mine.connection.commit()
    assert await names(connection) == ["goes on"]


async def test_another_database() -> None:
    with sqlalchemy.create_engine("sqlite://").connect() as there, sqlalchemy.orm.Session(there) as session:
        for one in (there, session):
            with pytest.raises(SchemaError, match="the connection is one to sqlite: jobs are in PostgreSQL"):
                pulse.sql.submit(one, "n")


async def test_what_makes_connections_is_none(dsn: str) -> None:
    """A job would be submitted beside the caller's transaction."""
    engine = sqlalchemy.create_engine("postgresql+psycopg://")
    makers: list[Any] = [engine, sqlalchemy.orm.sessionmaker(engine), engine.pool]
    with psycopg.connect(dsn) as opened, opened.cursor() as cursor:
        for one in (*makers, cursor, django.db.connections):
            with pytest.raises(BadRequestError, match="is no connection; a psycopg connection, a SQLAlchemy"):
                pulse.sql.submit(one, "n")
    async with asyncpg.create_pool(dsn, min_size=0) as pool:
        async_engine = sqlalchemy_asyncio.create_async_engine("postgresql+asyncpg://")
        for one in (pool, async_engine, sqlalchemy_asyncio.async_sessionmaker(async_engine)):
            with pytest.raises(BadRequestError, match="is no connection; a connection of asyncpg"):
                await pulse.sql.submit_async(one, "n")


async def test_what_is_no_connection(dsn: str) -> None:
    wrong: Any = "postgresql://localhost"
    with pytest.raises(BadRequestError, match="a str is no connection; a psycopg connection, a SQLAlchemy"):
        pulse.sql.submit(wrong, "n")
    with pytest.raises(BadRequestError, match="a str is no connection; a connection of asyncpg"):
        await pulse.sql.submit_async(wrong, "n")
    for kind in KINDS:
        async with peer(kind, dsn) as mine:
            if mine.is_async:
                with pytest.raises(BadRequestError, match=r"is async: use `await pulse\.sql\.submit_async"):
                    pulse.sql.submit(mine.connection, "n")
            else:
                with pytest.raises(BadRequestError, match=r"blocks: use `pulse\.sql\.submit"):
                    await pulse.sql.submit_async(mine.connection, "n")


@pytest.mark.process
@pytest.mark.parametrize(("kind", "options"), [
    ("psycopg", {"prepare_threshold": None}), ("psycopg async", {"prepare_threshold": None}),
    ("asyncpg", {"statement_cache_size": 0}),
])  # fmt: skip
async def test_through_a_pooler_of_transactions(pooled: tuple[str, str], kind: str, options: dict[str, Any]) -> None:
    """More submits than a driver prepares statements after, each in a transaction of its own."""
    async with peer(kind, pooled[1], **options) as mine:
        for number in range(8):
            async with mine.begin():
                await mine.submit(f"{number}")
    seen = await asyncpg.connect(pooled[0])
    assert await seen.fetchval("SELECT count(*) FROM pulse.jobs") == 8
    await seen.close()


class Psycopg2Error(Exception):
    """Its connections are those of SQLAlchemy's and Django's older installations."""

    def __init__(self, said: str, pgcode: str | None) -> None:
        super().__init__(said)
        self.pgcode = pgcode


class Wrapping(Exception):
    """As SQLAlchemy has it."""

    def __init__(self, orig: Exception) -> None:
        super().__init__(f"({type(orig).__name__}) {orig}")
        self.orig = orig


PG8000 = Exception({"S": "ERROR", "C": "3F000", "M": 'schema "pulse" does not exist'})


@pytest.mark.parametrize(("error", "found"), [
    (Psycopg2Error("no schema\nCONTEXT: x", "3F000"), ("3F000", "no schema")),
    (Wrapping(Psycopg2Error("no schema", "3F000")), ("3F000", "no schema")),
    (PG8000, ("3F000", 'schema "pulse" does not exist')),
    (Wrapping(PG8000), ("3F000", 'schema "pulse" does not exist')),
    (Psycopg2Error("the network is away", None), ("", "the network is away")),
    (Exception({"code": 5}), ("", "{'code': 5}")),
    (Exception(), ("", "")),
])  # fmt: skip
async def test_each_driver_has_its_place_for_the_sqlstate(error: Exception, found: tuple[str, str]) -> None:
    assert state_of(error) == found


async def test_what_it_means_is_raised() -> None:
    with pytest.raises(SchemaError, match="this database is not pulse's") as caught, errors_told_apart(None, USUAL):
        raise Wrapping(PG8000)
    cause: Any = caught.value.__cause__
    assert cause.orig is PG8000
