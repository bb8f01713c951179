"""A host without room notifies others of its work, rarely; and claims what others notify it of."""

from __future__ import annotations

import asyncio
import functools
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final
from unittest.mock import AsyncMock

import asyncpg
import pytest
from anyio.lowlevel import checkpoint

from pulse.common.ids import uuid7
from pulse.errors import ConfigError, PulseError, UnavailableError
from pulse.ops.doctor.finding import State
from pulse.store.admin.schema import ensure_schema
from pulse.store.connections.pool import Target, connect
from pulse.store.rows import Level
from pulse.store.store import WORK_CHANNEL, Store
from pulse_actors.dispatcher.claims import work_signal
from pulse_actors.dispatcher.claims.cross_host import PAUSE_S, RELEASED, CrossHostHints
from pulse_actors.dispatcher.claims.work_signal import WorkSignal
from pulse_actors.dispatcher.workers.registry import WorkerRegistry
from pulse_actors.runtime.pg_listen import listen
from tests.support.admin.doctor_kit import Patient, check_age, said
from tests.support.admin.notify_queue import SETTINGS, NotifyQueue
from tests.support.servers import postgres
from tests.support.servers.postgres import Postgres, started
from tests.support.store.claim_parts import claim_parts
from tests.support.store.helpers import TOPIC, Patch, Sql, forge
from tests.support.store.recovery_kit import DEADLINE_S, HOST, PAST, new_worker, running

pytestmark = pytest.mark.heavy


class Ear:
    """What is heard, in order; the test's ``marks`` end a look at it."""

    def __init__(self, connection: Sql) -> None:
        self._connection = connection
        self.heard: asyncio.Queue[str] = asyncio.Queue()

    async def until_mark(self) -> list[str]:
        await self._connection.execute(f"NOTIFY {WORK_CHANNEL}, 'mark'")
        found: list[str] = []
        while (text := await asyncio.wait_for(self.heard.get(), DEADLINE_S)) != "mark":
            found.append(text)
        return found


@pytest.fixture
async def ear(connection: Sql) -> Ear:
    made = Ear(connection)
    await connection.add_listener(WORK_CHANNEL, lambda *message: made.heard.put_nowait(str(message[3])))
    return made


def listening(
    target: Target, channels: Mapping[str, Callable[[str], None]], began: Callable[[], None]
) -> AbstractAsyncContextManager[None]:
    return running(functools.partial(listen, target, channels, began))


def test_work_is_told_where_nobody_has_room() -> None:
    """With room in every topic that has work nothing is sent; without room in one of them, one word to all."""
    told, registry, cross_host = list[str](), WorkerRegistry(), AsyncMock(CrossHostHints)
    cross_host.work = lambda: told.append("work")
    signal = WorkSignal(registry, cross_host, poll_s=60.0)
    worker = new_worker("w", capacity=1)
    registry.join(worker)
    for topics, is_told in (([TOPIC], False), ([TOPIC, "elsewhere"], True), (["elsewhere"], True), ([], False)):
        told.clear()
        signal.work_left(topics)
        for _ in range(2):
            signal.will_claim(one.topics for one in registry.with_room())
        assert told == ["work"] * is_told
    worker.draining = True
    signal.work_left([TOPIC])
    signal.will_claim(one.topics for one in registry.with_room())
    assert told == ["work"]


async def test_other_hosts_hear_of_work_without_a_claim(monkeypatch: Patch) -> None:
    """While a claim takes long, or fails each time, other hosts hear of work for which this one has no room."""
    monkeypatch.setattr(work_signal, "UNPLANNED_S", 0.0)
    registry, cross_host, told = WorkerRegistry(), AsyncMock(CrossHostHints), asyncio.Event()
    cross_host.work = told.set
    signal = WorkSignal(registry, cross_host, poll_s=60.0)
    worker = new_worker("w", capacity=1)
    registry.join(worker)
    async with running(signal.tell_left):
        signal.work_left([TOPIC])
        for _ in range(5):
            await checkpoint()
        assert not told.is_set()
        signal.wake_level(Level("elsewhere", 0))
        await asyncio.wait_for(told.wait(), DEADLINE_S)


async def test_it_is_told_once_in_a_while(store: Store, ear: Ear, monkeypatch: Patch) -> None:
    """What comes during the pause is sent after it, once, and then nothing more."""
    pauses: list[float] = []
    over = asyncio.Event()

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await over.wait()
        over.clear()

    monkeypatch.setattr("pulse_actors.dispatcher.claims.cross_host.anyio.sleep", pause)
    news = CrossHostHints(store)
    async with running(news.run):
        for _ in range(3):
            for _ in range(100):
                news.work()
            await asyncio.wait_for(ear.heard.get(), DEADLINE_S)
            for _ in range(100):
                news.work()
            assert await ear.until_mark() == []
            over.set()
            await asyncio.wait_for(ear.heard.get(), DEADLINE_S)
            over.set()
    assert set(pauses) == {PAUSE_S}


async def test_a_database_that_is_away(store: Store, ear: Ear, monkeypatch: Patch) -> None:
    """What cannot be sent is dropped: the others poll. Afterwards it goes on."""
    notify = store.notify_work
    asked, tried = list[str](), asyncio.Event()

    async def away(sender: str) -> None:
        asked.append(sender)
        tried.set()
        monkeypatch.setattr(store, "notify_work", notify)
        message = "away"
        raise UnavailableError(message)

    monkeypatch.setattr(store, "notify_work", away)
    news = CrossHostHints(store)
    news.work()
    async with running(news.run):
        await asyncio.wait_for(tried.wait(), DEADLINE_S)
        news.work()
        assert await asyncio.wait_for(ear.heard.get(), DEADLINE_S) == asked[0]


async def test_what_is_heard(store: Store) -> None:
    """A claim follows at once and once more, but not after one's own words, nor too often."""
    news = CrossHostHints(store)
    assert news.heard(news._name, 10.0) == []
    assert news.heard("another", 10.0) == [0.0, PAUSE_S]
    assert news.heard("", 10.0 + PAUSE_S / 2) == pytest.approx([1.5 * PAUSE_S]), "a submit after the look at 1.0"
    assert news.heard("", 10.0 + PAUSE_S * 0.7) == [], "the look at 2.0 is late enough"
    assert news.heard("", 10.0 + PAUSE_S * 1.5) == pytest.approx([1.5 * PAUSE_S])
    assert news.heard("", 10.0 + PAUSE_S * 3.1) == [0.0, PAUSE_S]
    assert news.heard(None, 20.0) == [0.0, PAUSE_S]
    assert news.heard(RELEASED, 30.0) == [0.0], "it was committed before it was told"


async def test_claims_tell_what_they_leave(store: Store, connection: Sql, monkeypatch: Patch) -> None:
    """A claim that brought all it could says so, one that did not does not; work at a level always."""
    registry, told = WorkerRegistry(), list[str]()
    claims = claim_parts(store, registry, HOST, lease_s=30.0, poll_s=60.0, batch=500)
    monkeypatch.setattr(claims.cross_host, "work", lambda: told.append("work"))
    registry.join(new_worker("w", capacity=2))
    for _ in range(3):
        await forge(connection, next_run_at=PAST)
    assert await claims.loop.pass_once()
    assert not told, "it is looked for more here first"
    await claims.loop.pass_once()
    assert told == ["work"]
    registry.join(new_worker("v", capacity=2))
    claims.signal.wake()
    await claims.loop.pass_once()
    claims.signal.wake_level(Level("x", 0), 5.0)
    await claims.loop.pass_once()
    assert told == ["work"]
    claims.signal.wake_level(Level("x", 0))
    await claims.loop.pass_once()
    assert told == ["work"] * 2


async def test_listening_begins_anew(dsn: str, connection: Sql) -> None:
    """A broken connection is made again, each channel has its own listener, and nothing after that is lost."""
    heard, began = asyncio.Queue[tuple[str, str]](), asyncio.Queue[None]()
    channels = {name: functools.partial(_put, heard, name) for name in ("one", "two")}
    find = "SELECT pid FROM pg_stat_activity WHERE application_name = 'ear'"
    async with asyncio.timeout(DEADLINE_S), listening(Target(dsn, "ear"), channels, lambda: began.put_nowait(None)):
        for _ in range(2):
            await began.get()
            await connection.execute("NOTIFY two, 'b'; NOTIFY one, 'a'")
            assert sorted([await heard.get(), await heard.get()]) == [("one", "a"), ("two", "b")]
            await connection.execute(f"SELECT pg_terminate_backend(pid) FROM ({find}) AS ears")
        await began.get()
        assert heard.empty()


def _put(heard: asyncio.Queue[tuple[str, str]], channel: str, text: str) -> None:
    heard.put_nowait((channel, text))


@pytest.mark.parametrize("error", [
    UnavailableError("away"),
    ConfigError("no such user"),
    # All the ways in which asyncpg says that a connection was cut, as tried with a server that cuts and cuts.
    asyncpg.InternalClientError("cannot switch to state 11; another operation (2) is in progress"),
    asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation"),
    asyncpg.InterfaceError("connection is closed"),
    ConnectionResetError(),
], ids=repr)  # fmt: skip
async def test_a_connection_that_cannot_be_made_or_is_cut_before_it_listens(
    dsn: str, connection: Sql, error: Exception, monkeypatch: Patch
) -> None:
    errors = [error]

    def once(call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def failing(*args: Any, **options: Any) -> Any:
            if errors:
                raise errors.pop()
            return await call(*args, **options)

        return failing

    if isinstance(error, PulseError):
        monkeypatch.setattr("pulse_actors.runtime.pg_listen.connect", once(connect))
    else:
        monkeypatch.setattr(asyncpg.Connection, "add_listener", once(asyncpg.Connection.add_listener))
    began, heard = asyncio.Event(), asyncio.Event()
    async with (
        asyncio.timeout(DEADLINE_S),
        listening(Target(dsn, "ear"), {"one": lambda _text: heard.set()}, began.set),
    ):
        await began.wait()
        await connection.execute("NOTIFY one")
        await heard.wait()
    assert errors == []


# A queue of NOTIFY that is full, since a session that listens stays in a transaction: pulse goes on in silence.


SCHEDULE: Final = "0199a1b2-c3d4-7e5f-8a0b-1c2d3e4f5a6b"
# Whatever tells somebody something, and commits.
TELLING: Final = (
    "SELECT pulse.submit('n')",
    """SELECT pulse.submit_many('[{"name": "n"}, {"name": "m"}]')""",
    "SELECT pulse.notify_work()",
    """SELECT pulse.set_topic('t', '{"timeout_s": 5}')""",
    "INSERT INTO pulse.topics (topic, timeout_s) VALUES ('u', 5)",
    f"SELECT pulse.create_schedule('n', every_s => 15, id => '{SCHEDULE}')",
    f"SELECT pulse.update_schedule('{SCHEDULE}', every_s => 30)",
    f"SELECT pulse.resume_schedule('{SCHEDULE}')",
    f"SELECT pulse.trigger_schedule('{SCHEDULE}')",
)


@pytest.fixture(scope="module")
def small_server() -> Iterator[Postgres]:
    """One with the smallest queue of NOTIFY: before PostgreSQL 17 its size is fixed."""
    installation, *_ = postgres.installations()
    if installation.major < 17:
        pytest.skip("the queue of NOTIFY is 8 GB before PostgreSQL 17")
    with started(installation, **SETTINGS) as server:
        yield server


@pytest.fixture
def database(small_server: Postgres) -> Iterator[str]:
    with small_server.database(installed=False) as made:
        yield made


@pytest.fixture
async def sql(database: str) -> AsyncIterator[Sql]:
    """The schema is installed here: a copy would have it as it was when the server was first used."""
    made = await asyncpg.connect(database)
    await ensure_schema(made)
    yield made
    await made.close(timeout=5)


@pytest.fixture
async def queue(database: str) -> AsyncIterator[NotifyQueue]:
    made = NotifyQueue(database)
    yield made
    await made.close()


@pytest.mark.rest
async def test_all_that_tells_goes_on(database: str, sql: Sql, queue: NotifyQueue) -> None:
    """Submits, schedules, topics and the gate commit at a full queue, where a plain NOTIFY cannot."""
    await queue.fill()
    with pytest.raises(asyncpg.ProgramLimitExceededError, match="too many notifications in the NOTIFY queue"):
        await sql.execute("NOTIFY somebody, 'something'")
    for statement in TELLING:
        await sql.execute(statement)
    store = Store(Target(database, "test"))
    try:
        await store.notify_work("me")
        await store.gate.pause("t", "why", for_s=1e-6)
        assert [pause.topic for pause in await store.gate.expire()] == ["t"]
        await store.gate.pause("t", "why")
        await store.gate.resume("t")
        await store.schedules.delete(uuid7().bytes)
    finally:
        store.close()


async def test_half_full_is_enough_to_be_silent(sql: Sql, queue: NotifyQueue) -> None:
    """From a half on pulse notifies nothing, so that it never fills the queue; below it does."""
    for upto, is_told in ((0.3, True), (0.5, False)):
        await queue.fill(upto)
        before = await queue.usage()
        for _ in range(3):
            await sql.execute("SELECT pulse.tell('pulse_work', $1)", "x" * 7900)
        assert (await queue.usage() > before) is is_told


async def test_the_doctor_names_who_keeps_it_full(database: str, sql: Sql, queue: NotifyQueue) -> None:
    """How full it is, and the oldest transaction of any database; below a half all is well."""
    began_s = time.monotonic()
    patient = Patient(database, sql)
    finding = (await patient.found())["notifications"]
    assert (finding.state, finding.text) == (State.OK, "the queue of NOTIFY is 0% full")
    await queue.fill(0.6)
    await sql.execute("BEGIN")
    younger = await patient.session()
    await younger.execute("BEGIN")
    finding = (await patient.found())["notifications"]
    await younger.close(timeout=5)
    assert finding.state is State.WARNING
    assert re.fullmatch(r"the queue of NOTIFY is 6\d% full", finding.text)
    assert f"session {queue.pid} (" in finding.details[0]
    check_age(r"has been idle in transaction for (\d+) s", finding.details[0], began_s)
    assert len(finding.details) == 3
    assert "pg_terminate_backend" in said(finding) + finding.advice[0]
