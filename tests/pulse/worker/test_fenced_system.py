"""
Fenced transactions of real workers, which die at each step, or lose their connection to the database there.

Whatever happens, the effect is there exactly once, and a job whose transaction is committed is not run again.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from uuid import UUID

import psycopg
import pytest

from tests.support.servers.proxy import socket_of, through
from tests.support.systems.system_kit import Jobs, Pool, Whole
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.system]

APP: Final = "tests.support.apps.fenced_app:app"
HANDLERS: Final = ("pay-async", "pay-plain", "pay-apart")
COMMIT: Final = b"COMMIT"


class Cutter:
    """
    A proxy in front of PostgreSQL that acts once when it sees a COMMIT.

    Args:
        lets_through: Whether the COMMIT arrives; its answer does not in any case.
        act: Done before the connection is cut.
    """

    def __init__(self, behind: Path, *, lets_through: bool, act: Callable[[], None]) -> None:
        self._behind = behind
        self._lets_through = lets_through
        self._act = act
        self._is_over = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                front, _ = self._listener.accept()
                self._threads.append(threading.Thread(target=self._serve, args=(front,)))
                self._threads[-1].start()

    def _serve(self, front: socket.socket) -> None:
        with front, socket.socket(socket.AF_UNIX) as back, contextlib.suppress(OSError):
            back.connect(str(self._behind))
            while True:
                for one in select.select([front, back], [], [])[0]:
                    data = one.recv(65_536)
                    if not data:
                        return
                    if one is front and COMMIT in data and not self._is_over:
                        self._is_over = True
                        if self._lets_through:
                            back.sendall(data)
                            back.recv(65_536)
                        self._act()
                        return
                    (back if one is front else front).sendall(data)


@contextmanager
def cutter(whole: Whole, *, lets_through: bool, act: Callable[[], None] = lambda: None) -> Iterator[str]:
    """The DSN of such a proxy."""
    made = Cutter(socket_of(whole.dsn), lets_through=lets_through, act=act)
    try:
        yield through(whole.dsn, made.port)
    finally:
        made.close()


@pytest.fixture(scope="module")
def pool(whole: Whole) -> Pool:
    """Enough processes for the next attempt to be run at once when one dies."""
    whole.rows("CREATE TABLE public.effects (job uuid, attempt int)")
    whole.rows(
        "CREATE TABLE public.runs (job uuid, attempt int, worker text, at timestamptz DEFAULT clock_timestamp())"
    )
    return whole.pool("--processes", "3", app=APP)


class Shop:
    """Submits a job, and looks at what has become of it."""

    def __init__(self, whole: Whole, jobs: Jobs) -> None:
        self._whole = whole
        self._jobs = jobs

        self.wait = jobs.wait

    def submit(self, handler: str, topic: str | None = None, **args: str) -> UUID:
        return self._jobs.submit(handler, args, topic=topic)

    def pay(self, handler: str, dsn: str = "", topic: str | None = None, **args: str) -> UUID:
        return self.submit(handler, topic, direct=self._whole.dsn, dsn=dsn or self._whole.dsn, **args)

    def check(self, job: UUID, *, runs: int) -> None:
        """The job is completed, it was run so often, and its last run had the effect."""
        done = self.wait(job)
        run = self._attempts("runs", job)  # an attempt may have been given back before
        assert (len(run), done.result) == (runs, {"attempt": run[-1]})
        assert self._attempts("effects", job) == [run[-1]]

    def _attempts(self, table: str, job: UUID) -> list[int]:
        return [
            row[0] for row in self._whole.rows(f"SELECT attempt FROM public.{table} WHERE job = $1 ORDER BY 1", job)
        ]


@pytest.fixture
def shop(whole: Whole, pool: Pool) -> Shop:
    return Shop(whole, whole.jobs())


def kill_newest(dsn: str) -> None:
    """Kill the worker that has begun last."""
    with psycopg.connect(dsn) as connection:
        (worker,) = connection.execute("SELECT worker FROM public.runs ORDER BY at DESC LIMIT 1").fetchall()[0]
    os.kill(int(worker.split("/")[3].partition(".")[0]), signal.SIGKILL)


def stale(whole: Whole) -> int:
    """How many reports the server has found to be stale."""
    return len(whole.log("results_stale"))


each_handler = pytest.mark.parametrize("handler", HANDLERS)


@pytest.mark.rest
@each_handler
@pytest.mark.parametrize(("step", "runs"), [("", 1), ("before", 2), ("in", 2), ("end", 2), ("after", 1), ("raise", 1)])
def test_a_process_that_dies_at_a_step(shop: Shop, handler: str, step: str, runs: int) -> None:
    """Also one that ends well, and one that raises after the commit."""
    shop.check(shop.pay(handler, die=step), runs=runs)


@pytest.mark.rest
@each_handler
@pytest.mark.parametrize(("commits", "runs"), [(False, 2), (True, 1)])
def test_a_worker_that_dies_at_the_commit(whole: Whole, shop: Shop, handler: str, commits: bool, runs: int) -> None:
    """Before the COMMIT has arrived; or when it is carried out, and the answer is under way."""
    with cutter(whole, lets_through=commits, act=lambda: kill_newest(whole.dsn)) as dsn:
        job = shop.pay(handler, dsn)
        shop.check(job, runs=runs)


@pytest.mark.rest
@each_handler
@pytest.mark.parametrize(("commits", "runs"), [(False, 2), (True, 1)])
def test_a_connection_that_is_lost_at_the_commit(
    whole: Whole, shop: Shop, handler: str, commits: bool, runs: int
) -> None:
    """The handler fails, without knowing whether the COMMIT was carried out."""
    before = stale(whole)
    with cutter(whole, lets_through=commits) as dsn:
        job = shop.pay(handler, dsn)
        if commits:
            until(lambda: stale(whole) > before, "the report of the failure is stale")
        shop.check(job, runs=runs)


def test_what_the_worker_says(pool: Pool, shop: Shop) -> None:
    """Of a result that is not stored, and of an exception after the commit."""
    shop.check(shop.pay("pay-async"), runs=1)
    shop.check(shop.pay("pay-plain", die="raise"), runs=1)
    until(lambda: "handler_failed_after_commit" in pool.said, "the exception")
    until(lambda: "result_not_stored" in pool.said, "the warning")
    assert "LookupError: after the commit" in pool.said


@pytest.mark.rest
def test_a_handler_that_goes_on_after_the_commit(whole: Whole, shop: Shop, tmp_path: Path) -> None:
    """Its worker's heartbeats go on listing the job: it has not lost it."""
    gate = tmp_path / "gate"
    own = whole.pool("--processes", "1", "--topic", "own", app=APP)
    other = shop.submit("hold", topic="own", gate=str(gate))
    job = shop.pay("pay-async", topic="own", gate=str(gate))
    shop.check(job, runs=1)
    for _ in range(3):
        seen = whole.row(other.bytes)["lease_until"]
        until(lambda: whole.row(other.bytes)["lease_until"] != seen, "a heartbeat")  # noqa: B023 - it is called here
    gate.touch()
    shop.wait(other)
    assert "handler_failed_after_commit" not in own.said
    lost = [line["worker"] for line in whole.log("leases_lost")]  # the other pool's processes were killed
    assert [worker for worker in lost if f"-{own.pid}-" in str(worker)] == []
