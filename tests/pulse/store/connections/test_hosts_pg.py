"""A DSN of several hosts: the first that will do is used, and none that is silent is waited for."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from functools import partial
from typing import Final
from urllib.parse import parse_qs, urlsplit

import pytest
from anyio.lowlevel import checkpoint

from pulse.errors import ConfigError, UnavailableError
from pulse.store.admin.checks import READING
from pulse.store.connections import hosts
from pulse.store.connections.hosts import first_of
from pulse.store.connections.pool import CONNECT_DEADLINE_S, Pool, Target, connect
from tests.support.servers.proxy import Proxy, socket_of, through
from tests.support.store.helpers import Sql
from tests.support.waiting import until_async

pytestmark = [pytest.mark.timed, pytest.mark.heavy]

NAME: Final = "several hosts"
ONE_SESSION: Final = f"""
    SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = '{NAME}' AND datname = current_database()"""
PROMPT_S: Final = 2.0
SHORT_S: Final = 0.3


@pytest.fixture
def silent() -> Iterator[int]:
    """A port where the kernel takes connections, and nobody answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def closed() -> int:
    """A port where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def several(dsn: str, *ports: int, user: str = "pulse") -> str:
    """The server of *dsn* behind those on *ports* of this machine."""
    place = {key: value[0] for key, value in parse_qs(urlsplit(dsn).query).items()}
    hosts = ",".join([*["127.0.0.1"] * len(ports), place["host"]])
    at = ",".join([*map(str, ports), place["port"]])
    return f"postgresql:///{urlsplit(dsn).path[1:]}?host={hosts}&port={at}&user={user}"


async def test_a_silent_host_is_not_waited_for(dsn: str, silent: int, closed: int) -> None:
    """The machine of the old primary is gone: a connection to it gets no answer."""
    began_s = time.monotonic()
    connection = await connect(Target(several(dsn, silent, closed, silent), NAME), {})
    assert time.monotonic() - began_s < PROMPT_S < CONNECT_DEADLINE_S
    assert await connection.fetchval("SELECT 1") == 1
    connection.terminate()
    await checkpoint()


async def test_silent_hosts_do_not_keep_each_other_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fails after a silence of its own; when all have, and their time is over, that is the end."""
    for name, seconds in (("SILENT_S", 0.01), ("AGAIN_S", 0.01), ("ASKED_S", 0.3)):
        monkeypatch.setattr(hosts, name, seconds)
    began_s = time.monotonic()

    async def silent(silence_s: float) -> int:
        await asyncio.sleep(silence_s)
        assert time.monotonic() - began_s < 2, "it goes on"
        raise UnavailableError(f"silent for {silence_s} s")

    silences_s = tuple(0.05 + 0.02 * number for number in range(8))
    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.wait_for(first_of([partial(silent, one) for one in silences_s], lambda _: None), 10)
    assert [str(error) for error in caught.value.exceptions] == [f"silent for {one} s" for one in silences_s]


async def test_who_has_refused_is_asked_again(silent: int) -> None:
    """A standby is promoted while the old primary is silent: that one need not have failed before."""
    asked = 0

    async def standby() -> int:
        nonlocal asked
        asked += 1
        if asked < 3:
            raise UnavailableError("it takes no writes")
        return asked

    async def gone() -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", silent)
        try:
            return len(await reader.read())
        finally:
            writer.close()

    began_s = time.monotonic()
    assert await first_of([gone, standby], lambda _: None) == 3
    assert time.monotonic() - began_s < PROMPT_S


async def test_what_is_no_failure_of_a_host_ends_all() -> None:
    class Stop(BaseException):
        pass

    async def stopped() -> int:
        raise Stop

    with pytest.raises(Stop):
        await first_of([stopped], lambda _: None)


async def test_what_comes_too_late_is_dropped() -> None:
    """Both hosts answer at the same moment."""
    asked, may_answer, dropped = list[int](), asyncio.Event(), list[int]()

    async def host(number: int) -> int:
        asked.append(number)
        await may_answer.wait()
        return number

    found = asyncio.create_task(first_of([partial(host, 1), partial(host, 2)], dropped.append))
    await until_async(lambda: len(asked) == 2, "both are asked")
    may_answer.set()
    await until_async(lambda: len(dropped) == 1, "the other is dropped")
    assert {await found, *dropped} == {1, 2}


async def test_of_two_that_will_do_one_is_kept(dsn: str, connection: Sql) -> None:
    place = parse_qs(urlsplit(dsn).query)
    twice = dsn.replace(f"host={place['host'][0]}", f"host={place['host'][0]},{place['host'][0]}")
    made = await connect(Target(twice, NAME), {})
    await until_async(lambda: connection.fetchval(ONE_SESSION), "one session")
    made.terminate()
    await checkpoint()


async def test_a_session_that_only_reads(dsn: str, closed: int) -> None:
    """`pulse check` makes its session read-only: that says nothing of the server."""
    connection = await connect(Target(several(dsn, closed), NAME), READING)
    assert await connection.fetchval("SHOW transaction_read_only") == "on"
    connection.terminate()
    await checkpoint()


async def test_all_are_away(dsn: str, closed: int) -> None:
    """Each is named, with its reason."""
    database = urlsplit(dsn).path[1:]
    with pytest.raises(UnavailableError) as caught:
        await connect(Target(f"postgresql://me:s3cret@127.0.0.1:{closed},localhost:{closed}/{database}", NAME), {})
    for host in (f"127.0.0.1:{closed}", f"localhost:{closed}"):
        assert f"the database postgresql://me:***@{host}/{database} does not answer: " in caught.value.message


async def test_a_host_that_refuses_these_settings(dsn: str, closed: int) -> None:
    """It is named where no other host will do."""
    with pytest.raises(ConfigError, match="nobody"):
        await connect(Target(several(dsn, closed, user="nobody"), NAME), {})


async def test_a_host_that_is_set_to_be_read_only(dsn: str, connection: Sql, closed: int) -> None:
    """An old primary that its operator keeps for reading."""
    await connection.execute(f"ALTER DATABASE {urlsplit(dsn).path[1:]} SET default_transaction_read_only = on")
    with pytest.raises(UnavailableError, match="takes no writes"):
        await connect(Target(several(dsn, closed), NAME), {})
    with pytest.raises(UnavailableError, match="takes no writes"):
        await connect(Target(f"{dsn}&target_session_attrs=read-write", NAME), {})
    alone = await connect(Target(dsn, NAME), {})  # the doctor has to get in
    alone.terminate()
    await checkpoint()


async def _seems_to_have_citus(connection: Sql) -> None:
    database = await connection.fetchval("SELECT current_database()")
    await connection.execute(f"ALTER DATABASE {database} SET citus.version = 'any'")


@pytest.mark.usefixtures("own_database")
@pytest.mark.parametrize("is_loaded", [False, True])
async def test_tables_of_the_name_that_citus_would_use_are_no_citus(
    dsn: str, connection: Sql, closed: int, *, is_loaded: bool
) -> None:
    await connection.execute("CREATE SCHEMA pulse_rows; CREATE TABLE pulse_rows.jobs ()")
    if is_loaded:
        await _seems_to_have_citus(connection)
    found = await connect(Target(several(dsn, closed), NAME), {})
    assert found.home_since_s is None
    found.terminate()


@pytest.mark.usefixtures("own_database")
async def test_a_role_that_may_not_look_for_citus_is_a_fault_of_the_settings(
    dsn: str, connection: Sql, closed: int
) -> None:
    role = "no_catalogue"
    await _seems_to_have_citus(connection)
    await connection.execute(f"CREATE ROLE {role} LOGIN; REVOKE SELECT ON pg_extension FROM public")
    try:
        with pytest.raises(ConfigError, match=f"PULSE_DSN .*{role}: permission denied for table pg_extension"):
            await connect(Target(several(dsn, closed, user=role), NAME), {})
    finally:
        await connection.execute(f"DROP ROLE {role}")


async def asked(pool: Pool) -> None:
    async with pool.connection(SHORT_S) as connection:
        await connection.fetchval("SELECT 1")


async def test_silence_ends_the_idle_connections(dsn: str) -> None:
    """Where one got no answer, nobody waits for those beside it."""
    async with Proxy(socket_of(dsn)).running() as proxy:
        pool = Pool(Target(through(dsn, proxy.port), NAME), size=2)
        async with pool.connection(), pool.connection() as idle:
            pass
        proxy.cut()
        with pytest.raises(UnavailableError, match="no answer"):
            await asked(pool)
        await until_async(idle.is_closed, "the idle one is closed")
        pool.close()
        await checkpoint()
