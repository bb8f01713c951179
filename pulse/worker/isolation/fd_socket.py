"""Messages that carry descriptors; ``socket.recv_fds`` ignores its flags, and makes them inheritable."""

from __future__ import annotations

import array
import socket

__all__ = ["receive"]


def receive(connection: socket.socket, max_bytes: int, max_fds: int) -> tuple[bytes, list[int]]:
    """
    The next message and the descriptors that came with it, none of them inheritable.

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
