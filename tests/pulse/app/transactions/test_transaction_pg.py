"""ctx.transaction: what a block writes is committed with the job's completion, or not at all, by every driver."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeAlias

import anyio
import asyncpg
import pytest
import sqlalchemy.orm
from sqlalchemy.ext import asyncio as sqlalchemy_asyncio

import pulse
from pulse.app.transactions.fence import AttemptFence
from pulse.app.transactions.transaction import Transaction
from pulse.app.workflows.parents import ParentPage
from pulse.app.workflows.receipt import Receipt
from pulse.app.workflows.steps import NextSignal
from pulse.encryption import FernetCodec
from pulse.errors import (
    BadRequestError,
    ForbiddenError,
    SchemaError,
    StaleAttemptError,
    TooLargeError,
    TransactionError,
)
from pulse.store.rows import Renewal
from pulse.store.store import Store
from tests.pulse.sql.connections import KINDS, Peer, peer, role_without_rights, waiting
from tests.support.servers.postgres import Postgres
from tests.support.store.helpers import OTHER, WORKER, Sql, changes, forge, read
from tests.support.waiting import until_async

pytestmark = [pytest.mark.postgres, pytest.mark.anyio]

Deed: TypeAlias = Callable[[], Awaitable[object]]
each_driver = pytest.mark.parametrize("kind", list(KINDS))


class Effect(sqlalchemy.orm.declarative_base()):  # type: ignore[misc]
    __tablename__ = "effects"
    what: Any = sqlalchemy.Column(sqlalchemy.Text, primary_key=True)


@pytest.fixture(scope="module")
def server(newest_server: Postgres) -> Postgres:
    """The drivers are tested; the functions are tested on every PostgreSQL."""
    return newest_server


class Held:
    """The link of an attempt that a worker runs."""

    lease_lost = cancelled = False
    worker = WORKER

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.newest: str | None = None
        self.fence = AttemptFence(WORKER, lambda: self.newest, self.phases.append)

    def progress(self, text: str) -> None:
        self.newest = text

    def checkpoint(self, text: str) -> None: ...

    def save(self, text: str) -> Receipt:
        raise NotImplementedError

    def parents(self, after: str | None) -> ParentPage:
        raise NotImplementedError

    def next_signal(self, name: str, had: Sequence[int]) -> NextSignal:
        raise NotImplementedError


class Scene(NamedTuple):
    mine: Peer
    seen: Sql
    job: bytes
    link: Held
    ctx: pulse.Context

    @asynccontextmanager
    async def block(self, **options: Any) -> AsyncIterator[None]:
        block: Any = self.ctx.transaction(self.mine.connection, **options)
        async with block if self.mine.is_async else waiting(block):
            yield

    async def write(self) -> None:
        await self.mine.execute("INSERT INTO public.effects VALUES ('done')")

    async def effects(self) -> int:
        count: int = await self.seen.fetchval("SELECT count(*) FROM public.effects")
        return count

    async def status(self) -> str:
        return str((await read(self.seen, self.job))["status"])

    async def do(self, *deeds: Deed, **options: Any) -> None:
        async with self.block(**options):
            for deed in deeds:
                await deed()

    async def fails(self, error: type[BaseException], message: str, *deeds: Deed, **options: Any) -> None:
        """The block fails in this way, and has no effect; without *deeds* its body is not run."""
        before = await read(self.seen, self.job)
        with pytest.raises(error, match=message):
            await self.do(*(deeds or [never]), **options)
        assert (await self.effects(), await read(self.seen, self.job), self.link.fence.phase) == (0, before, "")


async def never() -> None:
    pytest.fail("the body was run")


async def leave() -> None:
    raise LookupError("left")


def context(job: bytes, link: Held, attempt: int = 1, codec: pulse.Codec | None = None) -> pulse.Context:
    return pulse.Context(job_id=uuid.UUID(bytes=job), attempt=attempt, name="n", topic="t", link=link, codec=codec)


@asynccontextmanager
async def scene(kind: str, dsn: str, seen: Sql, **columns: Any) -> AsyncIterator[Scene]:
    await seen.execute("CREATE TABLE public.effects (what text UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    try:
        async with peer(kind, dsn) as mine:
            job, link = await forge(seen, "RUNNING", **columns), Held()
            yield Scene(mine, seen, job, link, context(job, link))
    finally:
        await seen.execute("DROP TABLE public.effects")


@each_driver
async def test_effects_and_completion_are_one(kind: str, dsn: str, connection: Sql) -> None:
    """As a worker's report completes a job; neighbours stay as they are."""
    async with scene(kind, dsn, connection, progress='"old"') as here:
        neighbour = await forge(connection, "RUNNING")
        before = await read(connection, here.job), await read(connection, neighbour)
        async with here.block():
            await here.write()
            here.ctx.progress(0.5)
            here.ctx.complete({"rows": 1})
            assert (await here.effects(), await here.status()) == (0, "RUNNING")
        after = await read(connection, here.job)
        assert (await here.effects(), here.link.phases) == (1, ["commits", "completed"])
        assert after.pop("completed_at") is not None
        assert changes(before[0] | {"completed_at": None}, after | {"completed_at": None}) == {
            "status": "COMPLETED", "locked_by": None, "lease_until": None, "ran_by": WORKER,
            "result": '{"rows": 1}', "progress": '{"value": 0.5}',
        }  # fmt: skip
        assert await read(connection, neighbour) == before[1]
        with pytest.raises(TransactionError, match="has completed the job already"):
            async with here.block():
                pass


@each_driver
async def test_a_stale_attempt_writes_nothing(kind: str, dsn: str, connection: Sql) -> None:
    """It became stale inside the block, or before."""
    async with scene(kind, dsn, connection) as here:
        stale = r"attempt 1 no longer holds job .*: it was ended, and another attempt may run already"
        for change in ("attempts = 2", f"locked_by = '{OTHER}'"):

            async def lose() -> None:
                await connection.execute(f"UPDATE pulse.jobs SET {change}")  # noqa: B023 - it is awaited here

            for completes in (True, False):
                await connection.execute("UPDATE pulse.jobs SET attempts = 1, locked_by = $1", WORKER)
                with pytest.raises(StaleAttemptError, match=stale):
                    await here.do(here.write, lose, complete=completes)
                await here.fails(StaleAttemptError, stale, complete=completes)
        assert here.link.phases == []


@each_driver
async def test_a_block_that_does_not_complete_the_job(kind: str, dsn: str, connection: Sql) -> None:
    """Each is fenced; there may be several, one after the other, and the job stays as it is."""
    async with scene(kind, dsn, connection) as here:
        before = await read(connection, here.job)
        async with here.block(complete=False):
            with pytest.raises(TransactionError, match="does not complete the job"):
                here.ctx.complete(1)
        async with here.block(complete=False):
            await here.write()
        assert (await here.effects(), await read(connection, here.job), here.link.phases) == (1, before, [])


@each_driver
async def test_what_fails_leaves_nothing(kind: str, dsn: str, connection: Sql) -> None:
    """One clear error each, and the connection is good for the next block."""
    async with scene(kind, dsn, connection) as here:

        async def spoil() -> None:
            with pytest.raises(Exception, match="division by zero"):
                await here.mine.execute("SELECT 1 / 0")

        await here.fails(LookupError, "left", here.write, leave)
        await here.fails(TransactionError, "a statement of the block has failed", here.write, spoil)
        await here.fails(TransactionError, "is open already", here.write, here.do)
        assert here.link.phases == []
        await connection.execute("INSERT INTO public.effects VALUES ('done')")
        with pytest.raises(Exception, match="duplicate key"):
            await here.do(here.write)  # the database notices at COMMIT
        assert (await here.status(), here.link.phases) == ("RUNNING", ["commits", ""])
        await connection.execute("TRUNCATE public.effects")
        await here.do(here.write)
        assert (await here.effects(), await here.status()) == (1, "COMPLETED")


@each_driver
async def test_an_open_transaction_is_refused(kind: str, dsn: str, connection: Sql) -> None:
    """A savepoint inside it would be committed later, without a look at the fence; the transaction itself goes on."""
    async with scene(kind, dsn, connection) as here:
        async with here.mine.begin():
            await here.write()
            await here.fails(TransactionError, r"in a transaction already, and ctx\.transaction opens its own")
        assert (await here.effects(), await here.status()) == (1, "RUNNING")


@each_driver
async def test_a_transaction_that_was_ended_inside_the_block(kind: str, dsn: str, connection: Sql) -> None:
    async with scene(kind, dsn, connection) as here:

        async def end() -> None:
            if "SQLAlchemy" in kind or "Session" in kind:
                done = here.mine.connection.commit()
                await done if here.mine.is_async else None
            else:
                await here.mine.execute("COMMIT")

        await here.fails(TransactionError, "the transaction was ended inside its block", end)
        assert here.link.phases == []


@each_driver
async def test_a_database_without_pulse(kind: str, empty_dsn: str) -> None:
    async with peer(kind, empty_dsn) as mine:
        block: Any = context(bytes(16), Held()).transaction(mine.connection)
        with pytest.raises(SchemaError, match=r"schema .pulse. does not exist: this database is not pulse's"):
            async with block if mine.is_async else waiting(block):
                await never()


async def test_an_old_schema(own_database: str) -> None:
    async with peer("psycopg", own_database) as mine:
        await mine.execute("DROP FUNCTION pulse.check_attempt")
        block = context(bytes(16), Held()).transaction(mine.connection)
        with pytest.raises(SchemaError, match="its schema is old; run `pulse migrate`"), block:
            await never()


async def test_a_read_only_connection(dsn: str, connection: Sql) -> None:
    async with scene("psycopg", dsn, connection) as here:
        await here.mine.execute("SET default_transaction_read_only = on")
        await here.fails(TransactionError, "the transaction is read-only")


async def test_a_role_without_rights(dsn: str, connection: Sql) -> None:
    async with role_without_rights(connection, "stranger_of_blocks"), scene("psycopg", dsn, connection) as here:
        await here.mine.execute("SET ROLE stranger_of_blocks")
        await here.fails(ForbiddenError, r"permission denied .* members of pulse_submit")


@pytest.mark.parametrize("kind", ["psycopg", "psycopg async", "asyncpg", "SQLAlchemy", "SQLAlchemy async"])
async def test_a_closed_connection(kind: str, dsn: str, connection: Sql) -> None:
    async with scene(kind, dsn, connection) as here:
        closing = here.mine.close()
        if here.mine.is_async:
            await closing
        await here.fails(TransactionError, "the connection is closed")


async def test_what_is_no_connection(dsn: str) -> None:
    def block(connection: object) -> Transaction:
        return context(bytes(16), Held()).transaction(connection)

    with pytest.raises(BadRequestError, match="a str is no connection; a psycopg connection, a SQLAlchemy"), block(dsn):
        await never()
    with pytest.raises(BadRequestError, match="a str is no connection; a connection of asyncpg"):
        async with block(dsn):
            await never()
    for kind in KINDS:
        async with peer(kind, dsn) as mine:
            if mine.is_async:
                message = r"is async: use `async with ctx\.transaction"
                with pytest.raises(BadRequestError, match=message), block(mine.connection):
                    await never()
            else:
                with pytest.raises(BadRequestError, match=r"blocks: use `with ctx\.transaction"):
                    async with block(mine.connection):
                        await never()


@pytest.mark.parametrize("kind", ["SQLAlchemy", "Session", "SQLAlchemy async", "AsyncSession"])
async def test_autocommit_of_sqlalchemy_is_refused(kind: str, dsn: str, connection: Sql) -> None:
    """Its transactions would commit each statement by itself."""
    async with scene(kind, dsn, connection) as here:
        if "Session" in kind:
            here.mine.connection.bind = here.mine.connection.bind.execution_options(isolation_level="AUTOCOMMIT")
        else:
            done = here.mine.connection.execution_options(isolation_level="AUTOCOMMIT")
            await done if here.mine.is_async else None
        await here.fails(TransactionError, "AUTOCOMMIT: it has no transactions")


async def test_django_that_wants_to_roll_back(dsn: str, connection: Sql) -> None:
    """It refuses each statement then, without asking the database."""
    async with scene("Django", dsn, connection) as here:

        async def spoil() -> None:
            here.mine.connection.set_rollback(True)

        await here.fails(TransactionError, "a statement of the block has failed", here.write, spoil)
        await here.do(here.write)
        assert (await here.effects(), await here.status()) == (1, "COMPLETED")


async def test_a_session_inside_of_a_transaction_of_its_connection(dsn: str, connection: Sql) -> None:
    async with scene("SQLAlchemy", dsn, connection) as here, here.mine.begin():
        with sqlalchemy.orm.Session(here.mine.connection) as session:
            inside = here._replace(mine=here.mine._replace(connection=session))
            await inside.fails(TransactionError, "in a transaction already")


@pytest.mark.parametrize("kind", ["Session", "AsyncSession"])
async def test_a_scoped_session(kind: str, dsn: str, connection: Sql) -> None:
    """Objects that wait to be stored are stored with it."""
    async with scene(kind, dsn, connection) as here:
        made: Any = lambda: here.mine.connection  # noqa: E731 - what a sessionmaker is here
        scoped: Any = (
            sqlalchemy_asyncio.async_scoped_session(made, asyncio.current_task)
            if here.mine.is_async
            else sqlalchemy.orm.scoped_session(made)
        )
        block: Any = here.ctx.transaction(scoped)
        async with block if here.mine.is_async else waiting(block):
            scoped.add(Effect(what="done"))
        assert (await here.effects(), await here.status()) == (1, "COMPLETED")


async def test_a_cancelled_handler_rolls_back(dsn: str, connection: Sql) -> None:
    """Also if each wait is cancelled, as in a scope of anyio."""
    async with scene("asyncpg", dsn, connection) as here:
        with anyio.CancelScope() as scope:
            async with here.block():
                await here.write()
                scope.cancel()
                await anyio.sleep_forever()
        assert not here.mine.connection.is_in_transaction()
        async with here.block():
            await here.write()
        assert (await here.effects(), await here.status()) == (1, "COMPLETED")


async def test_results(dsn: str, connection: Sql) -> None:
    """They are converted as those that a handler returns, encrypted, and limited."""
    codec = FernetCodec(FernetCodec.new_key())
    async with scene("asyncpg", dsn, connection) as here:
        ctx = here.ctx
        with pytest.raises(TransactionError, match="outside of one, return the result"):
            ctx.complete(1)

        async def complete() -> None:
            with pytest.raises(ValueError, match="result is not JSON"):
                ctx.complete({1: object()})
            with pytest.raises(TooLargeError, match="at most 4194304"):
                ctx.complete("x" * 5_000_000)
            await ctx.complete(datetime(2030, 1, 1, tzinfo=UTC))
            with pytest.raises(TransactionError, match="was called before"):
                ctx.complete(1)

        async def complete_with_much() -> None:
            here.link.fence.put(f"[{'1e131070,' * 39}1e131070]")  # short as text, and long in the database

        async def complete_in_secret() -> None:
            context(here.job, here.link, codec=codec).complete({"card": "4711"})

        await here.fails(LookupError, "left", complete, leave)
        much = "result is too large: 5242920 bytes; at most 4194304 are stored"
        await here.fails(TooLargeError, much, here.write, complete_with_much)
        await here.do(complete_in_secret)
        result = str((await read(connection, here.job))["result"])
        assert ("4711" in result, codec.id in result) == (False, True)


async def test_the_result_of_a_block_that_failed_is_forgotten(dsn: str, connection: Sql) -> None:
    async with scene("asyncpg", dsn, connection) as here:

        async def complete() -> None:
            here.ctx.complete("too early")

        await here.fails(LookupError, "left", complete, leave)
        await here.do()
        assert (await read(connection, here.job))["result"] is None


async def test_a_heartbeat_inside_the_block(dsn: str, connection: Sql, store: Store) -> None:
    """The row is not locked while the body runs, and is while COMMIT is under way."""
    async with scene("asyncpg", dsn, connection) as here:
        beat = Renewal(here.job, 1, WORKER, None)
        async with here.block():
            await here.write()
            assert await store.extend([beat], 60.0) == {(here.job, 1)}
        assert (await here.effects(), await here.status()) == (1, "COMPLETED")


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
async def test_a_transaction_with_one_snapshot(dsn: str, connection: Sql, store: Store, level: str) -> None:
    """It locks the row at its beginning: heartbeats wait for it, instead of making its end impossible."""
    beats: list[object] = []
    async with scene("asyncpg", dsn, connection) as here, anyio.create_task_group() as tasks:
        await here.mine.execute(f"SET default_transaction_isolation = '{level.lower()}'")

        async def beat() -> None:
            beats.append(await store.extend([Renewal(here.job, 1, WORKER, None)], 60.0))

        async def waits() -> bool:
            return bool(await connection.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"))

        async with here.block():
            await here.write()
            tasks.start_soon(beat)
            await until_async(waits, "the heartbeat waits")
        assert (await here.effects(), await here.status()) == (1, "COMPLETED")
    assert beats == [set()]


@pytest.mark.process
@pytest.mark.parametrize(("kind", "options"), [
    ("psycopg", {"prepare_threshold": None}), ("asyncpg", {"statement_cache_size": 0}),
])  # fmt: skip
async def test_through_a_pooler_of_transactions(pooled: tuple[str, str], kind: str, options: dict[str, Any]) -> None:
    seen = await asyncpg.connect(pooled[0])
    async with peer(kind, pooled[1], **options) as mine:
        for _ in range(3):
            job = await forge(seen, "RUNNING")
            block: Any = context(job, Held()).transaction(mine.connection)
            async with block if mine.is_async else waiting(block):
                await mine.execute("SELECT 1")
            assert (await read(seen, job))["status"] == "COMPLETED"
    await seen.close()
