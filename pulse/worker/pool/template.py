"""
The template: a handler process that forks others, instead of calling handlers, once it has loaded the app.

It has no event loop and no threads. It answers one request of the pool after the other: a mark and descriptors come, a
pidfd goes. The pool adopts what is forked, so all handler processes are its children.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from pulse.app.tracing import preload
from pulse.system import log_sink, process_tree, processes
from pulse.system.fork import fork_away, leave_signal, receive, share_memory
from pulse.worker.options import HostOptions, import_loop
from pulse.worker.pool.child import MESSAGE_MAX_BYTES, ProcessFds
from pulse.worker.pool.fork_check import unsafe

__all__ = ["NAME", "serve"]

NAME: Final = "pulse-template"  # in `top`: it does not run jobs
SHOWN: Final = 8  # of what is against forking, in a log line
SHOWN_CHARACTERS: Final = 100
_COMM: Final = Path("/proc/self/comm")


def serve(options: HostOptions, opened: frozenset[int]) -> None:
    """
    Fork handler processes until the pool is gone; returns in each of them, and if this process is to be one itself.

    Args:
        options: Its descriptors are those of a forked process afterwards.
        opened: The descriptors that were open before the app was imported.
    """
    with socket.socket(fileno=options.control_fd) as control:
        control.set_inheritable(False)
        import_loop(options.pool.backend)
        preload()
        found = unsafe(opened)
        control.send(msgspec.json.encode([one[:SHOWN_CHARACTERS] for one in found[:SHOWN]]))
        if not found:
            share_memory()
            Template(control, options).serve()


class Template:
    """The server of the pool; its life ends in the process that it forks."""

    def __init__(self, control: socket.socket, options: HostOptions) -> None:
        self._control: Final = control
        self._options: Final = options
        self._name: Final = _COMM.read_text("utf-8").rstrip("\n")
        self._of_app: Final = {
            signal.SIGTERM: signal.signal(
                signal.SIGTERM, leave_signal
            ),  # a service manager's, to all: the pool decides
            signal.SIGINT: signal.signal(signal.SIGINT, leave_signal),
            signal.SIGCHLD: signal.signal(signal.SIGCHLD, signal.SIG_DFL),  # nobody else waits for what it forks
        }

    def serve(self) -> None:
        """Returns in a forked process."""
        _rename(NAME)
        with contextlib.suppress(ConnectionError):  # the pool is gone, and takes no answer
            while not self._fork(*receive(self._control, MESSAGE_MAX_BYTES, len(ProcessFds._fields))):
                pass
            return
        log_sink.last_words()
        os._exit(0)  # a process that never ran a handler skips exit hooks of the app

    def _fork(self, mark: bytes, fds: Sequence[int]) -> bool:
        """Whether this is the forked process."""
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, self._of_app)
        forked: tuple[int, int] | None = None
        refused: OSError | None = None
        try:
            if len(fds) != len(ProcessFds._fields):  # the pool is gone, or the kernel has left some out
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))  # noqa: TRY301 - answered as any other
            forked = fork_away()
        except OSError as error:
            refused = error
        is_forked = forked is None and refused is None
        if is_forked:
            self._begin(mark.decode("ascii"), fds)
        for fd in fds:
            os.close(fd)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        if refused is not None:
            self._control.send(str(refused).encode())
        if forked is not None:
            pid, pidfd = forked
            socket.send_fds(self._control, [b"%d" % pid], [pidfd])
            os.close(pidfd)
        return is_forked

    def _begin(self, mark: str, fds: Sequence[int]) -> None:
        """As a handler process that was started by itself."""
        processes.die_with_parent(self._options.parent_pid, signal.SIGKILL)
        os.setsid()
        process_tree.take_mark(mark)
        _rename(self._name)
        places = (self._options.name_fd, self._options.notes_fd, self._options.stack_fd)
        for fd, place in zip(fds, places, strict=True):
            os.dup2(fd, place, inheritable=False)
        for number, handler in self._of_app.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _rename(name: str) -> None:
    with contextlib.suppress(OSError):
        processes.show_name(name)
