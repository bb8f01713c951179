"""A simulated machine: its kernel's book of processes, pidfds and signals, and the one socket that pulse listens on."""

from __future__ import annotations

import errno
import os
import signal
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final
from uuid import UUID

import trio

from tests.simulation.machine.process import PROCESS, Process
from tests.simulation.machine.wire import End, Link

if TYPE_CHECKING:
    from pulse_actors.shared.epoch_memory import Memory
    from tests.simulation.world import World

FIRST_PID: Final = 100
PIDS: Final = 40  # then they are used again
TICKS_PER_S: Final = 100
FIRST_FD: Final = 5000  # no real descriptor of the process that simulates
OWN_UID: Final = 1000  # pulse's own user; it may not signal others

Main = Callable[[Process], Awaitable[int]]


def _nothing() -> None:
    """Nobody waits for its end."""


class Machine:
    """One machine; *kills_groups*: its workers lead process groups, which the kernel kills with them."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.boots = 0
        self.pidns = 4026531836  # the same number everywhere: it is the initial one
        self.processes: dict[int, Process] = {}
        self.up_since_s = trio.current_time()
        self._pid = FIRST_PID
        self._fds: dict[int, tuple[Process, Process]] = {}  # the opened process, and the opener
        self._fd = FIRST_FD
        self._leaked: dict[Process, list[End]] = {}
        self.state_dir: dict[UUID, Memory] = {}  # what dispatchers keep there
        self.cut_off = False  # from the database
        self.cut_off_s = float("-inf")  # when that was last so
        self.backlog: deque[End] = deque()
        self.arrived = trio.Event()

    @property
    def boot_id(self) -> str:
        return f"{self.name}{self.boots:04}".encode().hex().ljust(32, "0")

    # Processes.

    def spawn(
        self,
        name: str,
        main: Main,
        *,
        uid: int = OWN_UID,
        pidns: int | None = None,
        parent: Process | None = None,
        leads_group: bool = False,
        on_end: Callable[[], None] = _nothing,
    ) -> Process:
        while self._pid in self.processes and not self.processes[self._pid].reaped:
            self._pid = FIRST_PID + (self._pid + 1 - FIRST_PID) % PIDS
        start_time = int((trio.current_time() - self.up_since_s) * TICKS_PER_S) + 1
        older = self.processes.get(self._pid)
        if older is not None:
            start_time = max(start_time, older.start_time + 1)
        process = Process(
            self, f"{self.name}/{name}", self._pid, start_time, uid=uid, pidns=self.pidns if pidns is None else pidns,
            parent=parent, leads_group=leads_group,
        )  # fmt: skip
        process.on_end = on_end
        self.processes[self._pid] = process
        self._pid = FIRST_PID + (self._pid + 1 - FIRST_PID) % PIDS
        token = PROCESS.set(process)
        try:
            self.world.nursery.start_soon(self._run, process, main)
        finally:
            PROCESS.reset(token)
        return process

    async def _run(self, process: Process, main: Main) -> None:
        status = 0
        try:
            with process.scope:
                status = await main(process)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not end anything but this process
            status = 1 << 8
            if not process.dead:
                self.world.judge.broke(process, error)
        self.bury(process, status)

    def bury(self, process: Process, status: int) -> None:
        if process.dead:
            return
        process.dead, process.status = True, status
        process.died_s = trio.current_time()
        self.world.trace("dies", process, status=status)
        chance = self.world.chance
        if process.leaks:
            self._leaked[process] = process.ends
            self.world.timers.after(chance.uniform(1.0, 10.0), lambda: self.kill_left(process))
        else:
            _shut(process.ends)
        self._fds = {fd: pair for fd, pair in self._fds.items() if pair[1] is not process}
        process.scope.cancel()
        process.thaw()
        process.died.set()
        self.world.judge.died(process)
        process.on_end()
        if chance.random() < 0.5:
            process.reaped = True
        else:
            self.world.timers.after(chance.uniform(0.0, 3.0), lambda: setattr(process, "reaped", True))
        for child in list(self.processes.values()):
            if child.parent is process:
                self.bury(child, int(signal.SIGKILL))

    def signal(self, process: Process, number: int, by: Process | None) -> None:
        if process.dead or not number:
            return
        self.world.trace("signal", process, number=signal.Signals(number).name, by=by)
        if number == signal.SIGKILL:
            process.killer = by
            self.bury(process, number)
        elif number == signal.SIGSTOP:
            process.freeze(stopped=True)
        elif number == signal.SIGCONT:
            process.freeze(stopped=False)
        elif number == signal.SIGTERM and process.on_term is not None:
            process.on_term()

    def reboot(self) -> None:
        for process in list(self.processes.values()):
            process.leaks = False
            self.kill_left(process)
            self.bury(process, int(signal.SIGKILL))
        for end in self.backlog:
            end.shut()
        self.backlog.clear()
        self.processes.clear()
        self._fds.clear()
        self.boots += 1
        self.up_since_s = trio.current_time()

    # What the kernel is asked.

    def look_up(self, pid: int) -> Process | None:
        process = self.processes.get(pid)
        return None if process is None or process.reaped else process

    def open_pidfd(self, process: Process) -> int:
        self._fd += 1
        self._fds[self._fd] = process, PROCESS.get()
        return self._fd

    def of_pidfd(self, fd: int) -> Process:
        try:
            return self._fds[fd][0]
        except KeyError:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF)) from None

    def close(self, fd: int) -> None:
        if self._fds.pop(fd, None) is None and not PROCESS.get().dead:
            self.world.judge.fail(f"descriptor {fd} was closed twice, or never open")

    def open_pidfds(self, owner: Process) -> int:
        return sum(one is owner for _, one in self._fds.values())

    def kill_group(self, pid: int) -> None:
        for leader in [one for one in self._leaked if one.pid == pid and one.leads_group]:
            self.kill_left(leader)
        process = self.look_up(pid)
        if process is None:
            raise ProcessLookupError
        self.signal(process, signal.SIGKILL, PROCESS.get(None))

    def kill_left(self, process: Process) -> None:
        _shut(self._leaked.pop(process, []))

    def kill_marked(self, mark: str) -> int:
        return self._kill_leaked(lambda process: process.name == mark)

    def kill_orphans(self) -> int:
        return self._kill_leaked(lambda process: process.parent is not None and process.parent.dead)

    def _kill_leaked(self, condemned: Callable[[Process], bool]) -> int:
        found = [process for process in self._leaked if condemned(process)]
        for process in found:
            self.kill_left(process)
        return len(found)

    # The socket.

    def connect(self, process: Process) -> End:
        """A connection to the listener, also to a future one: the supervisor keeps the socket open."""
        link = Link(self.world, process)
        self.world.trace("connects", process, link=link.number)
        self.backlog.append(link.server)
        self.arrived.set()
        return link.client

    async def accept(self) -> End:
        while not self.backlog:
            self.arrived = trio.Event()
            await self.arrived.wait()
        await trio.lowlevel.checkpoint()
        if not self.backlog:
            return await self.accept()
        end = self.backlog.popleft()
        end.belong(PROCESS.get())
        return end


def _shut(ends: list[End]) -> None:
    for end in list(ends):
        end.shut()
