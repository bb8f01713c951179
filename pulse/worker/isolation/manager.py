"""
Runs isolated jobs in cells: processes of their own, forked by a zygote.

The first such job starts the zygote; only these jobs wait until it has loaded the app. When it dies, its cells die with
it, and the next such job starts it again. Attempts that had begun are given back, uncharged, since any of them may be
the cause; but a single one is charged with a crash. To find the job that kills zygotes, cells run one at a time after
such a death, until enough of them in a row have ended well. Waiting jobs are not reported as started meanwhile, except
those that were reported together with the running one: they wait briefly for their turn, and are given back if it does
not come.
"""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

import anyio
import msgspec
from anyio.abc import TaskGroup

from pulse.app.outcome import RELEASED, Outcome, crashed
from pulse.app.tracing import Spans
from pulse.system import process_tree, processes
from pulse.system.failure_log import Log
from pulse.system.fork import receive
from pulse.system.restart_policy import Intensity, RestartLog
from pulse.worker.execution.attempt import Attempt
from pulse.worker.isolation.messages import (
    MESSAGE_MAX_BYTES,
    CellEnded,
    CellRefused,
    Failed,
    Fork,
    Forked,
    FromZygote,
    Ready,
    from_zygote,
    pack,
)
from pulse.worker.isolation.run import CellRun, CellRunOwner
from pulse.worker.options import HostOptions, PoolTopics, ZygoteOptions
from pulse.worker.pool.restart import RESTART_DELAY

__all__ = ["Cells", "CellsOwner"]

DRAIN_OBEY_S: Final = 1.5  # at the end of a drain, before the handler process itself must end
CAREFUL_CELLS: Final = 20  # in a row, one at a time: usually more than ran when the zygote died
TURN_S: Final = 1.0  # how long a reported job may wait; less than the server's slack, since its time counts already


class ZygoteProcess:
    """The process that makes cells; see ``pulse.worker.isolation.zygote``."""

    def __init__(self, options: HostOptions) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        pool = msgspec.structs.replace(options.pool, topics=PoolTopics())  # which may be long, and tell it nothing
        told = ZygoteOptions(pool=pool, name=options.name, parent_pid=os.getpid(), control_fd=theirs.fileno())
        command = [sys.executable, "-m", "pulse.worker.isolation.zygote", msgspec.json.encode(told).decode()]
        tree = process_tree.mark_of(os.getpid())
        self._mark: Final = process_tree.new_mark() if tree is None else process_tree.branch_of(tree)
        env = {**os.environ, process_tree.MARK: self._mark}
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=env,
                cwd=options.directory,  # handlers may have left it, for one that is removed
            )
        except OSError:
            self._control.close()
            raise
        finally:
            theirs.close()
        self.pid: Final = self._process.pid
        self._pidfd = os.pidfd_open(self.pid)
        self._sending = anyio.Lock()

    async def send(self, message: Fork, fds: Sequence[int]) -> bool:
        """Ask for a cell; False: the zygote has died."""
        async with self._sending:
            while True:
                try:
                    socket.send_fds(self._control, [pack(message)], fds)
                except BlockingIOError:
                    await anyio.wait_writable(self._control)
                except OSError:
                    return False
                else:
                    return True

    async def receive(self) -> tuple[FromZygote, list[int]] | None:
        """The next message and its descriptors; None: the zygote has died, or is ending."""
        while True:
            await anyio.wait_readable(self._control)
            try:
                data, fds = receive(self._control, MESSAGE_MAX_BYTES, 1)
                return (from_zygote.decode(data), fds) if data else None
            except BlockingIOError:
                continue
            except (OSError, msgspec.MsgspecError):  # it is gone, or the app writes into its socket
                return None

    def kill(self) -> None:
        """End it, and its cells with it."""
        if self._process.returncode is None:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    async def wait(self) -> int:
        """Its exit code, negative for a signal; afterwards its cells and all their processes have ended, too."""
        await anyio.wait_readable(self._pidfd)
        await process_tree.end_tree(self._mark)  # before anything is tried again
        return self._process.wait()

    def close(self) -> None:
        """End it, if it lives, and close its descriptors."""
        self.kill()
        self._process.wait()
        self._control.close()
        os.close(self._pidfd)


class _CellWaiter:
    """The ``Task`` of an attempt that waits until no other cell runs."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt: Final = attempt
        self.over: Final = anyio.Event()

    def cancel(self) -> None:
        """Stop waiting."""
        self.over.set()

    def get_coro(self) -> object:
        """It has none."""
        return None


class CellsOwner(CellRunOwner, Protocol):
    """The owner of the cells."""

    def cells_ready(self) -> None:
        """Cells can be made from now on."""

    def cells_gone(self) -> None:
        """No cells can be made at the moment."""

    def cells_failed(self, reason: str) -> None:
        """No cells can be made: attempts that wait for one fail."""

    def waits_for_cells(self) -> bool:
        """Whether attempts wait for cells."""
        ...


class Cells:
    """
    The cells of one handler process.

    Args:
        owner: Their owner.
        group: Outlives every handler.
        tracing: Makes spans of attempts; None: tracing is off.
    """

    def __init__(
        self, owner: CellsOwner, group: TaskGroup, options: HostOptions, log: Log, tracing: Spans | None = None
    ) -> None:
        self._owner = owner
        self._tracing = tracing
        self._group = group
        self._options = options
        self._log = log
        self._zygote: ZygoteProcess | None = None
        self._oom: processes.OomKills | None = None
        self._kept = False
        self._runs: dict[int, CellRun] = {}
        self._careful = 0  # so many cells must still run alone
        self._turns: deque[_CellWaiter] = deque()
        self._numbers = itertools.count(1)
        self._restarts = RestartLog()

    def make(self) -> None:
        """Attempts wait for cells: start a zygote if there is none."""
        if not self._kept:
            self._kept = True
            self._group.start_soon(self._keep)

    def start(self, attempt: Attempt) -> None:
        """Run the attempt in a cell; ``ended_apart`` follows exactly once."""
        zygote = self._zygote
        if zygote is None or attempt.stopped is not None:  # that came after it was reported as started
            self._owner.ended_apart(attempt, RELEASED, {})
        elif self._careful and self._runs:
            turn = _CellWaiter(attempt)
            attempt.task, attempt.begun = turn, True
            self._turns.append(turn)
            self._group.start_soon(self._wait, turn)
        else:
            self._run(zygote, attempt)

    def look_at_leases(self) -> None:
        """Tell the cells whose lease was lost, or renewed."""
        for run in self._runs.values():
            run.look_at_lease()

    def _grace_s(self, reason: str) -> float:
        grace_s = self._options.pool.obey_s  # the server waits a little longer before it kills the whole process
        return min(grace_s, DRAIN_OBEY_S) if reason == "drain" else grace_s

    def _run(self, zygote: ZygoteProcess, attempt: Attempt) -> None:
        try:
            run = CellRun(
                attempt,
                self._owner,
                self._log,
                grace_s=self._grace_s,
                zygote_is_stuck=zygote.kill,
                tracing=self._tracing,
            )
        except OSError as error:
            self._owner.ended_apart(attempt, _impossible(str(error)), {})
            return
        attempt.task, attempt.begun = run, True
        number = next(self._numbers)
        self._runs[number] = run
        if self._careful:
            self._owner.cells_gone()  # attempts that are not reported yet need not wait here
        self._group.start_soon(self._see_through, zygote, number, run)

    async def _see_through(self, zygote: ZygoteProcess, number: int, run: CellRun) -> None:
        if not await zygote.send(Fork(number), run.parts) and self._zygote is not zygote:
            run.refused(RELEASED)  # it has died, and its cells were handled already
        await run.run(self._oom)
        del self._runs[number]
        if self._careful:
            self._go_on(zygote)

    def _go_on(self, zygote: ZygoteProcess) -> None:
        """A cell that ran alone has ended: start the next ones."""
        if self._zygote is zygote:
            self._careful -= 1
        while self._turns and not (self._careful and self._runs):
            self.start(self._turns.popleft().attempt)
        if self._zygote is not None and not (self._careful and self._runs):
            self._owner.cells_ready()

    async def _wait(self, turn: _CellWaiter) -> None:
        with anyio.move_on_after(TURN_S):
            await turn.over.wait()
        if turn in self._turns:  # its turn has not come
            self._turns.remove(turn)
            self._owner.ended_apart(turn.attempt, RELEASED, {})

    async def _keep(self) -> None:
        """Keep a zygote running as long as attempts wait for cells."""
        while self._owner.waits_for_cells():
            log = self._restarts = self._restarts.record(time.monotonic(), Intensity())
            if len(log.at_s) > 1:
                await anyio.sleep(RESTART_DELAY.after(log.earlier))
            await self._keep_one()
        self._kept = False

    async def _keep_one(self) -> None:
        try:
            zygote = ZygoteProcess(self._options)
        except OSError as error:
            self._log.warning("zygote_died", how=str(error))
            self._owner.cells_failed(str(error))
            return
        try:
            await self._live(zygote)
        finally:
            zygote.close()

    async def _live(self, zygote: ZygoteProcess) -> None:
        reason = ""
        while (received := await zygote.receive()) is not None:
            match received:
                case (Ready(), _):
                    self._log.info("zygote_ready", pid=zygote.pid)
                    self._zygote, self._oom = zygote, processes.oom_kills(zygote.pid)
                    self._owner.cells_ready()
                case (Failed(reason), _):
                    pass
                case (message, fds):
                    self._pass_on(message, fds)
        was_ready, runs = self._zygote is not None, list(self._runs.values())
        self._zygote = None
        if was_ready:
            self._owner.cells_gone()
        zygote.kill()  # it may only have closed its socket
        code = await zygote.wait()
        how = reason or processes.describe_exit(-code if code < 0 else code << 8)
        if not was_ready:
            self._log.warning("zygote_died", how=how, cells=0)
            self._owner.cells_failed(how)
            return
        suspects = len(runs)
        if self._careful or suspects > 1:
            self._careful = CAREFUL_CELLS
        given_back = suspects if suspects > 1 else 0
        self._log.warning("zygote_died", how=how, cells=suspects, given_back=given_back, run_alone_next=self._careful)
        ending = RELEASED if given_back else crashed(f"{how} (with the process that had made it)", code)
        for run in runs:
            run.orphaned(ending)

    def _pass_on(self, message: FromZygote, fds: Sequence[int]) -> None:
        match message:
            case Forked() if message.number in self._runs and fds:
                self._runs[message.number].forked(message.pid, *fds)
            case Forked():
                for fd in fds:
                    os.close(fd)
            case CellRefused() if message.number in self._runs:
                self._runs[message.number].refused(_impossible(message.reason))
            case CellEnded() if message.number in self._runs:
                self._runs[message.number].ended(message)
            case _:
                pass


def _impossible(reason: str) -> Outcome:
    return Outcome("error", f"no process could be started for it: {reason}")
