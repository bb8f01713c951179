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
from collections.abc import Mapping
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
    A running child process that this process has spawned.

    Attributes:
        pid: Its pid, also of its session and process group.
        bus: Our end of its socketpair; None: it has no bus.
    """

    __slots__ = ("_pidfd", "_popen", "bus", "pid")

    def __init__(self, popen: subprocess.Popen[bytes], bus: socket.socket | None) -> None:
        # Kept until the process is reaped here: if the Popen is collected before, it reaps the pid itself.
        self._popen = popen
        self.pid = popen.pid
        self.bus = bus
        self._pidfd = os.pidfd_open(popen.pid)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens when the process has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    async def wait_exited(self) -> Exited:
        """Wait until the process ends, kill its group, and reap it; call it once."""
        await trio.lowlevel.wait_readable(self._pidfd)
        return self._reap()

    def _reap(self) -> Exited:
        # Not reaped yet, so the number still means this group. PermissionError: the rest belongs to another user.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        result = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED)
        assert result is not None  # noqa: S101 - only WNOHANG answers None
        self._popen.returncode = result.si_status
        os.close(self._pidfd)
        if result.si_code == os.CLD_EXITED:
            return Exited(code=result.si_status)
        return Exited(signal=result.si_status)


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
    popen: subprocess.Popen[bytes] | None = None
    try:
        if theirs is not None:
            values[Placeholder.BUS_FD] = theirs.fileno()
        popen = subprocess.Popen(
            command_line(child, values),
            stdin=subprocess.DEVNULL,
            env={name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
            | {NAME_VARIABLE: child.name, **dict(child.env)},
            pass_fds=[values[slot] for slot in DESCRIPTORS if slot in child.argv],
            start_new_session=True,  # Ctrl-C is for the supervisor, which stops its children in order
        )
        return ChildProcess(popen, ours)
    except OSError:
        if popen is not None:  # no descriptor was left to watch it by
            popen.kill()
            popen.wait()
        if ours is not None:
            ours.close()
        raise
    finally:
        if theirs is not None:
            theirs.close()
