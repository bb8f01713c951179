"""A handler process without its connection: how it carries out an order."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import anyio
import msgspec
import pytest
import structlog

import pulse
from pulse.app.outcome import RELEASED, Outcome
from pulse.protocol import Assignment, Welcome
from pulse.routes import Queue, Routes
from pulse.worker import service
from pulse.worker.execution import stacks
from pulse.worker.execution.attempt import Attempt
from pulse.worker.isolation.manager import Cells, ZygoteProcess
from pulse.worker.isolation.messages import CellEnded, CellRefused, Failed, Forked
from pulse.worker.options import HostOptions, PoolOptions, PoolTopics
from pulse.worker.service import Service
from pulse.worker.status_pipe import NoteWriter

pytestmark = pytest.mark.anyio

app = pulse.App()


@app.handler("plain")
def plain() -> None:
    """Never called here."""


@app.handler("apart", isolate=True)
def apart() -> None:
    """The same."""


def options() -> HostOptions:
    pool = PoolOptions(app="x:y")
    return HostOptions(pool=pool, name="w", parent_pid=os.getpid(), name_fd=0, notes_fd=0, stack_fd=0)


def running(service: Service) -> Attempt:
    service._ledger.assign([Assignment(b"i" * 16, 1, "plain", "t", "{}", 2.5, 30.0)], 0.0)
    (attempt,) = service._ledger.take_startable()
    return attempt


@pytest.fixture
async def made() -> AsyncIterator[Service]:
    reader, writer = os.pipe()
    os.close(reader)
    service = Service(options(), app, NoteWriter(writer), structlog.get_logger())
    yield service
    os.close(writer)
    service._waker._reader.close()
    service._waker._writer.close()


async def test_where_it_is_is_seen_before_it_is_asked(made: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain handler that looks at ctx.cancelled leaves the place at once."""
    attempt = running(made)
    monkeypatch.setattr(stacks, "where_is", lambda one: f"asked already: {one.stopped is not None}")
    for reason in ("timeout", "stalled"):
        made.stop(attempt.pair, reason)
        assert (attempt.stopped, attempt.stack) == ("timeout", "asked already: False")


async def test_no_stack_of_those_that_do_not_hang(made: Service) -> None:
    attempt = running(made)
    made.stop(attempt.pair, "canceled")
    assert (attempt.stopped, attempt.stack) == ("canceled", None)


class Told:
    """A connection that keeps the capacities sent on it, and ends on request."""

    def __init__(self) -> None:
        self.capacities: list[int] = []
        self.over = anyio.Event()

    def send_capacity(self, capacity: int) -> None:
        self.capacities.append(capacity)

    def wake(self) -> None:
        """Nothing is sent."""

    async def run(self) -> None:
        await self.over.wait()


async def test_the_server_knows_the_capacity(made: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """It hears of each change once, of one between the hello and its answer, too; and of the drain."""
    told = Told()

    async def dial() -> tuple[None, Welcome]:
        assert made._hello()["capacity"] == 10
        made._prefetch.look(1000)
        made._tell_capacity()  # nobody listens
        return None, Welcome(1, "here", 10.0, 30.0, 2**20)

    monkeypatch.setattr(made._dialer, "dial", dial)
    monkeypatch.setattr(service, "Connection", lambda *_, **__: told)
    async with anyio.create_task_group() as tasks:
        made._group = tasks
        tasks.start_soon(made._stay_connected)
        await anyio.wait_all_tasks_blocked()
        assert told.capacities == [250]
        made._tell_capacity()
        assert told.capacities == [250]
        made._prefetch.look(0)
        made._tell_capacity()
        made._start_draining()
        assert told.capacities == [250, 10, 0]
        assert made._hello()["capacity"] == 0
        tasks.cancel_scope.cancel()


async def test_progress_without_a_connection_waits(made: Service) -> None:
    attempt = running(made)
    made.progressed(attempt, "0.5")
    assert attempt.progress == "0.5"


async def test_a_second_reason_to_drain_changes_nothing(made: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    drained: list[float] = []

    async def drain() -> None:
        drained.append(1.0)

    monkeypatch.setattr(made, "_drain", drain)
    async with anyio.create_task_group() as tasks:
        made._group = tasks
        for _ in range(2):
            made._start_draining()
    assert len(drained) == 1


async def test_who_runs_apart_is_not_called_here(made: Service) -> None:
    """Though its handler process has a time limit for it: that begins when its cell has."""
    attempt = Attempt(Assignment(b"i" * 16, 1, "apart", "t", "{}", 2.5, 30.0), app.handlers["apart"], 0.0)
    attempt.isolated = True
    made._cells = wing = Wing()  # type: ignore[assignment]
    made.start([attempt])
    assert (wing.started, made._deadlines.next_s()) == ([attempt], None)


class Wing:
    def __init__(self) -> None:
        self.endings: list[Outcome] = []
        self.started: list[Attempt] = []
        self.failed: list[str] = []

    def start(self, attempt: Attempt) -> None:
        self.started.append(attempt)

    def cells_failed(self, reason: str) -> None:
        self.failed.append(reason)

    def ended_apart(self, attempt: Attempt, ending: Outcome, used: object) -> None:
        self.endings.append(ending)


@pytest.mark.parametrize("cause", ["stopped", "no zygote"])
def test_what_is_stopped_between_its_naming_and_its_start(cause: str) -> None:
    wing = Wing()
    cells = Cells(wing, None, options(), structlog.get_logger())  # type: ignore[arg-type]  # nothing is run here
    cells._zygote = None if cause == "no zygote" else object.__new__(ZygoteProcess)
    attempt = Attempt(Assignment(b"i" * 16, 1, "apart", "t", "{}", None, 30.0), app.handlers["apart"], 0.0)
    attempt.stopped = "canceled" if cause == "stopped" else None
    cells.start(attempt)
    assert wing.endings == [RELEASED]


class Dead:
    """A zygote that cannot load the app."""

    pid = 7
    said: tuple[object, ...] = (Failed("no module"), None)

    def __init__(self) -> None:
        self._left = [*self.said]

    async def receive(self) -> object:
        message = self._left.pop(0)
        return None if message is None else (message, [])

    def kill(self) -> None:
        """It is dead."""

    async def wait(self) -> int:
        return 1


async def test_a_zygote_that_dies_before_it_is_ready() -> None:
    """Those that wait for it fail, with its reason; no job is suspected."""
    wing = Wing()
    cells = Cells(wing, None, options(), structlog.get_logger())  # type: ignore[arg-type]  # nothing is run here
    await cells._live(Dead())  # type: ignore[arg-type]
    assert wing.failed == ["no module"]


class Run:
    def __init__(self) -> None:
        self.heard: list[object] = []

    def forked(self, pid: int, pidfd: int) -> None:
        self.heard.append((pid, pidfd))

    def refused(self, ending: Outcome) -> None:
        self.heard.append(ending)

    def ended(self, message: CellEnded) -> None:
        self.heard.append(message)


def test_what_a_zygote_says_of_a_cell() -> None:
    """It reaches that cell; what it says of one that is over changes nothing, and leaves no descriptor open."""
    cells = Cells(Wing(), None, options(), structlog.get_logger())  # type: ignore[arg-type]  # nothing is run here
    run = Run()
    cells._runs[1] = run  # type: ignore[assignment]
    pidfds = [os.pidfd_open(os.getpid()) for _ in range(2)]
    for number, pidfd in enumerate(pidfds, 1):
        cells._pass_on(Forked(number, 7), [pidfd])
        cells._pass_on(CellRefused(number, "no pids"), [])
        cells._pass_on(CellEnded(number, 0, 0.5, 4096), [])
    refused = Outcome("error", "no process could be started for it: no pids")
    assert run.heard == [(7, pidfds[0]), refused, CellEnded(1, 0, 0.5, 4096)]
    os.close(pidfds[0])
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(pidfds[1])


async def test_its_hello_has_what_its_queue_serves() -> None:
    """A handler of another queue's topic would be the default topic of jobs here, which nobody serves."""
    two = pulse.App()
    for name in ("here", "there"):
        two.handler(name, topic=name)(lambda: None)
    routes = Routes({name: Queue(name, f"/{name}") for name in ("here", "there")}, {"here": "here", "there": "there"})
    pool = PoolOptions(app="x:y", topics=PoolTopics(queue="here", routes=routes))
    reader, writer = os.pipe()
    service = Service(msgspec.structs.replace(options(), pool=pool), two, NoteWriter(writer), structlog.get_logger())
    hello = service._hello()
    assert (hello["topics"], hello["names"], hello["handlers"]) == (("here",), ["here"], {"here": {"topic": "here"}})
    for fd in (reader, writer):
        os.close(fd)
    service._waker._reader.close()
    service._waker._writer.close()
