"""The submits of a client that go by SQL while no server answers."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import psycopg
import psycopg.conninfo
import pytest

import pulse
from pulse.encryption import FernetCodec
from pulse.errors import ConflictError, ForbiddenError, NobodyAnswersError, NotFoundError
from pulse.sql import drivers, fallback
from pulse.sql.document import document_of
from tests.support.confidential import confidential
from tests.support.servers.client_flavors import FLAVORS, failing, using
from tests.support.servers.fake_dispatcher import Body, FakeDispatcher, RuntimeDir
from tests.support.servers.postgres import Postgres
from tests.support.waiting import until

pytestmark = pytest.mark.postgres

Query = Callable[[str], Any]
IN_SESSION = "FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'pulse client'"
JOBS = "SELECT array(SELECT name FROM pulse.jobs ORDER BY name)"


@pytest.fixture
def database(newest_server: Postgres) -> Iterator[str]:
    """The way there is tested; the statement is tested on every PostgreSQL."""
    with newest_server.database() as made:
        yield made


@pytest.fixture
def directory() -> Iterator[Path]:
    with RuntimeDir() as made:
        yield made.path


@pytest.fixture
def nowhere(directory: Path) -> Path:
    return directory / "pulse.sock"


@pytest.fixture(params=FLAVORS)
def flavor(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["psycopg", "asyncpg"])
def driver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The one that seems to be installed."""
    only = str(request.param)
    hide({"psycopg", "asyncpg"} - {only}, monkeypatch)
    return only


def hide(modules: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in modules else find(name))


@pytest.fixture
def query(database: str) -> Iterator[Query]:
    """The first value of a statement's first row, if there is one."""
    with psycopg.connect(database, autocommit=True) as mine:

        def ask(statement: str) -> Any:
            cursor = mine.execute(statement.encode())
            row = cursor.fetchone() if cursor.description else None
            return row and row[0]

        yield ask


def ids_of(body: Body) -> Body:
    jobs: Any = body["jobs"]
    return {"ids": [one["id"] for one in jobs]}


def submit(client: Any) -> Any:
    return client.submit("a", {"b": 1})


def strict(client: Any) -> Any:
    return client.submit("a", unique="k", on_conflict="error")


@pytest.mark.usefixtures("driver")
def test_while_there_is_no_server(flavor: str, nowhere: Path, database: str, query: Query) -> None:
    """Submits go there; a request that reads fails at once."""
    found = using(
        flavor,
        nowhere,
        lambda client: client.submit("one", {"path": "ä"}, priority=5),
        lambda client: client.submit_many([{"name": "two"}, {"name": "three", "delay_s": 60}]),
        failing(flavor, NobodyAnswersError, "starts a server$", lambda client: client.get(uuid.uuid4())),
        when_down=database,
    )
    ids = {name: query(f"SELECT id FROM pulse.jobs WHERE name = '{name}'") for name in ("one", "two", "three")}
    assert found == [ids["one"], [ids["two"], ids["three"]], None]
    assert query("SELECT args FROM pulse.jobs WHERE priority = 5") == {"path": "ä"}
    until(lambda: query(f"SELECT count(*) {IN_SESSION}") == 0, "the client has closed its session")


@pytest.mark.usefixtures("driver")
def test_unique_jobs(flavor: str, nowhere: Path, database: str, query: Query) -> None:
    """A key holds there, too, and the answer says whose it is."""
    found: Any = using(
        flavor,
        nowhere,
        lambda client: client.submit("one", unique="k"),
        lambda client: client.submit("one", unique="k"),
        failing(flavor, ConflictError, "unique key 'k' belongs to job", strict),
        when_down=database,
    )  # fmt: skip
    first, again, refused = found
    assert (first, first.is_new, again, again.is_new, refused) == (again, True, first, False, None)
    assert query("SELECT count(*) FROM pulse.jobs") == 1


@pytest.mark.usefixtures("driver")
def test_jobs_that_wait_for_others(flavor: str, nowhere: Path, database: str, query: Query) -> None:
    """A batch goes there, too; one that is to wait for a job that is not there is refused, with all others."""
    batch, missing = pulse.Batch([{"name": "one"}]), uuid.UUID(int=7)
    wrong: list[Any] = [{"name": "three"}, {"name": "four", "after": [missing]}]
    batch.then("two", on_failure="run")
    (ids, _) = using(
        flavor,
        nowhere,
        lambda client: client.submit_batch(batch),
        failing(
            flavor, NotFoundError, f"to wait for job {missing}, and there is no such job",
            lambda client: client.submit_many(wrong),
        ),
        when_down=database,
    )  # fmt: skip
    assert ids == batch.ids
    told = query("SELECT array_agg((name, waiting_on)::text ORDER BY name) FROM pulse.jobs")
    assert told == ["(one,)", "(two,1)"]


def test_args_are_encrypted(nowhere: Path, database: str, query: Query) -> None:
    codec = FernetCodec(FernetCodec.new_key())
    using("blocking", nowhere, lambda client: client.submit("a", {"b": "in clear"}), when_down=database, codec=codec)
    assert "in clear" not in query("SELECT args::text FROM pulse.jobs")


def test_when_the_server_is_there_again(flavor: str, directory: Path, database: str, query: Query) -> None:
    """It is asked first, and the session with the database ends."""
    server = FakeDispatcher(directory, {"submit": ids_of})

    def begin(_: object) -> None:
        server.listen()

    def see_the_session_end(_: object) -> None:
        until(lambda: query(f"SELECT count(*) {IN_SESSION}") == 0, "the session ends")

    try:
        using(flavor, server.path, submit, begin, submit, see_the_session_end, submit, when_down=database)
        assert len(server.bodies("submit")) == 2
        assert query(JOBS) == ["a"]
    finally:
        server.stop()


@pytest.mark.parametrize("is_silent", [True, False], ids=["silent", "gone"])
def test_an_answer_that_is_lost(
    flavor: str, directory: Path, database: str, query: Query, is_silent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has inserted the job, and is stopped before it says so: the job is there once."""
    monkeypatch.setattr(fallback, "ANSWER_S", 1.0)

    def insert(body: Body) -> Any:
        with psycopg.connect(database, autocommit=True) as its:
            drivers.run(its, document_of(body))
        if not is_silent:
            server.path.unlink()
            server.peers()[-1].close()

    with FakeDispatcher(directory, {"submit": insert}) as server:
        ids = using(flavor, server.path, submit, when_down=database)
        assert len(server.bodies("submit")) == 1
    assert ids == [query("SELECT id FROM pulse.jobs")]
    assert query(JOBS) == ["a"]


def test_a_frozen_server_is_waited_for_once() -> None:
    """For a while after that, only in passing; one that refuses at once costs no time."""
    server = fallback._SilentServer()
    now_s = time.monotonic()
    server.note(now_s, 2.0)
    assert server.patience_s() == fallback.ANSWER_S
    server.note(now_s - 2.0, 2.0)
    assert server.patience_s() == fallback.HURRY_S
    server.end()
    assert server.patience_s() == fallback.ANSWER_S


@pytest.mark.usefixtures("driver")
def test_neither_server_nor_database(flavor: str, nowhere: Path) -> None:
    """One error says both, without the password."""
    password = confidential("swordfish-7", "a database that is down")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    dsn = f"postgresql://me:{password}@127.0.0.1:{port}/x"
    said = rf"^nobody answers; looked at {nowhere} .*; nor does the database: .*(refused|Connect call failed)"
    using(flavor, nowhere, failing(flavor, NobodyAnswersError, said, submit), when_down=dsn)


@pytest.mark.usefixtures("driver")
def test_what_the_database_refuses(flavor: str, nowhere: Path, database: str, query: Query) -> None:
    """It has answered, and the next submit goes there."""
    one = uuid.uuid4()
    using(
        flavor,
        nowhere,
        lambda client: client.submit("a", id=one),
        failing(flavor, ConflictError, str(one), lambda client: client.submit("b", id=one)),
        lambda client: client.submit("c"),
        when_down=database,
    )
    assert query(JOBS) == ["a", "c"]


def test_a_role_that_may_not_submit(nowhere: Path, database: str, query: Query) -> None:
    query("DO $$ BEGIN CREATE ROLE no_submitter LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    using(
        "blocking",
        nowhere,
        failing("blocking", ForbiddenError, "pulse", submit),
        when_down=as_role(database, "no_submitter"),
    )


def as_role(dsn: str, role: str) -> str:
    return psycopg.conninfo.make_conninfo(dsn, user=role)


@pytest.mark.usefixtures("driver")
def test_a_lock_is_waited_for_no_longer_than_an_answer(flavor: str, nowhere: Path, database: str) -> None:
    with psycopg.connect(database) as its:
        its.execute("LOCK TABLE pulse.jobs")
        said = "nor does the database: (canceling statement due to statement timeout|TimeoutError)$"
        using(flavor, nowhere, failing(flavor, NobodyAnswersError, said, submit), when_down=database, timeout_s=0.3)


def test_one_session_for_all_threads(nowhere: Path, database: str, query: Query) -> None:
    """It is kept, and made anew when it was ended."""
    client = pulse.Client(nowhere, when_down=database)
    ids: list[uuid.UUID] = []

    def work() -> None:
        ids.extend(client.submit("a") for _ in range(5))

    def pid() -> int:
        assert query(f"SELECT count(*) {IN_SESSION}") == 1
        return int(query(f"SELECT pid {IN_SESSION}"))

    client.submit("a")
    first = pid()
    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(set(ids)) == 30
    assert pid() == first
    query(f"SELECT pg_terminate_backend({first}, 5000)")
    client.submit("b")
    assert pid() != first
    client.close()
    assert query("SELECT count(*) FROM pulse.jobs") == 32


def test_threads_wait_for_each_other_no_longer_than_for_an_answer(nowhere: Path, database: str) -> None:
    client = pulse.Client(nowhere, when_down=database, timeout_s=0.2)
    with psycopg.connect(database) as its:
        its.execute("LOCK TABLE pulse.jobs")
        failures: list[str] = []

        def work() -> None:
            try:
                client.submit("a")
            except NobodyAnswersError as error:
                failures.append(error.message)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    client.close()
    assert len(failures) == 4
    assert any("other threads wait for it, too" in said for said in failures)


FORK = """
import os, sys, pulse
client = pulse.Client(sys.argv[1], when_down=sys.argv[2])
client.submit("parent")
client._fallback._database._turn.acquire()  # as another thread may
child = os.fork()
if child == 0:
    client.submit("child")
    sys.exit()
client._fallback._database._turn.release()
print(os.waitpid(child, 0)[1], flush=True)
sys.stdin.readline()
client.submit("parent")
client.close()
"""


def test_a_fork(nowhere: Path, database: str, query: Query) -> None:
    """The child opens a session of its own, and says nothing on its parent's."""
    line = [sys.executable, "-W", "error", "-W", "ignore::ResourceWarning", "-c", FORK, str(nowhere), database]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"0\n"
        assert query(f"SELECT count(*) {IN_SESSION}") == 1
        before = query(f"SELECT backend_start {IN_SESSION}")
        assert before < query("SELECT submitted_at FROM pulse.jobs WHERE name = 'child'")
        _, said = process.communicate(b"\n", timeout=20)
        assert (said, process.returncode) == (b"", 0)
    assert query(JOBS) == ["child", "parent", "parent"]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.usefixtures("driver")
def test_the_loop_goes_on(backend: str, directory: Path) -> None:
    """While the database says nothing; and a submit can be given up."""

    async def run() -> None:
        with FakeDispatcher(directory, frozen=True) as server, socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(20)
            dsn = f"postgresql://me@127.0.0.1:{listener.getsockname()[1]}/x"
            async with (
                pulse.connect(server.path, when_down=dsn, timeout_s=0.2) as client,
                anyio.create_task_group() as group,
            ):
                group.start_soon(client.submit, "a")
                connection, _ = await anyio.to_thread.run_sync(listener.accept)
                with connection:
                    for _ in range(
                        50
                    ):  # turns of the loop; the submit, which waits for an answer, would fail the group
                        await anyio.lowlevel.checkpoint()
                    group.cancel_scope.cancel()

    anyio.run(run, backend=backend)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_submits_do_not_queue_up_before_a_database_that_is_silent(
    backend: str, nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each ends in its own time, though the first one still waits for a connection."""
    monkeypatch.setattr(fallback, "CONNECT_S", 0.1)
    said: list[str] = []

    async def submit(client: pulse.AsyncClient) -> None:
        with pytest.raises(NobodyAnswersError) as caught:
            await client.submit("a")
        said.append(caught.value.message)

    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:  # it never accepts
            dsn = f"postgresql://me@127.0.0.1:{listener.getsockname()[1]}/x"
            async with (
                pulse.connect(nowhere, when_down=dsn, timeout_s=0.2) as client,
                anyio.create_task_group() as group,
            ):
                for _ in range(3):
                    group.start_soon(submit, client)

    anyio.run(run, backend=backend)
    assert len(said) == 3
    assert all(one.endswith("; the database has not answered within 0.3 s") for one in said)


def test_no_driver(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide({"psycopg", "asyncpg"}, monkeypatch)
    with pytest.raises(
        pulse.PulseError, match=r"^a client that goes by SQL needs a driver: pip install 'psycopg\[binary]'$"
    ):
        pulse.Client(nowhere, when_down="postgresql://me@there/x")
