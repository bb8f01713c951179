"""The process at the other end of a Unix socket, from the kernel: a peer cannot forge it."""

from __future__ import annotations

import os
import pwd
import socket
import struct
from array import array
from typing import Final, NamedTuple

_UCRED: Final = struct.Struct("3i")
_SO_PEERGROUPS: Final = 59  # Linux 4.13; not in Python's socket module
_GROUPS_BYTES: Final = 1024  # the most that Python's getsockopt takes: 256 groups


class PeerCredentials(NamedTuple):
    """A process when it connected; pid is 0 when it lives in a pid namespace that this one cannot see."""

    pid: int
    uid: int
    gid: int


def credentials_of(connection: socket.socket) -> PeerCredentials:
    """
    The process that connected, or that listens: SO_PEERCRED.

    Raises:
        OSError: The connection is gone.
    """
    return PeerCredentials(*_UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)))


def groups_of(connection: socket.socket) -> frozenset[int]:
    """
    All groups of the process that connected: its own, and the supplementary ones by SO_PEERGROUPS.

    Of a process in more groups than one call can tell, those that the accounts of this machine say.

    Raises:
        OSError: The connection is gone.
    """
    peer = credentials_of(connection)
    groups = array("I")
    try:
        groups.frombytes(connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES))
    except OSError:
        name = user_name(peer.uid)
        return frozenset() if name is None else frozenset(os.getgrouplist(name, peer.gid))
    return frozenset({peer.gid, *groups})


def user_name(uid: int) -> str | None:
    """The name of an account of this machine; None for none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


def shown(uid: int | None, user: str | None) -> str:
    """The user in a message: an account of this machine, or a login without one."""
    if uid is None:
        return f"user {user}"
    return f"uid {uid}" if user is None else f"user {user} (uid {uid})"
