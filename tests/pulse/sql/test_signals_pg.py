"""pulse.sql: signals are sent on the caller's connection, in his transaction, whatever driver he has."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

import pulse
from pulse.encryption import FernetCodec
from pulse.errors import (
    BadRequestError,
    ConflictError,
    ForbiddenError,
    NotFoundError,
    PulseError,
    SchemaError,
    TransactionError,
)
from pulse.security.codec import unseal
from tests.pulse.sql.connections import KINDS, peer, role_without_rights
from tests.support.servers.postgres import Postgres
from tests.support.store.helpers import Sql, forge

pytestmark = [pytest.mark.postgres, pytest.mark.anyio]

each_driver = pytest.mark.parametrize("kind", list(KINDS))


@pytest.fixture(scope="module")
def server(newest_server: Postgres) -> Postgres:
    """The drivers are tested; the statement is tested on every PostgreSQL."""
    return newest_server


async def new_job(connection: Sql, status: str = "PENDING", **columns: Any) -> uuid.UUID:
    return uuid.UUID(bytes=await forge(connection, status, **columns))


async def sent(connection: Sql) -> list[tuple[Any, ...]]:
    rows = await connection.fetch("SELECT name, payload::text AS payload FROM pulse.signals ORDER BY id")
    return [(row["name"], None if row["payload"] is None else json.loads(row["payload"])) for row in rows]


@each_driver
async def test_a_signal_arrives_if_the_transaction_commits(kind: str, dsn: str, connection: Sql) -> None:
    job = await new_job(connection)
    async with peer(kind, dsn) as mine:

        async def undo() -> None:
            async with mine.begin():
                await mine.signal(job, "undone")
                raise LookupError

        with pytest.raises(LookupError):
            await undo()
        async with mine.begin():
            assert await mine.signal(job, "paid", {"ä": [1.5, None]}, key="k") is True
            assert await mine.signal(str(job), "paid", {"ä": 2}, key="k") is False
            assert await mine.signal(job, "paid") is True
            assert await sent(connection) == []
    assert await sent(connection) == [("paid", {"ä": [1.5, None]}), ("paid", None)]
    assert await connection.fetchval("SELECT signals FROM pulse.jobs") == 2


@each_driver
async def test_what_the_database_refuses(kind: str, dsn: str, connection: Sql) -> None:
    """One clear error each; nothing is stored."""
    job, ended, full = [await new_job(connection, status) for status in ("PENDING", "COMPLETED", "RUNNING")]
    await connection.execute(f"UPDATE pulse.jobs SET signals = 10000 WHERE id = '{full}'")
    missing = uuid.UUID(int=7)
    refused: list[tuple[uuid.UUID, object, type[PulseError], str]] = [
        (missing, None, NotFoundError, f'^signal "s": there is no job {missing}$'),
        (ended, None, ConflictError, f'^signal "s": job {ended} is COMPLETED; one that has not ended, or is a dead'),
        (full, None, BadRequestError, f'^signal "s": job {full} has had 10000 signals; at most 10000 are allowed$'),
        (job, "x" * 70_000, BadRequestError, '^payload of signal "s" has 70002 bytes; at most 65536 are allowed$'),
    ]
    async with peer(kind, dsn) as mine:

        async def send(whose: uuid.UUID, payload: object, broken: str = "") -> None:
            async with mine.begin():
                if broken:
                    with pytest.raises(Exception, match="division by zero"):
                        await mine.execute(broken)
                await mine.signal(whose, "s", payload)

        for whose, payload, error, message in refused:
            with pytest.raises(error, match=message):
                await send(whose, payload)
        with pytest.raises(TransactionError, match="has failed before: roll it back, then signal"):
            await send(job, None, "SELECT 1 / 0")
    assert await sent(connection) == []


@pytest.mark.parametrize(("words", "options", "said"), [
    ((7, "s"), {}, "7"),
    ((uuid.UUID(int=1), 7), {}, "signal: name must be text, not int"),
    ((uuid.UUID(int=1), ""), {}, "signal: name is ''; allowed is text of 1 to 200 characters"),
    ((uuid.UUID(int=1), "a\0"), {}, "signal: a value cannot be sent: it contains a NUL character"),
    ((uuid.UUID(int=1), "s", {1}), {}, "signal 's': the payload is not JSON"),
    ((uuid.UUID(int=1), "s"), {"key": "k" * 201}, "signal: key is 'kkk"),
    ((uuid.UUID(int=1), "s"), {"key": {1}}, "signal: key is of type set, which cannot be sent"),
], ids=str)  # fmt: skip
async def test_a_wrong_value_is_not_sent(words: Any, options: Any, said: str) -> None:
    """In the words of the server; so the transaction goes on."""
    with pytest.raises(BadRequestError) as caught:
        pulse.sql.signal("no connection is needed", *words, **options)
    assert said in str(caught.value)


@pytest.mark.parametrize("kind", ["psycopg", "asyncpg"])
async def test_payloads_are_encrypted(kind: str, dsn: str, connection: Sql) -> None:
    codec = FernetCodec(FernetCodec.new_key())
    job = await new_job(connection)
    async with peer(kind, dsn) as mine:
        await mine.signal(job, "paid", {"card": "4711"}, codec=codec)
    ((_, payload),) = await sent(connection)
    assert payload.keys() == {"$pulse", "data"}
    assert unseal(codec, "paid", payload) == {"card": "4711"}


async def test_an_old_schema(own_database: str) -> None:
    async with peer("psycopg", own_database) as mine:
        await mine.execute("DROP FUNCTION pulse.signal")
        with pytest.raises(SchemaError, match="its schema is old; run `pulse migrate`"):
            await mine.signal(uuid.uuid4(), "s")


async def test_a_role_without_rights(dsn: str, connection: Sql) -> None:
    async with role_without_rights(connection, "stranger_of_signals"), peer("psycopg", dsn) as mine:
        await mine.execute("SET ROLE stranger_of_signals")
        with pytest.raises(ForbiddenError, match=r"permission denied .* roles that signal are members of pulse_submit"):
            await mine.signal(uuid.uuid4(), "s")


async def test_each_form_has_its_connections(dsn: str) -> None:
    blocks = r"^signal_async: .* blocks: use `pulse\.sql\.signal\(…\)`$"
    is_async = r"^signal: .* is async: use `await pulse\.sql\.signal_async\(…\)`$"
    async with peer("psycopg", dsn) as blocking, peer("psycopg async", dsn) as awaited:
        with pytest.raises(BadRequestError, match=blocks):
            await pulse.sql.signal_async(blocking.connection, uuid.uuid4(), "s")
        with pytest.raises(BadRequestError, match=is_async):
            pulse.sql.signal(awaited.connection, uuid.uuid4(), "s")
