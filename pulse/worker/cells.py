"""
The cells of a handler process: jobs that run each in a process of its own, made by a zygote.

The zygote is started when the first such job comes; until it has loaded the app, these jobs wait, and no others. When
it dies, its cells die with it, and it is started again when the next such job comes. What the cells had begun is given
back, uncharged, since nobody knows that one of them did it; but one that was alone with it is charged with a crash.
"""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Final

import anyio
import msgspec
from anyio.abc import TaskGroup

from pulse import procs
from pulse.outcome import RELEASED, Ending, crashed
from pulse.restarts import Intensity, RestartLog
from pulse.worker.attempt import Attempt
from pulse.worker.celloffice import Wing
from pulse.worker.cellrun import CellRun
from pulse.worker.cellwire import (
    MESSAGE_MAX_BYTES,
    Ended,
    Failed,
    Fork,
    Forked,
    FromZygote,
    Ready,
    Refused,
    from_zygote,
    pack,
)
from pulse.worker.fdsocket import receive
from pulse.worker.options import HostOptions, ZygoteOptions
from pulse.worker.policy import RESTART_DELAY
from pulse.worker.session import Log

__all__ = ["Cells"]

DRAIN_OBEY_S: Final = 1.5  # at the end of a drain: before the handler process itself has to go


class ZygoteProcess:
    """The process that makes cells; see ``pulse.worker.zygote``."""

    def __init__(self, options: HostOptions) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        told = ZygoteOptions(pool=options.pool, name=options.name, parent_pid=os.getpid(), control_fd=theirs.fileno())
        command = [sys.executable, "-m", "pulse.worker.zygote", msgspec.json.encode(told).decode()]
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),))
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
        """The next message and the descriptors that came with it; None: the zygote has died, or leaves."""
        while True:
            await anyio.wait_readable(self._control)
            try:
                data, fds = receive(self._control, MESSAGE_MAX_BYTES, 1)
                return (from_zygote.decode(data), fds) if data else None
            except BlockingIOError:
                continue
            except (OSError, msgspec.MsgspecError):  # it is gone, or the app writes into what is not its own
                return None

    def kill(self) -> None:
        """End it, and its cells with it."""
        if self._process.returncode is None:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    async def wait(self) -> int:
        """Its exit code, negative for a signal; it is over."""
        await anyio.wait_readable(self._pidfd)
        return self._process.wait()

    def close(self) -> None:
        """End it, if it lives, and let go of it."""
        self.kill()
        self._process.wait()
        self._control.close()
        os.close(self._pidfd)


class Cells:
    """
    See the module.

    Args:
        wing: Whom they belong to.
        group: Outlives every handler.
        options: Of this process.
        log: For what goes wrong.

    """

    def __init__(self, wing: Wing, group: TaskGroup, options: HostOptions, log: Log) -> None:
        self._wing = wing
        self._group = group
        self._options = options
        self._log = log
        self._zygote: ZygoteProcess | None = None
        self._oom: procs.OomKills | None = None
        self._kept = False
        self._runs: dict[int, CellRun] = {}
        self._numbers = itertools.count(1)
        self._restarts = RestartLog()

    def make(self) -> None:
        """Attempts wait for cells: see that there is a zygote."""
        if not self._kept:
            self._kept = True
            self._group.start_soon(self._keep)

    def start(self, attempt: Attempt) -> None:
        """Run the attempt in a cell; ``ended_apart`` follows exactly once."""
        zygote = self._zygote
        if zygote is None or attempt.stopped is not None:  # that came between its naming and now
            self._wing.ended_apart(attempt, RELEASED, {})
            return
        try:
            run = CellRun(attempt, self._wing, self._log, self._grace_s, zygote.kill)
        except OSError as error:
            self._wing.ended_apart(attempt, _impossible(str(error)), {})
            return
        attempt.task, attempt.begun = run, True
        self._group.start_soon(self._see_through, zygote, run)

    def look_at_leases(self) -> None:
        """Tell the cells whose lease was lost, or came back."""
        for run in self._runs.values():
            run.look_at_lease()

    def _grace_s(self, reason: str) -> float:
        grace_s = self._options.pool.obey_s  # the server waits a little longer before it kills the whole process
        return min(grace_s, DRAIN_OBEY_S) if reason == "drain" else grace_s

    async def _see_through(self, zygote: ZygoteProcess, run: CellRun) -> None:
        number = next(self._numbers)
        self._runs[number] = run
        if not await zygote.send(Fork(number), run.parts) and self._zygote is not zygote:
            run.refused(RELEASED)  # it has died, and those that it left behind were told already
        await run.run(self._oom)
        del self._runs[number]

    async def _keep(self) -> None:
        """A zygote after the other, as long as attempts wait for cells."""
        while self._wing.waits_for_cells():
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
            self._wing.cells_failed(str(error))
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
                    self._zygote, self._oom = zygote, procs.oom_kills(zygote.pid)
                    self._wing.cells_ready()
                case (Failed(reason), _):
                    pass
                case (message, fds):
                    self._pass_on(message, fds)
        zygote.kill()  # it may have closed its socket only
        code = await zygote.wait()
        how = reason or procs.describe_exit(-code if code < 0 else code << 8)
        self._log.warning("zygote_died", how=how, cells=len(self._runs))
        if self._zygote is None:
            self._wing.cells_failed(how)
            return
        self._zygote = None
        self._wing.cells_gone()
        runs = list(self._runs.values())
        ending = crashed(f"{how} (with the process that had made it)", code) if len(runs) == 1 else RELEASED
        for run in runs:
            run.orphaned(ending)

    def _pass_on(self, message: FromZygote, fds: Sequence[int]) -> None:
        match message:
            case Forked() if message.number in self._runs and fds:
                self._runs[message.number].forked(message.pid, *fds)
            case Forked():
                for fd in fds:
                    os.close(fd)
            case Refused() if message.number in self._runs:
                self._runs[message.number].refused(_impossible(message.reason))
            case Ended() if message.number in self._runs:
                self._runs[message.number].ended(message)
            case _:
                pass


def _impossible(reason: str) -> Ending:
    return Ending("error", f"no process could be started for it: {reason}")
