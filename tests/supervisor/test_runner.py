"""The runner and its effects; and the embedded PostgreSQL, whose start takes a while: what may happen meanwhile."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import pytest
import structlog
import trio
from structlog.testing import capture_logs

from pulse.system.restart_policy import Restart
from pulse_supervisor.children.events import Briefed, BusBroken, SendStart, SendStop, StopAsked
from pulse_supervisor.children.lifecycle import ChildPhase, ChildState
from pulse_supervisor.children.process import ChildProcess, start
from pulse_supervisor.children.spec import POSTGRES_STOP, ChildKind, ChildSpec, actor
from pulse_supervisor.children.template import ActorTemplate
from pulse_supervisor.runner import ChildRunner
from pulse_supervisor.slots import ChildSlot, SupervisorIdentity
from pulse_supervisor.systemd.notify import Notifier
from tests.support.waiting import is_alive, until_async

if TYPE_CHECKING:
    from pulse_supervisor.bus.link import BusLink
    from pulse_supervisor.postgres.child import PostgresChild

pytestmark = pytest.mark.process

NAME: Final = "postgres"
END_S: Final = 20.0


class Unready:
    """Prepares each start until ``settled``, and is never ready; notes which processes it was asked about."""

    start_s = 2 * END_S

    def __init__(self) -> None:
        self.settling = trio.Event()
        self.settled = threading.Event()
        self.asked: list[int] = []

    def settle(self) -> None:
        trio.from_thread.run_sync(self.settling.set)
        self.settled.wait(END_S)

    def is_ready(self, pid: int) -> bool:
        self.asked.append(pid)
        return False

    def judge(self, exited: object) -> object:
        return exited


def run(database: Unready, words: tuple[str, ...], scene: Callable[[ChildRunner], Awaitable[None]]) -> None:
    async def main() -> None:
        with trio.fail_after(END_S):
            async with running(database, words) as runner:
                await scene(runner)

    trio.run(main)


@asynccontextmanager
async def running(database: Unready, words: tuple[str, ...]) -> AsyncGenerator[ChildRunner]:
    """The child is a program with these *words*, and stops at the end."""
    async with trio.open_nursery() as nursery:
        identity = SupervisorIdentity("1", trio.current_time())
        runner = ChildRunner(identity, {}, nursery, Notifier({}), structlog.get_logger())
        runner.reaper.pause()  # other tests of this process have children, too
        nursery.start_soon(runner.keep_time)
        runner.start(ChildSpec(NAME, ChildKind.DATABASE, words, stop=POSTGRES_STOP), cast("PostgresChild", database))
        yield runner
        runner.feed(NAME, StopAsked())
        await runner.wait_until(lambda: runner.are_gone([NAME]))
        await until_async(lambda: len(nursery.child_tasks) == 1, "only the clock goes on")
        nursery.cancel_scope.cancel()


def test_what_was_stopped_while_it_was_prepared_is_not_started(tmp_path: Path) -> None:
    database = Unready()

    async def scene(runner: ChildRunner) -> None:
        await database.settling.wait()
        runner.feed(NAME, StopAsked())
        database.settled.set()
        assert runner.slots[NAME].state.phase is ChildPhase.STOPPED

    run(database, ("touch", str(tmp_path / "started")), scene)
    assert database.asked == []
    assert not (tmp_path / "started").exists()


def test_what_could_not_be_started_is_not_waited_for() -> None:
    database = Unready()
    database.settled.set()

    async def scene(runner: ChildRunner) -> None:
        await runner.wait_until(lambda: runner.slots[NAME].state.restarts > 1)

    run(database, ("/no/such/program",), scene)
    assert database.asked == []


def test_nobody_waits_for_a_process_that_has_ended(tmp_path: Path) -> None:
    """Only for the next one."""
    database = Unready()
    database.settled.set()
    once = f"test -e {tmp_path}/once && exec sleep 60; touch {tmp_path}/once"

    async def scene(_runner: ChildRunner) -> None:
        await until_async(lambda: len(set(database.asked)) > 1, "a second process")
        second = database.asked[-1]
        begun = database.asked.index(second)
        await until_async(lambda: len(database.asked) > begun + 20, "many looks")
        assert set(database.asked[begun:]) == {second}

    run(database, ("sh", "-c", once), scene)


def of_an_actor(scene: Callable[[ChildRunner, ChildSlot, list[Any]], None]) -> None:
    """With a slot whose bus notes what is sent."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            runner = ChildRunner(SupervisorIdentity("1", 0.0), {}, nursery, Notifier({}), structlog.get_logger())
            sent: list[Any] = []
            link = SimpleNamespace(send_nowait=lambda *words: sent.append(words), brief_nowait=sent.append)
            slot = ChildSlot(actor("pause"), link=cast("BusLink", link))
            runner.slots["pause"] = slot
            scene(runner, slot, sent)

    trio.run(main)


def while_it_is_forked(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], meanwhile: Callable[[ChildRunner, int], Awaitable[None]]
) -> ChildSlot:
    """The slot of an actor that is a program of *words*; *meanwhile* is called before the runner knows its pid."""
    found: list[ChildSlot] = []
    runner = cast("ChildRunner", None)

    async def forked(_template: ActorTemplate, _child: ChildSpec, _shared: object) -> ChildProcess:
        process = start(words, [], {}, None)
        await meanwhile(runner, process.pid)
        return process

    monkeypatch.setattr(ActorTemplate, "spawn", forked)

    async def main() -> None:
        nonlocal runner
        with trio.fail_after(END_S):
            async with trio.open_nursery() as nursery:
                runner = ChildRunner(SupervisorIdentity("1", 0.0), {}, nursery, Notifier({}), structlog.get_logger())
                runner.start(msgspec.structs.replace(actor("pause"), restart=Restart.TEMPORARY))
                await runner.wait_until(lambda: runner.are_gone(["pause"]))
                await until_async(lambda: not nursery.child_tasks, "nothing goes on")
        found.append(runner.slots["pause"])

    trio.run(main)
    return found[0]


def test_an_actor_that_dies_before_it_is_known_is_no_orphan(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reaper leaves it to the runner, which learns how it ended."""

    async def look(runner: ChildRunner, pid: int) -> None:
        await until_async(lambda: not is_alive(pid), "it has ended")
        runner.reaper.reap_orphans()

    with capture_logs() as logged:
        while_it_is_forked(monkeypatch, ("false",), look)
    assert [one["how"] for one in logged if one["event"] == "child_exited"] == ["exit code 1"]


def test_an_actor_that_must_stop_before_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is killed."""
    pids: list[int] = []

    async def stop(runner: ChildRunner, pid: int) -> None:
        pids.append(pid)
        runner.feed("pause", StopAsked())

    slot = while_it_is_forked(monkeypatch, ("sleep", "60"), stop)
    assert slot.process is None
    assert not is_alive(pids[0])


def test_settings_are_sent_as_soon_as_they_are_there() -> None:
    def scene(runner: ChildRunner, slot: ChildSlot, sent: list[Any]) -> None:
        assert runner._carry_out(slot, SendStart(boot=True)) is None
        assert sent == []
        runner.brief({"dsn": "x"})
        assert runner._carry_out(slot, SendStart(boot=False)) == Briefed()
        assert sent == [{"settings": {"dsn": "x"}, "boot": False, "embedded": False}]

    of_an_actor(scene)


def test_an_actor_is_told_that_the_database_is_embedded() -> None:
    """Then it upgrades the schema: nobody else does."""

    def scene(runner: ChildRunner, slot: ChildSlot, sent: list[Any]) -> None:
        runner.slots["postgres"] = ChildSlot(actor("postgres"), cast("PostgresChild", Unready()))
        runner.brief({"dsn": "x"})
        assert runner._carry_out(slot, SendStart(boot=True)) == Briefed()
        assert sent == [{"settings": {"dsn": "x"}, "boot": True, "embedded": True}]

    of_an_actor(scene)


def test_an_actor_is_asked_to_stop_on_its_bus() -> None:
    def scene(runner: ChildRunner, slot: ChildSlot, sent: list[Any]) -> None:
        runner._carry_out(slot, SendStop(5.0))
        assert sent == [("stop", None, {"grace_s": 5.0})]

    of_an_actor(scene)


def test_a_fault_of_a_child_is_logged() -> None:
    def scene(runner: ChildRunner, slot: ChildSlot, _sent: list[Any]) -> None:
        slot.state = ChildState(ChildPhase.RUNNING, pid=7)
        with capture_logs() as logged:
            runner.feed("pause", BusBroken("nonsense"))
        assert [(one["event"], one["log_level"], one["pid"]) for one in logged] == [("child_faulty", "error", 7)]

    of_an_actor(scene)


@pytest.mark.parametrize("in_a_hurry", [False, True])
def test_who_has_time_is_asked_before_it_is_killed(in_a_hurry: bool) -> None:
    def scene(runner: ChildRunner, slot: ChildSlot, sent: list[Any]) -> None:
        slot.state = ChildState(ChildPhase.RUNNING, pid=7)
        if in_a_hurry:
            runner.hurry()
        runner.ask_to_stop("pause")
        assert slot.state.phase is ChildPhase.STOPPING
        assert [word for word, *_ in sent] == ([] if in_a_hurry else ["stop"])

    of_an_actor(scene)
