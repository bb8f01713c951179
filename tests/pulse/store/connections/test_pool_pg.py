"""Connections never hang, are never reused in doubt, and their errors say why, without a secret."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Final
from urllib.parse import urlsplit

import asyncpg
import pytest
from anyio.lowlevel import checkpoint

from pulse.errors import ConfigError, StatementError, UnavailableError
from pulse.store.connections import pool as pool_module
from pulse.store.connections.pool import BEAT_SETTINGS, HOT_SETTINGS, SERVER_SETTINGS, Pool, Target, connect
from pulse.store.failures import STUBBORN
from pulse.store.store import Store
from tests.support.confidential import confidential
from tests.support.servers.postgres import PASSWORD_ROLES
from tests.support.servers.proxy import Proxy, socket_of, through
from tests.support.store.helpers import Patch, Sql
from tests.support.waiting import until_async

pytestmark = [pytest.mark.timed, pytest.mark.heavy]

SHORT_S: Final = 0.3
PROMPT_S: Final = 2.0  # the longest that anything with a deadline of SHORT_S may take
SECRET: Final = confidential("s3cret-of-a-role", "password of a role")
SHOWN: Final = {"500": "500ms", "2000": "2s", "5000": "5s", "10000": "10s"}  # how PostgreSQL shows milliseconds
PID: Final = "SELECT pg_backend_pid()"
FOREVER: Final = "SELECT pg_sleep(60)"


@pytest.fixture
async def proxy(dsn: str) -> AsyncIterator[Proxy]:
    async with Proxy(socket_of(dsn)).running() as running:
        yield running


@pytest.fixture
async def pool(dsn: str) -> AsyncIterator[Pool]:
    made = Pool(Target(dsn, "pool"), size=1)
    yield made
    made.close()
    await checkpoint()


@pytest.fixture
async def distant(dsn: str, proxy: Proxy) -> AsyncIterator[Pool]:
    made = Pool(Target(through(dsn, proxy.port), "distant"), size=1)
    yield made
    made.close()
    await checkpoint()


@pytest.fixture
async def role(dsn: str, connection: Sql) -> AsyncIterator[str]:
    """A role of this database's tests alone, which logs in by SECRET."""
    name = f"{PASSWORD_ROLES}_of_{urlsplit(dsn).path[1:]}"
    with contextlib.suppress(asyncpg.DuplicateObjectError, asyncpg.UniqueViolationError):
        await connection.execute(f"CREATE ROLE {PASSWORD_ROLES}")
    await connection.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{SECRET}' IN ROLE {PASSWORD_ROLES}")
    yield name
    await connection.execute(f"DROP ROLE {name}")


async def pid_of(pool: Pool) -> int:
    async with pool.connection() as connection:
        pid: int = await connection.fetchval(PID)
    return pid


async def ask(pool: Pool, sql: str, used: list[Sql]) -> None:
    async with pool.connection(SHORT_S) as connection:
        used.append(connection)
        await connection.fetch(sql)


async def is_running(connection: Sql, sql: str) -> bool:
    running = (
        "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE state = 'active' AND query = $1 AND pid <> pg_backend_pid())"
    )
    return bool(await connection.fetchval(running, sql))


async def test_a_silent_server(distant: Pool, proxy: Proxy) -> None:
    """A statement without an answer ends at its deadline; the connection is terminated, and a new one works."""
    before = await pid_of(distant)
    proxy.cut()
    used: list[Sql] = []
    began_s = time.monotonic()
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1.* is away: no answer within 0\.3 s"):
        await ask(distant, PID, used)
    assert time.monotonic() - began_s < PROMPT_S
    assert used[0].is_closed()
    proxy.restore()
    assert await pid_of(distant) != before
    assert proxy.connections == 2


async def test_a_silent_server_at_connect(distant: Pool, proxy: Proxy) -> None:
    """A handshake without an answer ends at the deadline of the use that needed it."""
    proxy.cut()
    began_s = time.monotonic()
    with pytest.raises(UnavailableError, match="no answer within"):
        async with distant.connection(SHORT_S):
            pytest.fail("there is no connection to give")
    assert time.monotonic() - began_s < PROMPT_S
    proxy.restore()
    assert await pid_of(distant)


async def test_a_refusal_is_not_asked_for_twice(dsn: str, proxy: Proxy) -> None:
    """Nor are settings left for SQL to set: only a pooler is asked again, without those that it refuses."""
    wrong = Target(through(dsn, proxy.port), "wrong")
    with pytest.raises(UnavailableError, match="unrecognized configuration parameter"):
        await connect(wrong, {"nonsense": "on"}, owns_session=True)
    assert proxy.connections == 1


async def test_connecting_has_a_deadline_of_its_own(dsn: str, proxy: Proxy, monkeypatch: Patch) -> None:
    monkeypatch.setattr(pool_module, "CONNECT_DEADLINE_S", SHORT_S)
    proxy.cut()
    began_s = time.monotonic()
    with pytest.raises(UnavailableError, match="does not answer"):
        await connect(Target(through(dsn, proxy.port), "late"), {})
    assert time.monotonic() - began_s < PROMPT_S


async def test_a_statement_that_takes_too_long(pool: Pool) -> None:
    """A busy server is left at the deadline; its connection is not used again."""
    before = await pid_of(pool)
    used: list[Sql] = []
    began_s = time.monotonic()
    with pytest.raises(UnavailableError, match="no answer within"):
        await ask(pool, FOREVER, used)
    assert time.monotonic() - began_s < PROMPT_S
    assert used[0].is_closed()
    assert await pid_of(pool) != before


@pytest.mark.parametrize("is_terminated", [False, True])
async def test_a_statement_that_is_cut_short(pool: Pool, connection: Sql, *, is_terminated: bool) -> None:
    """A cancelled task leaves a terminated connection; a backend that ended counts as away."""
    before = await pid_of(pool)

    async def use() -> None:
        async with pool.connection() as used:
            await used.fetch(FOREVER)

    task = asyncio.create_task(use())
    await until_async(lambda: is_running(connection, FOREVER), "the statement to run")
    if is_terminated:
        await connection.execute("SELECT pg_terminate_backend($1)", before)
    else:
        task.cancel()
    with pytest.raises(UnavailableError, match="is away") if is_terminated else pytest.raises(asyncio.CancelledError):
        await task
    assert await pid_of(pool) != before


async def test_cancellation_while_waiting(pool: Pool) -> None:
    async with pool.connection():
        waiting = asyncio.create_task(pid_of(pool))
        await checkpoint()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert await pid_of(pool)


async def test_a_backend_that_was_terminated_while_idle(pool: Pool, connection: Sql) -> None:
    """Once the loop has seen that an idle connection was closed, the next use gets a new one and works."""
    async with pool.connection() as idle:
        before = idle.get_server_pid()
    await connection.execute("SELECT pg_terminate_backend($1)", before)

    async def is_seen() -> bool:
        await checkpoint()
        return idle.is_closed()

    await until_async(is_seen, "the loop to see the end of the connection")
    assert await pid_of(pool) != before


async def test_a_statement_at_fault(pool: Pool) -> None:
    """After a refused value the connection is kept; after other refusals the session's state is unknown."""
    before = await pid_of(pool)
    with pytest.raises(StatementError, match="division by zero") as caught:
        async with pool.connection() as connection:
            await connection.fetch("SELECT 1 / 0")
    assert (caught.value.is_value, caught.value.sqlstate) == (True, "22012")
    assert await pid_of(pool) == before
    with pytest.raises(StatementError, match=r"refuses SELECT FROM nowhere: .* \(SQLSTATE 42P01\)") as caught:
        async with pool.connection() as connection:
            await connection.fetch("SELECT FROM nowhere")
    assert not caught.value.is_value
    assert await pid_of(pool) != before


async def test_an_answer_that_cannot_be_read(pool: Pool) -> None:
    """The error names the statement, which is done; its connection, in an unknown state, is not used again."""
    before = await pid_of(pool)
    sql = "SELECT '200000-01-01'::timestamptz"  # no datetime; text that is none is the same, and needs a bad disk
    told = r"answers to SELECT '2.* cannot be read: .* \(SQLSTATE 22021\)"
    for ask_for in ("fetch", "fetchrow", "fetchval"):
        with pytest.raises(StatementError, match=told) as caught:
            async with pool.connection() as connection:
                await getattr(connection, ask_for)(sql)
        error = caught.value
        assert (error.may_be_done, error.is_value, error.sqlstate, error.statement) == (True, False, "22021", sql)
        assert error.code == UnavailableError.code
    assert await pid_of(pool) != before
    assert [(one.sqlstate, one.times) for one in pool.failing.now()] == [("22021", 3)]
    for refused in ("SELECT 1 / 0", "SELECT nothing"):
        with pytest.raises(StatementError) as caught:
            async with pool.connection() as connection:
                await connection.fetch(refused)
        assert not caught.value.may_be_done


async def test_away_of_one_statement_alone(pool: Pool) -> None:
    """A server that accepts connections, and always says "away" of the same statement, refuses that statement."""
    sql = "DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '57P03'; END $$"
    told: list[type[Exception]] = []
    for _ in range(STUBBORN):
        try:
            async with pool.connection() as connection:
                await connection.fetch(sql)
        except UnavailableError as error:
            told.append(type(error))
    assert told == [UnavailableError] * (STUBBORN - 1) + [StatementError]
    assert [(x.statement[:8], x.sqlstate, x.times) for x in pool.failing.now()] == [("DO $$ BE", "57P03", STUBBORN)]


async def test_a_connection_that_breaks_each_time(pool: Pool) -> None:
    """The driver's own errors never prove a refusal: the statement may have been carried out."""

    async def broken() -> None:
        async with pool.connection() as connection:
            connection._transport.abort()  # type: ignore[attr-defined]
            await connection.fetch("SELECT 1")

    for _ in range(2 * STUBBORN):
        with pytest.raises(UnavailableError) as error:
            await broken()
        assert type(error.value) is UnavailableError
    assert pool.failing.now() == []


async def test_what_succeeds_is_refused_no_more(pool: Pool) -> None:
    for _ in range(2):
        with pytest.raises(StatementError, match="refuses SELECT nothing"):
            async with pool.connection() as connection:
                await connection.fetch("SELECT nothing FROM pulse.jobs")
    assert [(one.sqlstate, one.times) for one in pool.failing.now()] == [("42703", 2)]
    async with pool.connection() as connection:
        await connection.fetch("SELECT 1")
    assert len(pool.failing.now()) == 1
    async with pool.connection() as connection:
        await connection.execute("ALTER TABLE pulse.jobs ADD nothing int")
        try:
            await connection.fetch("SELECT nothing FROM pulse.jobs")
        finally:
            await connection.execute("ALTER TABLE pulse.jobs DROP nothing")
    assert pool.failing.now() == []


async def test_an_error_of_our_own(pool: Pool) -> None:
    """After any other error the connection is in doubt, and goes."""
    before = await pid_of(pool)
    with pytest.raises(KeyError):
        async with pool.connection():
            raise KeyError
    assert await pid_of(pool) != before


async def test_an_open_transaction(pool: Pool) -> None:
    for statement in ("BEGIN", "BEGIN; SELECT 1 / 0"):
        before = await pid_of(pool)
        with pytest.raises(StatementError) if "/" in statement else contextlib.nullcontext():
            async with pool.connection() as connection:
                await connection.execute(statement)
        assert await pid_of(pool) != before


async def test_more_users_than_connections(dsn: str) -> None:
    """Users beyond the size wait for their turn, and never more connections are open at once."""
    pool = Pool(Target(dsn, "crowd"), size=2)
    both_inside = asyncio.Barrier(2)
    inside = most = 0

    async def use() -> int:
        nonlocal inside, most
        async with pool.connection() as connection:
            inside += 1
            most = max(most, inside)
            pid: int = await connection.fetchval(PID)
            await both_inside.wait()
            inside -= 1
        return pid

    pids = await asyncio.gather(*(use() for _ in range(12)))
    pool.close()
    assert most == 2
    assert len(set(pids)) == 2


async def test_waiting_for_a_connection_has_a_bound(pool: Pool) -> None:
    """A wait longer than the deadline is an error; the place is not lost."""
    async with pool.connection():
        began_s = time.monotonic()
        with pytest.raises(UnavailableError, match="no turn within"):
            async with pool.connection(SHORT_S):
                pytest.fail("there is no connection to give")
        assert time.monotonic() - began_s < PROMPT_S
    assert await pid_of(pool)


async def test_close(pool: Pool, connection: Sql) -> None:
    async with pool.connection() as used:
        pid = used.get_server_pid()
        pool.close()
        assert not used.is_closed()
    assert used.is_closed()
    gone = "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)"
    await until_async(lambda: connection.fetchval(gone, pid), "the backend to end")


@pytest.mark.parametrize(("change", "error", "reason"), [
    ({"password": f"{SECRET}-not"}, ConfigError, "password authentication failed"),
    ({"user": "nobody", "password": SECRET}, ConfigError, 'role "nobody" does not exist'),
    ({"database": "nowhere", "password": SECRET}, ConfigError, 'database "nowhere" does not exist'),
    ({"host": "/nowhere", "password": SECRET}, UnavailableError, "No such file"),
], ids=["password", "user", "database", "socket"])  # fmt: skip
async def test_who_is_let_in(dsn: str, role: str, change: dict[str, str], error: type[Exception], reason: str) -> None:
    """A fault of the settings is a ConfigError, an absent server is not; neither shows a password."""
    parts = {
        "user": role, "host": str(socket_of(dsn).parent), "database": dsn.partition("?")[0].rpartition("/")[2],
        **change,
    }  # fmt: skip
    bad = f"postgresql:///{parts['database']}?host={parts['host']}&user={parts['user']}&password={parts['password']}"
    with pytest.raises(error, match=reason) as caught:
        await connect(Target(bad, "test"), {})
    assert SECRET not in str(caught.value)
    assert "password=***" in str(caught.value)


@pytest.mark.parametrize(("bad", "error"), [
    (f"postgresql://u:{SECRET}@127.0.0.1:1/d", UnavailableError),
    (f"postgresql://u:{SECRET}@nowhere.invalid/d", UnavailableError),
    (f"postgresql://u:{SECRET}@127.0.0.1:notaport/d", ConfigError),
    (f"postgresql://u:{SECRET}@127.0.0.1/d?sslmode=never", ConfigError),
], ids=["nobody listens", "unknown host", "no port", "no sslmode"])  # fmt: skip
async def test_where_nobody_is(bad: str, error: type[Exception]) -> None:
    """A missing server is away; an invalid DSN is a wrong setting; neither shows a password."""
    with pytest.raises(error) as caught:
        await connect(Target(bad, "test"), {})
    assert SECRET not in str(caught.value)
    assert "u:***@" in str(caught.value)


async def test_a_full_server(dsn: str, connection: Sql, role: str) -> None:
    """A server without room for one more session is away for now; existing sessions go on."""
    await connection.execute(f"ALTER ROLE {role} CONNECTION LIMIT 1")
    mine = f"{dsn}&user={role}&password={SECRET}".replace("&user=pulse", "")
    one, two = Pool(Target(mine, "one"), size=1), Pool(Target(mine, "two"), size=1)
    before = await pid_of(one)
    with pytest.raises(UnavailableError, match="too many connections"):
        await two.open()
    assert await pid_of(one) == before
    one.close()
    two.close()


async def test_a_server_that_became_read_only(pool: Pool) -> None:
    """A write that a standby refuses means away, and its connection is not used again."""
    async with pool.connection() as connection:
        await connection.execute("SET default_transaction_read_only = on")
    before = await pid_of(pool)
    with pytest.raises(UnavailableError, match="read-only"):
        async with pool.connection() as connection:
            await connection.execute("CREATE TABLE x ()")
    assert await pid_of(pool) != before


async def test_settings_of_each_kind(store: Store) -> None:
    """Each kind of connection has the limits and planner settings that belong to it, in UTC."""
    for pool, own in ((store.hot, HOT_SETTINGS), (store.beats, BEAT_SETTINGS), (store.query, {})):
        async with pool.connection() as connection:
            found = {x: await connection.fetchval("SELECT current_setting($1)", x) for x in (*SERVER_SETTINGS, *own)}
        assert found == {name: SHOWN.get(value, value) for name, value in {**SERVER_SETTINGS, **own}.items()}
        assert {found["timezone"], found["statement_timeout"]} == {"UTC", "5s"}
    async with store.hot.connection() as connection:
        assert await connection.fetchval("SELECT current_setting('synchronous_commit')") == "on"


async def test_a_lock_that_nobody_gives_back(store: Store, connection: Sql) -> None:
    async with connection.transaction():
        await connection.execute("LOCK TABLE pulse.jobs")
        with pytest.raises(UnavailableError, match="lock timeout"):
            async with store.query.connection() as waiting:
                await waiting.execute("SET lock_timeout = 50; SELECT FROM pulse.jobs")


async def test_a_name_for_each_connection(dsn: str) -> None:
    opened = await connect(Target(dsn, "what it is for"), {})
    assert (
        await opened.fetchval("SELECT application_name FROM pg_stat_activity WHERE pid = pg_backend_pid()")
        == "what it is for"
    )
    await opened.close(timeout=5)


@pytest.mark.parametrize("is_proved", [False, True])
async def test_settings_that_were_right_once(dsn: str, connection: Sql, role: str, is_proved: bool) -> None:
    """A refusal after an earlier success means away; without one, a wrong setting."""
    pool = Pool(Target(f"{dsn}&user={role}&password={SECRET}".replace("&user=pulse", ""), "rotated"), size=1)
    if is_proved:
        with pytest.raises(KeyError):
            async with pool.connection():
                raise KeyError  # so that the next use needs a new connection
    await connection.execute(f"ALTER ROLE {role} PASSWORD '{SECRET}-new'")
    with pytest.raises(UnavailableError if is_proved else ConfigError, match="password authentication") as caught:
        await pool.open()
    assert SECRET not in str(caught.value)
    await connection.execute(f"ALTER ROLE {role} PASSWORD '{SECRET}'")
    await pool.open()
    pool.close()


async def test_statements_stay_prepared(dsn: str) -> None:
    """For any idle time: planning anew takes longer than most statements."""
    opened = await connect(Target(dsn, "test"), {})
    try:
        assert opened._stmt_cache._max_lifetime == 0  # type: ignore[attr-defined]
    finally:
        await opened.close()
