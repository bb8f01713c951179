"""What a supervisor answers to a restart, and how it ends where it cannot begin; its children are small programs."""

from __future__ import annotations

import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
import structlog
import trio

from pulse.errors import ConflictError, EmbeddedError, NotFoundError
from pulse.protocol import ActorRequest
from pulse.system import processes
from pulse_supervisor.children.events import StopAsked, StopNow
from pulse_supervisor.children.lifecycle import EXIT_REFUSED
from pulse_supervisor.children.spec import ChildKind, ChildSpec, StopStep
from pulse_supervisor.runner import ChildRunner, ShutdownReason
from pulse_supervisor.slots import SupervisorIdentity
from pulse_supervisor.supervisor import EXIT_STOPPED, Plan, SupervisorRun, supervise
from pulse_supervisor.systemd.notify import Notifier
from tests.support.waiting import until_async

pytestmark = pytest.mark.process

NAME: Final = "pool"
END_S: Final = 20.0
AT_ONCE_S: Final = 1.0
_STAYS: Final = (StopStep(signal.SIGCONT, END_S),)  # until it must end at once
POOL: Final = ChildSpec(NAME, ChildKind.POOL, ("sleep", "60"), stop=_STAYS)


class Run(SupervisorRun):
    """Without sockets."""

    def __init__(self, plan: Plan, runner: ChildRunner) -> None:
        self._plan, self._settings = plan, plan.settings
        self._runner, self._reaper = runner, runner.reaper


def run(scene: Callable[[Run, ChildRunner], Awaitable[None]], **plan: Any) -> None:
    async def main() -> None:
        with trio.fail_after(END_S):
            async with begun(plan) as (its_run, runner):
                await scene(its_run, runner)

    trio.run(main)


@asynccontextmanager
async def begun(plan: dict[str, Any]) -> AsyncGenerator[tuple[Run, ChildRunner]]:
    async with trio.open_nursery() as nursery:
        identity = SupervisorIdentity("1", trio.current_time())
        runner = ChildRunner(identity, {}, nursery, Notifier({}), structlog.get_logger())
        runner.reaper.pause()  # other tests of this process have children, too
        nursery.start_soon(runner.keep_time)
        given = SimpleNamespace(**{"services": (), "actors": (), "pools": (), "settings": None, **plan})
        try:
            yield Run(cast("Plan", given), runner), runner
        finally:
            for name in runner.slots:
                runner.feed(name, StopNow())
            await runner.wait_until(lambda: runner.are_gone([*runner.slots]))
            nursery.cancel_scope.cancel()


def test_a_restart_of_a_child_that_is_not_there() -> None:
    async def scene(asked: Run, runner: ChildRunner) -> None:
        runner.start(POOL)
        with pytest.raises(NotFoundError, match=f"there is no actor pol; there are {NAME}"):
            await asked._restart(ActorRequest("pol"))

    run(scene)


@pytest.mark.parametrize("everything", [False, True])
def test_a_restart_while_it_stops(everything: bool) -> None:
    """This child, or all of them."""

    async def scene(asked: Run, runner: ChildRunner) -> None:
        runner.start(POOL)
        if everything:
            runner.stop(ShutdownReason(EXIT_STOPPED))
        else:
            runner.feed(NAME, StopAsked())
        with trio.fail_after(AT_ONCE_S), pytest.raises(ConflictError, match="it cannot be restarted now"):
            await asked._restart(ActorRequest(NAME))

    run(scene)


def test_a_restart_of_a_child_that_has_to_stop_meanwhile() -> None:
    async def scene(asked: Run, runner: ChildRunner) -> None:
        runner.start(POOL)

        async def restart() -> None:
            with pytest.raises(ConflictError, match="pool was stopped for good meanwhile"):
                await asked._restart(ActorRequest(NAME))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(restart)
            await until_async(lambda: runner.slots[NAME].state.again, "it is to start again")
            runner.feed(NAME, StopAsked())
            runner.feed(NAME, StopNow())

    run(scene)


def test_an_embedded_database_that_cannot_be_prepared() -> None:
    """Nothing else is started, and the error is the supervisor's last word."""

    def refuse() -> None:
        raise EmbeddedError("no room on the disk")

    async def scene(asked: Run, runner: ChildRunner) -> None:
        await asked._start()
        assert runner.shutdown == ShutdownReason(EXIT_REFUSED, "no room on the disk")
        assert not runner.slots

    run(scene, make_database=refuse, pools=[POOL])


def test_a_kernel_that_gives_no_orphans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "adopt_orphans", lambda: False)
    plan, notifier = cast("Plan", None), Notifier({})
    with pytest.raises(OSError, match="the kernel gives no orphans"):
        trio.run(supervise, plan, notifier, structlog.get_logger())
