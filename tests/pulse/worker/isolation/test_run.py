"""One isolated attempt, as its handler process sees it: a test plays zygote and cell, in every order of events."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from structlog.testing import CapturingLogger

from pulse.app.handler import make_handler
from pulse.app.outcome import DONE, RELEASED, Outcome, crashed
from pulse.app.workflows.receipt import Receipt
from pulse.protocol import Assignment
from pulse.system import processes
from pulse.worker.execution.attempt import Attempt, Phase
from pulse.worker.execution.server_reader import ServerReader
from pulse.worker.isolation import run
from pulse.worker.isolation.messages import (
    BadCellError,
    Begun,
    CellCheckpoint,
    CellEnded,
    CellFence,
    CellJob,
    CellProgress,
    CellReader,
    CellResult,
    CellStack,
    Interrupt,
    Lease,
    ToCell,
    frame,
    from_cell,
    to_cell,
)
from pulse.worker.isolation.rlimits import limited
from pulse.worker.isolation.run import CellRun
from tests.support.waiting import until_async

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Office:
    identity = "w"
    schema = "pulse"

    def __init__(self) -> None:
        self.said: list[object] = []
        self.ending: Outcome | None = None
        self.used: Mapping[str, object] = {}
        self.lost = False

    def has_heard_of_the_end(self) -> bool:
        return self.ending is not None

    def begun(self, attempt: Attempt) -> None:
        self.said.append("begun")

    def ended_apart(self, attempt: Attempt, ending: Outcome, used: Mapping[str, object]) -> None:
        assert self.ending is None, "it ended twice"
        self.ending, self.used = ending, used

    def lease_lost(self, attempt: Attempt) -> bool:
        return self.lost

    def fenced(self, attempt: Attempt, phase: str) -> None:
        """Cells tell of it themselves."""

    def progressed(self, attempt: Attempt, text: str) -> None:
        self.said.append(("progress", text))

    def checkpointed(self, attempt: Attempt, text: str, receipt: Receipt | None = None) -> None:
        self.said.append(("checkpoint", text) if receipt is None else ("saved", text))

    @property
    def reader(self) -> ServerReader:
        """Nobody asks here."""
        return ServerReader(None, None)


class Play:
    def __init__(self, grace_s: float, options: Mapping[str, Any]) -> None:
        handler = make_handler("n", lambda: None, isolate=True, **options)
        self.attempt = Attempt(Assignment(b"i" * 16, 1, "n", "t", "{}", 2.5, 30.0), handler, 0.0)
        self.attempt.phase = Phase.STARTED
        self.office = Office()
        self.log: Any = CapturingLogger()
        self.stuck = 0
        self.run = CellRun(self.attempt, self.office, self.log, lambda _: grace_s, self.is_stuck)
        channel_fd, _ = self.run.parts
        self.cell = socket.socket(fileno=os.dup(channel_fd))
        self.cell.setblocking(False)
        self.reader: CellReader[ToCell] = CellReader(to_cell)
        self.orders: list[ToCell] = []

    @property
    def events(self) -> list[str]:
        """What was logged."""
        return [one.args[0] for one in self.log.calls]

    def is_stuck(self) -> None:
        self.stuck += 1

    def say(self, *messages: Any) -> None:
        self.cell.send(b"".join(map(frame, messages)))

    def end(self, status: int = 0, cpu_s: float = 0.25) -> None:
        """As the zygote: the cell has ended."""
        self.run.ended(CellEnded(1, status, cpu_s, 4096))

    async def heard(self, kind: type[Any]) -> Any:
        with anyio.fail_after(5):
            while True:
                for order in self.orders:
                    if isinstance(order, kind):
                        self.orders.remove(order)
                        return order
                await anyio.wait_readable(self.cell)
                self.orders += self.reader.feed(self.cell.recv(65536))


@asynccontextmanager
async def play(*, grace_s: float = 0.02, **options: Any) -> AsyncIterator[Play]:
    """A run until its end, which the test must cause."""
    played = Play(grace_s, options)
    try:
        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                group.start_soon(played.run.run, None)
                yield played
    finally:
        played.cell.close()


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "60"])


async def test_from_work_to_result() -> None:
    """The cell gets the job; its messages are passed on; its result counts when it has ended, with its usage."""
    async with play() as it:
        assert (await it.heard(CellJob)).job == it.attempt.job
        it.say(
            Begun(), CellProgress("1"), CellCheckpoint("2"), CellCheckpoint("3", 1), CellResult("retry", (9.5, "later"))
        )
        await until_async(lambda: len(it.office.said) == 4, "four words")
        assert it.office.said == ["begun", ("progress", "1"), ("checkpoint", "2"), ("saved", "3")]
        assert not it.office.has_heard_of_the_end(), "its process has not ended"
        it.end()
    assert it.office.ending == Outcome("retry", (9.5, "later"))
    assert it.office.used == {"cpu_s": 0.25, "peak_rss_bytes": 4096}
    assert it.attempt.stack is None


async def test_last_words_are_heard() -> None:
    """Words just before its end count, though still unread, and with other holders of its socket."""
    async with play() as it:
        await it.heard(CellJob)
        it.say(Begun(), CellResult("ok", "1"))
        it.end(signal.SIGSEGV)
    assert it.office.ending == Outcome("ok", "1")
    assert it.office.said == ["begun"]


@pytest.mark.parametrize(("phases", "ending"), [
    (("commits", "completed"), DONE), (("commits",), crashed("SIGKILL", -9)), (("commits", ""), crashed("SIGKILL", -9)),
])  # fmt: skip
async def test_death_after_a_fenced_transaction(phases: Sequence[Any], ending: Outcome) -> None:
    """The job is completed however its process ends; if it died at the COMMIT, the server decides."""
    async with play() as it:
        assert (await it.heard(CellJob)).worker == "w"
        it.say(Begun(), *map(CellFence, phases))
        it.end(signal.SIGKILL)
    assert it.office.ending == ending


@pytest.mark.parametrize(("status", "ending"), [
    (0, crashed("exit code 0", 0)), (7 << 8, crashed("exit code 7", 7)), (signal.SIGSEGV, crashed("SIGSEGV", -11)),
    (signal.SIGXCPU, crashed("SIGXCPU", -24)),
])  # fmt: skip
async def test_death_without_result(status: int, ending: Outcome) -> None:
    async with play() as it:
        it.say(Begun())
        it.end(status)
    assert it.office.ending == ending


@pytest.mark.parametrize(("status", "cpu_s", "outcome"), [
    (signal.SIGXCPU, 2.9, "error"), (signal.SIGKILL, 3.0, "error"), (signal.SIGKILL, 2.9, "crash"),
    (signal.SIGSEGV, 9.0, "crash"),
])  # fmt: skip
async def test_death_at_the_processor_limit(status: int, cpu_s: float, outcome: str) -> None:
    """The limit is the handler's own error. Other deaths under a limit are crashes as ever."""
    async with play(max_cpu_s=2.5) as it:
        it.say(Begun())
        it.end(status, cpu_s)
    assert it.office.ending is not None
    assert it.office.ending.outcome == outcome
    assert outcome == "crash" or it.office.ending.detail == "used more than 2.5 s of CPU time"


@pytest.mark.parametrize(("kills", "how"), [("oom_kill 4\n", "out of memory (SIGKILL)"), ("oom_kill 3\n", "SIGKILL")])
async def test_death_by_want_of_memory(kills: str, how: str, tmp_path: Any) -> None:
    """SIGKILL is the kernel's where it has killed one of the group since the handler was called."""
    counts = tmp_path / "memory.events"
    counts.write_text("oom_kill 3\n")
    played = Play(0.02, {})
    async with anyio.create_task_group() as group:
        group.start_soon(played.run.run, processes.OomKills(counts, 1))
        played.say(Begun())
        await until_async(lambda: bool(played.office.said), "a word")
        counts.write_text(kills)
        played.end(signal.SIGKILL)
    assert played.office.ending == crashed(how, -9)
    played.cell.close()


@pytest.mark.parametrize(("reason", "ending"), [
    ("canceled", RELEASED), ("drain", RELEASED), ("timeout", Outcome("error", "timed out after 2.5 s")),
    ("stalled", Outcome("error", "stalled: no progress for 1.5 s")),
])  # fmt: skip
async def test_one_that_does_not_obey_ends_as_what_stopped_it(reason: Any, ending: Outcome) -> None:
    """First a request, then SIGKILL; its last place counts, its way to die does not."""
    async with play(stall_s=1.5) as it:
        it.say(Begun())
        await until_async(lambda: bool(it.office.said), "a word")
        it.attempt.stopped = reason
        it.run.cancel()
        assert (await it.heard(Interrupt)).reason == reason
        await until_async(lambda: "cell_killed" in it.events, "cell_killed")
        it.say(CellStack("here"))
        it.end(signal.SIGKILL)
    assert it.office.ending == ending
    assert it.attempt.stack == ("here" if reason in {"timeout", "stalled"} else None)


async def test_one_that_hangs_before_its_handler_is_called() -> None:
    """It does not listen yet: the signal for its stack would end it, so it gets no other request than to end."""
    process = sleeper()
    async with play() as it:
        it.run.forked(process.pid, os.pidfd_open(process.pid))
        assert await it.run.where() is None
        it.attempt.stopped = "timeout"
        it.run.cancel()
        await it.heard(Interrupt)
        assert process.poll() is None
        it.say(CellResult("release"))
        it.end()
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert it.office.ending == RELEASED


async def test_one_that_is_made_late() -> None:
    """The zygote may be busy: a cell that is made after its deadline is killed all the same."""
    process = sleeper()
    async with play() as it:
        it.attempt.stopped = "canceled"
        it.run.cancel()
        await until_async(lambda: "cell_killed" in it.events, "cell_killed")
        it.run.forked(process.pid, os.pidfd_open(process.pid))
        code = await anyio.to_thread.run_sync(process.wait)
        it.end(-code)
    assert code == -signal.SIGKILL
    assert it.office.ending == RELEASED


async def test_a_zygote_that_dies_beside_the_cell() -> None:
    """Both ends may be reported in the same moment: there is one end, and nothing is touched then."""
    process = sleeper()
    async with play() as it:
        it.run.forked(process.pid, os.pidfd_open(process.pid))
        it.say(Begun(), CellResult("ok", None))
        process.kill()
        it.end(process.wait() * -1)
        it.run.orphaned(crashed("SIGKILL", -9))
        it.cell.close()
    it.run.orphaned(crashed("SIGKILL", -9))
    assert it.office.ending == Outcome("ok", None)


async def test_a_living_orphan_is_killed() -> None:
    """The kernel ends it with its zygote; the run waits until it has seen that."""
    process = sleeper()
    async with play() as it:
        it.run.forked(process.pid, os.pidfd_open(process.pid))
        it.say(Begun())
        await until_async(lambda: bool(it.office.said), "a word")
        it.run.orphaned(crashed("SIGKILL", -9))
        await until_async(it.office.has_heard_of_the_end, "the end is told")
        assert process.wait() == -signal.SIGKILL
    assert it.office.ending == crashed("SIGKILL", -9)


async def test_one_that_obeys() -> None:
    async with play(grace_s=60.0) as it:
        it.attempt.stopped = "canceled"
        it.run.cancel()
        await it.heard(Interrupt)
        it.say(Begun(), CellResult("ok", '"all the same"'))
        it.end()
    assert it.office.ending == Outcome("ok", '"all the same"')
    assert it.events == []


async def test_a_lost_lease_is_told_once() -> None:
    async with play() as it:
        await it.heard(CellJob)
        it.office.lost = True
        it.run.look_at_lease()
        it.say(Begun())
        await until_async(lambda: bool(it.office.said), "a word")
        for lost in (True, True, False):
            it.office.lost = lost
            it.run.look_at_lease()
        assert [(await it.heard(Lease)).lost for _ in range(2)] == [True, False]
        assert it.orders == []
        it.end()


async def test_no_cell() -> None:
    async with play() as it:
        it.run.refused(Outcome("error", "no process"))
    assert it.office.ending == Outcome("error", "no process")
    assert it.office.used == {}


@pytest.mark.parametrize("began", [True, False])
async def test_a_zygote_that_dies(began: bool) -> None:
    """Started jobs end as decided; others are given back. Both once the cell has closed its end."""
    async with play() as it:
        await it.heard(CellJob)
        if began:
            it.say(Begun())
            await until_async(lambda: bool(it.office.said), "a word")
        it.run.orphaned(crashed("SIGKILL", -9))
        await anyio.wait_all_tasks_blocked()
        assert not it.office.has_heard_of_the_end(), "it may live yet"
        it.cell.close()
    assert it.office.ending == (crashed("SIGKILL", -9) if began else RELEASED)


async def test_a_zygote_that_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "BEGIN_S", 0.02)
    async with play() as it:
        await until_async(lambda: bool(it.stuck), "it is stuck")
        it.cell.close()
        it.run.orphaned(crashed("SIGKILL", -9))
    assert (it.office.ending, it.events) == (RELEASED, ["cell_stuck"])


async def test_one_that_stays_after_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "GONE_S", 0.02)
    victim = sleeper()
    async with play() as it:
        it.run.forked(victim.pid, os.pidfd_open(victim.pid))
        it.say(Begun(), CellResult("ok", None))
        code = await anyio.to_thread.run_sync(victim.wait)
        it.end(-code)
    assert code == -signal.SIGKILL
    assert it.office.ending == Outcome("ok", None)


async def test_junk_in_the_channel() -> None:
    """Neither junk nor anything behind it counts; and the process's end comes with that reason."""
    async with play() as it:
        it.say(Begun())
        it.cell.send(b"\0\0\0\4junk")
        await until_async(lambda: bool(it.events), "a line in the log")
        it.say(CellResult("ok", None))
        it.end()
    assert it.events == ["cell_not_understood"]
    how = "exit code 0 (it wrote into a descriptor that was not its own)"
    assert it.office.ending == crashed(how, 0)


def test_messages_survive_any_cut() -> None:
    sent = [Begun(), CellProgress("ä"), CellResult("crash", ("died", -9)), CellResult("snooze", 7.0)]
    stream = b"".join(map(frame, sent))
    for cut in range(len(stream)):
        reader = CellReader(from_cell)
        assert reader.feed(stream[:cut]) + reader.feed(stream[cut:]) == sent
    for junk in (b"\xff\xff\xff\xff", b"\0\0\0\1\xc1", b"\0\0\0\1\1"):
        with pytest.raises(BadCellError, match=r"malformed|Expected|too long"):
            CellReader(from_cell).feed(junk)


def test_a_handler_without_limits_is_called_as_it_is() -> None:
    handler = make_handler("n", lambda: None, isolate=True)
    assert limited(handler, -1) is handler


def test_more_memory_in_use_than_is_allowed() -> None:
    """The handler is not called, and no limit is set: nothing could be sent with it."""
    called: list[int] = []
    before = resource.getrlimit(resource.RLIMIT_AS)
    handler = make_handler("n", lambda: called.append(1), isolate=True, max_memory_bytes=2**20)
    with pytest.raises(MemoryError, match="max_memory_bytes is 1048576: before the handler runs, "):
        limited(handler, -1).function()
    assert (called, resource.getrlimit(resource.RLIMIT_AS)) == ([], before)
