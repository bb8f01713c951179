"""
The zygote: loads the app once, then forks a process (a cell) for each isolated job.

``python -m pulse.worker.isolation.zygote OPTIONS``; a handler process starts it when it first needs a cell. It is
exec'ed, not forked: the handler process has an event loop and threads, which do not survive a fork well. The zygote has
neither, unless importing the app starts threads. It waits for its cells by ``wait4``, which shows how they ended and
what they used. It also ends processes that a cell leaves behind, and reaps those that end by themselves.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass
from typing import Final

import msgspec

from pulse.app.app import App
from pulse.app.tracing import preload
from pulse.logs import configure_logging
from pulse.system import log_sink, processes
from pulse.system.fork import leave_signal, receive, share_memory
from pulse.worker.app_name import AppError
from pulse.worker.isolation import child as cell
from pulse.worker.isolation.messages import (
    MESSAGE_MAX_BYTES,
    CellEnded,
    CellRefused,
    Failed,
    Forked,
    Ready,
    pack,
    to_zygote,
)
from pulse.worker.load_app import load_app
from pulse.worker.options import PoolOptions, ZygoteOptions, import_loop

__all__ = ["main"]

ORPHANS_S: Final = 1.0  # for leftovers of a cell to die of SIGKILL; longer only deep in the kernel
BURY_S: Final = 1.0  # while cells run: how long their dead orphans stay zombies
CELL_FDS: Final = 2  # its end of the channel, and its stack file
FAILED: Final = 1  # exit code: the app cannot be loaded
_REASON_CHARACTERS: Final = 8 * 1024
_KIB: Final = 1024


def main(arguments: list[str]) -> int:
    """Make cells until the handler process is gone; returns the exit code."""
    options = msgspec.json.decode(arguments[0], type=ZygoteOptions)
    processes.die_with_parent(options.parent_pid, signal.SIGKILL)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave_signal)  # the handler process decides
    control = socket.socket(fileno=options.control_fd)
    control.set_inheritable(False)
    configure_logging(options.pool.log_level, options.pool.log_format, runs_handlers=True)
    try:
        app = load_app(options.pool.app)
    except AppError as error:
        control.send(pack(Failed(error.message[:_REASON_CHARACTERS])))
        return FAILED
    preload()
    _prepare(options)
    Zygote(control, app, options.pool).serve()
    return 0


def _prepare(options: ZygoteOptions) -> None:
    """Preparations for all cells."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if ignored, children would vanish without a status
    import_loop(options.pool.backend)
    threads = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    if threads:
        import structlog  # not above: pulse.logs comes first

        log = structlog.get_logger("pulse.worker").bind(worker=options.name)
        log.warning("app_started_threads", threads=threads)
    processes.adopt_orphans()
    share_memory()


@dataclass(frozen=True, slots=True)
class _ForkedCell:
    number: int
    pid: int


class Zygote:
    """
    The server of one zygote.

    Args:
        control: To the handler process; keeps messages apart.
        pool: Options of the pool.
    """

    def __init__(self, control: socket.socket, app: App, pool: PoolOptions) -> None:
        self._control = control
        self._app = app
        self._pool = pool
        self._cells: dict[int, _ForkedCell] = {}  # by pidfd
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)

    def serve(self) -> None:
        """Make and reap cells until the handler process closes the socket."""
        with contextlib.suppress(ConnectionError):
            self._control.send(pack(Ready()))
            while True:
                events = self._poll.poll(BURY_S * 1000 if self._cells else None)
                if not events:
                    self._bury_dead()
                for fd, _ in events:
                    if fd in self._cells:
                        self._reap(fd)
                    elif not self._take_order():
                        return

    def _take_order(self) -> bool:
        data, fds = receive(self._control, MESSAGE_MAX_BYTES, CELL_FDS)
        if not data:
            return False
        number = to_zygote.decode(data).number
        try:
            if len(fds) != CELL_FDS:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))  # noqa: TRY301 - the kernel has left some out
            self._fork(number, *fds)
        except OSError as error:
            self._control.send(pack(CellRefused(number, str(error))))
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def _fork(self, number: int, channel_fd: int, stack_fd: int) -> None:
        own_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                self._control.close()
                for other in self._cells:
                    os.close(other)
                cell.run(self._app, self._pool, channel_fd, stack_fd, own_pid)
            finally:  # whatever happens, even without memory: a cell never returns into the zygote's loop
                os._exit(cell.BROKEN)
        pidfd = os.pidfd_open(pid)
        self._cells[pidfd] = _ForkedCell(number, pid)
        self._poll.register(pidfd, select.POLLIN)
        socket.send_fds(self._control, [pack(Forked(number, pid))], [pidfd])

    def _reap(self, pidfd: int) -> None:
        child = self._cells.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)  # its own group; not reaped yet, so the number is still its own
        _, status, used = os.wait4(child.pid, 0)
        self._end_orphans()
        cpu_s = used.ru_utime + used.ru_stime
        self._control.send(pack(CellEnded(child.number, status, cpu_s, peak_rss_bytes=used.ru_maxrss * _KIB)))

    def _end_orphans(self) -> None:
        """
        Kill leftovers of a dead cell, and their leftovers: they must not run beside the next attempt.

        It is unknown which cell left them, so daemons of living cells are ended, too.
        """
        give_up_s = time.monotonic() + ORPHANS_S
        while orphans := self._orphans():
            for pid in orphans:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)  # a child that only this process reaps: the pid is still its own
            for pid in orphans:
                self._bury(pid, give_up_s)
            if time.monotonic() > give_up_s:
                return

    def _bury_dead(self) -> None:
        """Reap dead orphans of living cells: there may be any number before a cell ends."""
        for pid in self._orphans():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)

    def _orphans(self) -> list[int]:
        cells = {child.pid for child in self._cells.values()}
        return [pid for pid in processes.own_children() if pid not in cells]

    @staticmethod
    def _bury(pid: int, give_up_s: float) -> None:
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            return
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        try:
            if poll.poll(max(0.0, give_up_s - time.monotonic()) * 1000):
                os.waitpid(pid, 0)
        finally:
            os.close(pidfd)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    log_sink.last_words()
    os._exit(code)  # a process that never ran a handler skips threads and exit hooks of the app
