"""
The template of the actors: a process that has imported what they need, and forks one for each order.

It has no event loop and no threads. The supervisor adopts what is forked, as its own child. An order is the name of an
actor and the options for the descriptors that come with it; the answer is a pid with a pidfd, or a negative errno.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import sys
from typing import Final

from pulse.system import processes
from pulse.system.fork import fork_away, receive, share_memory
from pulse.system.log_forward import NAME_VARIABLE

_ORDER_MAX_BYTES: Final = 1024
_MOST_FDS: Final = 3
_PROGRAM_WORDS: Final = 4  # PYTHON -P -m pulse_actors


def serve(control_fd: int, parent_pid: int) -> list[str]:
    """
    Fork until the supervisor closes the socket, which ends this process.

    Returns:
        In each forked process: the words of its command line.
    """
    processes.die_with_parent(parent_pid, signal.SIGKILL)
    processes.leave_no_core()
    with socket.socket(fileno=control_fd) as control:
        control.set_inheritable(False)
        share_memory()
        while True:
            order, fds = receive(control, _ORDER_MAX_BYTES, _MOST_FDS)
            if not order:
                sys.exit(0)
            name, *options = order.decode("ascii").split()
            if _is_forked(control, complete=len(fds) == len(options)):
                break
            for fd in fds:
                os.close(fd)
    _begin(name)
    given = [word for option, fd in zip(options, fds, strict=True) for word in (option, str(fd))]
    return [name, *given, "--parent-pid", str(parent_pid)]


def _is_forked(control: socket.socket, *, complete: bool) -> bool:
    """Fork, and answer; whether this is the forked process. *complete*: all descriptors have come."""
    try:
        if not complete:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))  # noqa: TRY301 - the kernel has left some out
        made = fork_away()
    except OSError as error:
        control.send(b"%d" % -(error.errno or errno.EAGAIN))
        return False
    if made is None:
        return True
    pid, pidfd = made
    try:
        socket.send_fds(control, [b"%d" % pid], [pidfd])
    finally:
        os.close(pidfd)
    return False


def _begin(name: str) -> None:
    """As an actor that was started by itself."""
    os.setsid()
    os.environ[NAME_VARIABLE] = name
    with contextlib.suppress(OSError):  # only what people see
        processes.show_name(f"pulse-{name}")
        processes.show_command_line([*sys.orig_argv[:_PROGRAM_WORDS], name])
