"""
Whether this process may be forked: what the app has started or opened when it was imported.

Threads are not there in a forked process, and the locks that they hold stay locked. A descriptor is shared, with all
that is behind it: two processes would read each other's answers from a connection, wait for each other's events, and
move each other's place in a file. Child processes have one parent only.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import threading
from typing import Final

from pulse.system import log_sink, process_tree, processes

__all__ = ["open_descriptors", "unsafe"]

WITHOUT_STATE: Final = frozenset({"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"})


def open_descriptors() -> frozenset[int]:
    """The descriptors that are open now."""
    with os.scandir("/proc/self/fd") as entries:
        found = frozenset(int(entry.name) for entry in entries)
    return frozenset(fd for fd in found if _is_open(fd))


def unsafe(opened: frozenset[int]) -> list[str]:
    """
    What is against forking, for people; empty: nothing.

    Args:
        opened: The descriptors that were open before the app was imported.
    """
    log_sink.pause()  # its threads end before a fork
    others = sorted(open_descriptors() - opened)
    return [*_threads(), *_children(), *filter(None, map(_shared, others)), *_mark()]


def _threads() -> list[str]:
    known = {thread.native_id: thread.name for thread in threading.enumerate()}
    own = os.getpid()
    return [f"thread {known.get(one, 'of C code')}" for one in sorted(processes.threads(own)) if one != own]


def _children() -> list[str]:
    return [f"child process {pid}" for pid in processes.own_children()]


def _shared(fd: int) -> str | None:
    """What is behind a descriptor; None: it may be shared."""
    mode = os.fstat(fd).st_mode
    name = os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115 - no path: anon_inode:[eventpoll]
    if stat.S_ISDIR(mode) or name in WITHOUT_STATE:
        return None
    if stat.S_ISREG(mode) and fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_APPEND:  # a log file: each write goes to its end
        return None
    if stat.S_ISSOCK(mode):
        return f"socket {_peer(fd)}".rstrip()
    return name


def _peer(fd: int) -> str:
    with socket.socket(fileno=os.dup(fd)) as one:
        try:
            name = one.getpeername()
        except OSError:  # it listens, or is not connected
            name = one.getsockname()
        is_of_internet = one.family in {socket.AF_INET, socket.AF_INET6}
    return f"{name[0]}:{name[1]}" if is_of_internet else str(name)


def _mark() -> list[str]:
    """An app may have written over the environment that this process was started with, as setproctitle does."""
    try:
        process_tree.take_mark(process_tree.mark_of(os.getpid()) or "")
    except (OSError, ValueError) as error:
        return [f"environment: {error}"]
    return []


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
