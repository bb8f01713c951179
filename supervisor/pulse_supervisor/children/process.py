"""
One process of a child: spawned, signalled and awaited by its pidfd, so that no pid is ever mistaken for another's.

Spawn from the main thread only: children ask for a signal at the death of their parent, which to the kernel is the
thread that forked. Fork and exec are one step in C, without Python code in between: a forked copy of a running event
loop shares its wake-up descriptors.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from typing import Final

import trio

from pulse.system.log_forward import NAME_VARIABLE
from pulse_supervisor.children.events import Exited
from pulse_supervisor.children.spec import DESCRIPTORS, ChildSpec, Placeholder, command_line

# Secrets reach the actors in a frame that no other account can read, and only we may notify the service manager.
_NOT_INHERITED: Final = frozenset(
    {
        "PULSE_DSN",
        "PULSE_AUTH_USERS",
        "PULSE_CONNECT",  # this pool's server is this one
        "PULSE_USER",
        "PULSE_PASSWORD",
        "NOTIFY_SOCKET",
        "WATCHDOG_PID",
        "WATCHDOG_USEC",
        "LISTEN_FDS",
        "LISTEN_FDNAMES",
        "LISTEN_PID",
    }
)


class ChildProcess:
    """
    A running child process of this process.

    Args:
        pid: Its pid, also of its session and process group.
        pidfd: Closed when it was reaped.
        bus: Our end of its socketpair; None: it has no bus.
    """

    __slots__ = ("_pidfd", "bus", "pid")

    def __init__(self, pid: int, pidfd: int, bus: socket.socket | None = None) -> None:
        self.pid = pid
        self._pidfd = pidfd
        self.bus = bus

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens when the process has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    async def wait_exited(self) -> Exited:
        """Wait until the process ends, kill its group, and reap it; call it once."""
        await trio.lowlevel.wait_readable(self._pidfd)
        return self._reap()

    async def end(self) -> None:
        """Kill it, and wait for its end; for one that the lifecycle does not know: the reaper may have reaped it."""
        if self.bus is not None:
            self.bus.close()
        self.send_signal(signal.SIGKILL)
        await trio.lowlevel.wait_readable(self._pidfd)
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED)  # noqa: ASYNC222 - it has ended
        os.close(self._pidfd)

    def _reap(self) -> Exited:
        # Not reaped yet, so the number still means this group. PermissionError: the rest belongs to another user.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        result = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED)
        assert result is not None  # noqa: S101 - only WNOHANG answers None
        os.close(self._pidfd)
        if result.si_code == os.CLD_EXITED:
            return Exited(code=result.si_status)
        return Exited(signal=result.si_status)


def start(words: Sequence[str], fds: Sequence[int], env: dict[str, str], bus: socket.socket | None) -> ChildProcess:
    """
    Start a program, in a session of its own.

    Args:
        words: Its command line.
        fds: The descriptors that it inherits.
        env: On top of ours.
        bus: Our end of its socketpair, if it has one.

    Raises:
        OSError: The program cannot be executed, or resources are short.
    """
    popen = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        env={name: value for name, value in os.environ.items() if name not in _NOT_INHERITED} | env,
        pass_fds=fds,
        start_new_session=True,  # Ctrl-C is for the supervisor, which stops its children in order
    )
    try:
        pidfd = os.pidfd_open(popen.pid)
    except OSError:  # no descriptor was left to watch it by
        popen.kill()
        popen.wait()
        raise
    popen.returncode = 0  # for the Popen, which would else reap it when it is collected; it is reaped by its pidfd
    return ChildProcess(popen.pid, pidfd, bus)


def spawn(child: ChildSpec, shared: Mapping[Placeholder, int]) -> ChildProcess:
    """
    Start a process for *child*.

    Args:
        child: The child; it inherits only the descriptors that its argv names.
        shared: Descriptors that outlive a process, such as the listening socket.

    Raises:
        OSError: The program cannot be executed, or resources are short.
    """
    values = {**shared, Placeholder.PARENT_PID: os.getpid()}
    ours, theirs = socket.socketpair() if Placeholder.BUS_FD in child.argv else (None, None)
    try:
        if theirs is not None:
            values[Placeholder.BUS_FD] = theirs.fileno()
        fds = [values[slot] for slot in DESCRIPTORS if slot in child.argv]
        return start(command_line(child, values), fds, {NAME_VARIABLE: child.name, **dict(child.env)}, ours)
    except OSError:
        if ours is not None:
            ours.close()
        raise
    finally:
        if theirs is not None:
            theirs.close()
