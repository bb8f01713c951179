"""Opens listening sockets: a Unix socket is private to its owner from the start; a live one is never replaced."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Generator
from pathlib import Path
from typing import Any

from pulse.errors import PathError
from pulse.system.directories import check_socket_path


def tcp_address(host: str, port: int) -> tuple[socket.AddressFamily, tuple[Any, ...]]:
    """
    The first address of *host* and *port*, for the socket module.

    Raises:
        OSError: There is none.
    """
    family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return family, where


def tcp(host: str, port: int, backlog: int) -> socket.socket:
    """
    A socket that listens there; on ``::`` for IPv4, too, where the system can.

    Raises:
        OSError: It is taken, or no address of this machine.
    """
    family, where = tcp_address(host, port)
    dual = family == socket.AF_INET6 and where[0] == "::" and socket.has_dualstack_ipv6()
    return socket.create_server(where[:2], family=family, backlog=backlog, dualstack_ipv6=dual)


def unix(path: Path, backlog: int) -> socket.socket:
    """
    A socket that listens at *path*; a stale one is replaced.

    Raises:
        PathError: A program listens there, the path is too long, or it is not a socket.
        OSError: It cannot be made.
    """
    check_socket_path(path)
    if not free(path):
        raise PathError(f"cannot listen on {path}: somebody listens there already")
    with contextlib.ExitStack() as undo:
        made = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        with owner_only():
            made.bind(os.fspath(path))
        made.listen(backlog)
        undo.pop_all()
    return made


def free(path: Path) -> bool:
    """
    Whether *path* is free; a stale socket there is removed.

    Raises:
        PathError: It is something else, and stays.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return True
    if not stat.S_ISSOCK(mode):
        raise PathError(f"{path} is not a socket: move it away")
    if is_served(path):
        return False
    path.unlink(missing_ok=True)
    return True


def is_served(path: Path) -> bool:
    """Whether a program listens there: taking the name away would steal its clients."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        except BlockingIOError:  # its backlog is full
            return True
        except OSError:
            return False
        return True


def reason(error: OSError) -> str:
    """Why it could not be listened on, in lower case and without the address, which the message has already."""
    if error.errno is None or isinstance(error, socket.gaierror):
        return (error.strerror or str(error)).lower()
    return os.strerror(error.errno).lower()


@contextlib.contextmanager
def owner_only() -> Generator[None]:
    """Files that are made within are their owner's alone: a chmod afterwards would leave them open for a moment."""
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)
