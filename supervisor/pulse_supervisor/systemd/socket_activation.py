"""
Listening sockets that a service manager kept while the supervisor restarted, by the protocol of sd_listen_fds(3).

The supervisor gives them to the manager (``Notifier.keep``), and the next one takes them back: they stay open, so that
a restart refuses no client. A socket unit hands over the same way.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Final

FIRST_FD: Final = 3


def take(env: MutableMapping[str, str], first_fd: int = FIRST_FD) -> dict[str, socket.socket]:
    """
    The sockets that were handed over, by their names.

    Args:
        env: The environment; LISTEN_PID, LISTEN_FDS and LISTEN_FDNAMES are removed, since they are for this process and
            not for its children.
        first_fd: The first of their descriptors; the others follow.

    Returns:
        By name; of several with one name the first. Descriptors that are no sockets are closed.
    """
    pid, count, names = (env.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"))
    found: dict[str, socket.socket] = {}
    if pid != str(os.getpid()) or not count.isdecimal():
        return found
    labels = names.split(":")
    for number in range(int(count)):
        sock = _socket(first_fd + number)
        label = labels[number] if number < len(labels) else ""
        if sock is not None and label not in found:
            found[label] = sock
        elif sock is not None:
            sock.close()
    return found


def listens_at(sock: socket.socket, path: Path) -> bool:
    """Whether *sock* is what clients reach by *path*: it listens, has that address, and the name still exists."""
    try:
        listens = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
        return listens and sock.getsockname() == os.fspath(path) and path.is_socket()
    except OSError:
        return False


def _socket(descriptor: int) -> socket.socket | None:
    try:
        os.set_inheritable(descriptor, False)
        return socket.socket(fileno=descriptor)
    except OSError:
        with suppress(OSError):
            os.close(descriptor)
        return None
