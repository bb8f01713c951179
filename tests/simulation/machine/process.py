"""
Processes inside of one trio run: their code does not run while they are stopped, and has no effect once they are dead.

All tasks that a process starts, in however many nurseries, belong to it: by a context variable, which tasks inherit.
Trio resumes a task by sending to its coroutine; here the coroutine sits behind a gate, which is closed while the
process is stopped. What reaches a stopped task (an event, a timeout) waits at the gate, as it does in the kernel.

A process that is killed is unwound, since trio has no other way to be rid of its tasks, but its sockets are closed, its
statements are not sent and its logs are dropped from the moment of its death on.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NoReturn

import outcome
import trio
from trio._core._traps import WaitTaskRescheduled

if TYPE_CHECKING:
    from tests.simulation.machine.machine import Machine
    from tests.simulation.machine.wire import End

MAX_STEPS: Final = 60_000  # of one run: something turns in circles without time going on

PROCESS: ContextVar[Process] = ContextVar("process")


class Process:
    """
    A simulated process.

    Args:
        start_time: In ticks since the machine's start; with the pid it names the process for good.
        parent: It dies with its parent, if it has one.
        leads_group: It leads a process group of its own.

    Attributes:
        busy: A handler holds the interpreter: no Python code of others runs, but it is not stopped for the kernel.
        dead: It has ended; ``status`` as waitpid returns it.
        killer: Who sent the SIGKILL.
        impaired_s: When something last kept it from running.
        leaks: A child of it holds its sockets open when it is dead.
        leaving: It got a SIGTERM, or has said goodbye.
    """

    def __init__(
        self,
        machine: Machine,
        name: str,
        pid: int,
        start_time: int,
        *,
        uid: int,
        pidns: int,
        parent: Process | None,
        leads_group: bool,
    ) -> None:
        self.machine = machine
        self.name = name
        self.pid = pid
        self.start_time = start_time
        self.uid = uid
        self.pidns = pidns
        self.parent = parent
        self.leads_group = leads_group
        self.stopped = False
        self.busy = False
        self.dead = False
        self.reaped = False
        self.status: int | None = None
        self.killer: Process | None = None
        self.leaks = False
        self.leaving = False
        self.on_term: Callable[[], None] | None = None
        self.on_end: Callable[[], None]
        self.began_s = self.impaired_s = trio.current_time()
        self.died_s = float("inf")
        self.died = trio.Event()
        self.scope = trio.CancelScope()
        self.ends: list[End] = []
        self._gate: list[trio.lowlevel.Task] = []

    def __repr__(self) -> str:
        return f"{self.name}[{self.pid}]"

    @property
    def frozen(self) -> bool:
        return (self.stopped or self.busy) and not self.dead

    @property
    def state(self) -> str:
        if self.dead:
            return "" if self.reaped else "Z"
        return "T" if self.stopped else "R" if self.busy else "S"

    def freeze(self, *, stopped: bool | None = None, busy: bool | None = None) -> None:
        """Close the gate, or open it when nothing keeps it closed any more."""
        self.stopped = self.stopped if stopped is None else stopped
        self.busy = self.busy if busy is None else busy
        self.impaired_s = trio.current_time()
        if not self.frozen:
            self.thaw()

    def thaw(self) -> None:
        gate, self._gate = self._gate, []
        for task in gate:
            trio.lowlevel.reschedule(task)

    def hold_back(self, task: trio.lowlevel.Task) -> None:
        self._gate.append(task)

    def exit(self, status: int) -> None:
        self.machine.bury(self, status)

    def exit_by(self, number: signal.Signals) -> None:
        """End by a fault of its own, or by the kernel's OOM killer."""
        self.machine.bury(self, int(number))


class Gated:
    """A coroutine behind its process's gate."""

    __slots__ = ("_coroutine", "_process", "_started", "_task", "_trap", "_waiting", "_what")
    steps = 0

    def __init__(self, task: trio.lowlevel.Task, process: Process) -> None:
        self._coroutine = task.coro
        self._task = task
        self._process = process
        self._started = False
        self._trap: object = None
        self._waiting = False
        self._what: Any = None

    def send(self, value: Any) -> object:
        if self._waiting:
            value, self._waiting, self._what = self._what, False, None
        if self._process.frozen:
            self._waiting, self._what = True, value
            self._process.hold_back(self._task)
            return WaitTaskRescheduled(_stay)
        if self._process.dead and not isinstance(value, outcome.Error):
            if not self._started:
                return self._never()
            if self._can_be_cancelled():
                self._trap = None
                return WaitTaskRescheduled(lambda _: trio.lowlevel.Abort.SUCCEEDED)  # only the cancellation's own step
        self._started = True
        Gated.steps += 1
        if Gated.steps == MAX_STEPS:
            self._process.machine.world.judge.fail(f"{self._process} turns in circles in {self._task.name}")
        self._trap = self._coroutine.send(value)
        return self._trap

    def _never(self) -> NoReturn:
        """It was to begin after the end of its process."""
        with contextlib.suppress(GeneratorExit):
            self._coroutine.throw(GeneratorExit)  # to close it would warn that it was never awaited
        raise StopIteration

    def _can_be_cancelled(self) -> bool:
        """Whether a cancellation is possible here; at the end of a nursery it is not."""
        if type(self._trap) is not WaitTaskRescheduled or not self._task._cancel_status.effectively_cancelled:
            return False
        return "Nursery" not in self._trap.abort_func.__qualname__

    def throw(self, *error: Any) -> object:
        """Resume it with an error, unless trio did not cause it."""
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coroutine, name)  # for who looks at a task's state


def _stay(_raise_cancel: Callable[[], outcome.Outcome[object]]) -> trio.lowlevel.Abort:
    """A cancellation does not open the gate; the task gets it when it goes on."""
    return trio.lowlevel.Abort.FAILED


class Gatekeeper(trio.abc.Instrument):
    """Puts a gate before every task of every process."""

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        process = task.context.get(PROCESS)
        if process is not None:
            task.coro = Gated(task, process)  # type: ignore[assignment] # pyright: ignore[reportAttributeAccessIssue]


def current() -> Process:
    return PROCESS.get()
