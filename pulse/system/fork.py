"""
Forks: how to make them, also by order of another process, and what a forked child must not go on using.

That is connections that its parent uses, and locks. A lock may be held by a thread of the parent, which the child does
not have: it would wait for ever. A preloaded application (gunicorn, multiprocessing) makes its client before it forks,
so each client has to begin anew in a child.
"""

from __future__ import annotations

import array
import contextlib
import errno
import gc
import os
import select
import socket
import sys
import weakref
from typing import Final, Protocol

__all__ = ["Shared", "fork_away", "leave_signal", "receive", "renew_in_children", "share_memory"]

_PID_BYTES: Final = 16


class Shared(Protocol):
    """What a child has of its parent, and must not share."""

    def renew(self) -> None:
        """Give up what is the parent's. Called in the child, when no other thread runs."""


_known: Final[weakref.WeakSet[Shared]] = weakref.WeakSet()


def renew_in_children(one: Shared) -> None:
    """Call ``renew`` of *one* in each child that this process forks, as long as *one* lives."""
    _known.add(one)


def _renew_all() -> None:
    for one in list(_known):
        one.renew()


os.register_at_fork(after_in_child=_renew_all)


def leave_signal(_number: int, _frame: object) -> None:
    """A handler that does nothing, where another process decides: programs that are started would inherit SIG_IGN."""


def share_memory() -> None:
    """Before the first fork: what children would write again, or copy, without a need."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()  # else each child would write the buffered output again
    gc.collect()
    gc.freeze()  # the garbage collector of a child does not touch, and so copy, shared memory


def fork_away() -> tuple[int, int] | None:
    """
    Fork a process whose parent is the nearest ancestor of this one that adopts orphans.

    Returns:
        Its pid and a pidfd; None: this is that process, and it has that parent.

    Raises:
        OSError: It could not be made.
    """
    import ctypes  # not above: clients need none of it

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        middle = ctypes.PyDLL(None, use_errno=True).fork()  # hooks of the app run once: in the process that stays
        if middle < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        if middle == 0:
            _fork_and_end(theirs)
            return None
        theirs.close()
        pid, fds, _, _ = socket.recv_fds(ours, _PID_BYTES, 1)
        _, status = os.waitpid(middle, 0)
    if not fds:
        reason = max(0, os.waitstatus_to_exitcode(status)) or errno.EMFILE
        raise OSError(reason, os.strerror(reason))
    os.set_inheritable(fds[0], False)
    return int(pid), fds[0]


def _fork_and_end(theirs: socket.socket) -> None:
    """Returns in the process that this one has forked, as soon as this one has ended."""
    pid = own = -1
    failed = 0
    try:
        own = os.pidfd_open(os.getpid())
        pid = os.fork()
        if pid:
            socket.send_fds(theirs, [b"%d" % pid], [os.pidfd_open(pid)])
    except OSError as error:
        failed = error.errno or errno.EAGAIN
    finally:
        if pid:
            os._exit(failed)
    death = select.poll()
    death.register(own, select.POLLIN)
    death.poll()
    os.close(own)


def receive(connection: socket.socket, max_bytes: int, max_fds: int) -> tuple[bytes, list[int]]:
    """
    The next message and the descriptors that came with it, none of them inheritable.

    ``socket.recv_fds`` ignores its flags, and makes them inheritable.

    Raises:
        OSError: As ``recvmsg``; BlockingIOError when nothing is there.
    """
    room = socket.CMSG_LEN(max_fds * array.array("i").itemsize)
    data, ancillary, _, _ = connection.recvmsg(max_bytes, room, socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, raw in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(raw[: len(raw) - len(raw) % fds.itemsize])
    return data, list(fds)
