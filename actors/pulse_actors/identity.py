"""
Who a worker is: composed from what the kernel says of the peer, so it cannot be forged and survives a reconnect.

``locked_by`` is ``host/boot/pidns/pid.start/name``: the host, its boot, the pid namespace, and the process by pid and
start time (a pid alone is used again), then the name that the worker gave itself.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pulse import procs

_UCRED: Final = struct.Struct("3i")
_SESSION_BYTES: Final = 16
_MACHINE_IDS: Final = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))


@dataclass(frozen=True, slots=True)
class Peer:
    """
    The process at the other end of a Unix socket, as the kernel saw it when it connected.

    Attributes:
        pid: 0 when it lives in a pid namespace that this one cannot see.
        start_time: In clock ticks since boot; 0 when it is gone or not visible.
        pidns: Inode of its pid namespace; 0 when it may not be read.
    """

    pid: int
    uid: int
    gid: int
    start_time: int
    pidns: int


@dataclass(frozen=True, slots=True)
class Host:
    """
    This machine, as it appears in identities.

    Attributes:
        id: PULSE_HOST_ID, else made of the machine id.
        boot: First half of this boot's id.
        pidns: This process's pid namespace.
    """

    id: str
    boot: str
    pidns: int


def this_host(host_id: str | None) -> Host:
    """The machine that this process runs on."""
    return Host(host_id or _machine(), procs.boot_id()[:16], procs.pid_namespace())


def _machine() -> str:
    """machine-id(5) asks not to show the id itself: a keyed hash of it names the machine for pulse alone."""
    for path in _MACHINE_IDS:
        try:
            raw = path.read_text("ascii").strip()
        except (OSError, UnicodeDecodeError):
            continue
        if raw and raw != "uninitialized":
            return hmac.new(raw.encode(), b"pulse host", hashlib.sha256).hexdigest()[:12]
    return socket.gethostname()[:64]


def peer_of(connection: socket.socket) -> Peer:
    """Who connected, by SO_PEERCRED."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, gid = _UCRED.unpack(raw)
    return Peer(pid, uid, gid, procs.start_time(pid) if pid else 0, procs.pid_namespace(pid) if pid else 0)


def compose(host: Host, peer: Peer, name: str) -> str:
    """The ``locked_by`` of the worker *name* in the process *peer*."""
    return f"{host.id}/{host.boot}/{peer.pidns}/{peer.pid}.{peer.start_time}/{name}"


def session_of(host: Host, identity: str) -> bytes:
    """
    The session that stands for *identity* in a pool parent's heartbeat.

    Made from the identity, so that a restarted dispatcher can tell whose it is from the leases in the database, even of
    a worker that is too busy to reconnect. It is no secret: it extends leases and nothing else, and only for its own
    user.
    """
    return hashlib.blake2b(identity.encode(), digest_size=_SESSION_BYTES, key=host.boot.encode()).digest()


def user_of(identity: str) -> int | None:
    """The uid of the living process that *identity* names; None when it is gone or not of this form."""
    try:
        pid, start_time = identity.split("/")[3].split(".")
        if not pid.isdecimal() or procs.start_time(int(pid)) != int(start_time):
            return None
        return Path(f"/proc/{pid}").stat().st_uid
    except (IndexError, ValueError, OSError):
        return None
