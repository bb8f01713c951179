"""
The identity of a worker: composed of what the kernel knows of the peer, so it cannot be forged and survives reconnects.

``locked_by`` is ``host/boot/pidns/pid.start/name``: the host, its boot, the pid namespace, and the process by pid and
start time (a pid alone is used again), then the name that the worker gave itself.

For TCP peers no kernel knows the process. Their identity is ``tcp:user/mark/name``; the mark is a hash of a session
that the server drew at the first hello: a worker that knows the session is the same worker.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from pulse.system import processes
from pulse.system.sockets.peer_credentials import credentials_of

_SESSION_BYTES: Final = 16
_NAME_CHARACTERS: Final = 64
_REMOTE: Final = "tcp:"  # no host has a colon in its name
SO_PEERPIDFD: Final = 77  # Linux 6.5; not in Python's socket module yet
_MACHINE_IDS: Final = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))


@dataclass(frozen=True, slots=True)
class Peer:
    """
    The process at the other end of a Unix socket, as the kernel saw it when it connected.

    Attributes:
        pid: 0 if its pid namespace cannot be seen from here.
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
        name: For people: PULSE_HOST_ID, else its host name.
    """

    id: str
    boot: str
    pidns: int
    name: str = ""


def this_host(host_id: str | None) -> Host:
    """The machine that this process runs on."""
    name = host_id or socket.gethostname()[:_NAME_CHARACTERS]
    return Host(host_id or _machine(), processes.boot_id()[:16], processes.pid_namespace(), name=name)


def _machine() -> str:
    """machine-id(5) asks to keep the id secret: a keyed hash of it names the machine for pulse alone."""
    for path in _MACHINE_IDS:
        try:
            raw = path.read_text("ascii").strip()
        except (OSError, UnicodeDecodeError):
            continue
        if raw and raw != "uninitialized":
            return hmac.new(raw.encode(), b"pulse host", hashlib.sha256).hexdigest()[:12]
    return socket.gethostname()[:_NAME_CHARACTERS]


def peer_of(connection: socket.socket) -> Peer:
    """The process that connected, by SO_PEERCRED."""
    pid, uid, gid = credentials_of(connection)
    return Peer(
        pid,
        uid,
        gid,
        start_time=processes.start_time(pid) if pid else 0,
        pidns=processes.pid_namespace(pid) if pid else 0,
    )


def is_gone(peer: Peer) -> bool:
    """Whether the process has ended and was reaped."""
    if not peer.pid or peer.start_time:
        return False
    try:
        os.kill(peer.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return False


def pidfd_of(connection: socket.socket, peer: Peer) -> int | None:
    """
    A pidfd of the process that connected, for the caller to close; None if the kernel gives none, or it is gone.

    Best from the socket itself, which cannot name another process; before Linux 6.5 by pid, and the start time must be
    the same as when the process connected.
    """
    try:
        return connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError:
        pass
    try:
        pidfd = os.pidfd_open(peer.pid)
    except OSError:
        return None
    if processes.start_time(peer.pid) != peer.start_time:
        os.close(pidfd)
        return None
    return pidfd


def leads_group(pid: int) -> bool:
    """
    Whether the process leads a session and process group of its own, which can be killed with it.

    A group alone is not enough: a shell puts all processes of a pipeline into one.
    """
    try:
        return os.getpgid(pid) == os.getsid(pid) == pid
    except OSError:
        return False


def compose(host: Host, peer: Peer, name: str) -> str:
    """
    The ``locked_by`` of the worker *name* in the process *peer*.

    All processes of pid namespaces that cannot be seen from here have pid 0: then the account replaces the start time,
    so that no worker can pass for one of another account by its name.
    """
    return f"{host.id}/{host.boot}/{peer.pidns}/{peer.pid}.{peer.start_time if peer.pid else peer.uid}/{name}"


def compose_remote(user: str, session: bytes, name: str) -> str:
    """The ``locked_by`` of the worker *name* that logged in over TCP as *user*, in that session."""
    return f"{_REMOTE}{quote(user, safe='')}/{mark_of(session)}/{name}"


def mark_of(session: bytes) -> str:
    """The public mark of a secret TCP session."""
    return hashlib.blake2b(session, digest_size=_SESSION_BYTES).hexdigest()


def is_remote(identity: str) -> bool:
    """Whether *identity* belongs to a TCP worker."""
    return identity.startswith(_REMOTE)


def new_session() -> bytes:
    """A session for a TCP worker that connects for the first time; a secret between it and the server."""
    return secrets.token_bytes(_SESSION_BYTES)


def is_session(given: bytes | None) -> bool:
    """Whether *given* has the form of a session."""
    return given is not None and len(given) == _SESSION_BYTES


def key_of(host: Host, identity: str) -> str | bytes:
    """The key to find the worker *identity*, connected or not: its session, or for TCP the mark of it."""
    if is_remote(identity):
        return identity.partition("/")[2].partition("/")[0]
    return session_of(host, identity)


def session_of(host: Host, identity: str) -> bytes:
    """
    The session that names *identity* in a pool parent's heartbeat.

    Derived from the identity, so that a restarted dispatcher can find the worker from the leases in the database, even
    if it is too busy to reconnect. It is no secret: it only extends leases, and only of its own user.
    """
    return hashlib.blake2b(identity.encode(), digest_size=_SESSION_BYTES, key=host.boot.encode()).digest()


@dataclass(frozen=True, slots=True)
class IdentityParts:
    """The parts of an identity: ``host/boot/pidns/pid.start/name``."""

    host: str
    boot: str
    pidns: int
    pid: int
    start_time: int
    name: str


def parse(identity: str) -> IdentityParts | None:
    """The parts of *identity*; None if it has another form."""
    try:
        host, boot, pidns, process, name = identity.split("/", 4)
        pid, start_time = map(int, process.split("."))
        return IdentityParts(host, boot, int(pidns), pid=pid, start_time=start_time, name=name)
    except ValueError:
        return None


def process_of(host: Host, identity: str) -> tuple[int, int] | None:
    """
    The pid and start time in *identity*; None for another host, boot or pid namespace, or another form.

    Only processes of this kernel and namespace can be checked.
    """
    named = parse(identity)
    if named is None or (named.host, named.boot, named.pidns) != (host.id, host.boot, host.pidns) or named.pid <= 0:
        return None
    return named.pid, named.start_time


def is_in_hand(host: Host, identity: str) -> bool:
    """
    Whether *identity* names a living process that this one can see, and may kill.

    Then its attempts are not handed out again before it is dead. For all others only the leases count.
    """
    process = process_of(host, identity)
    if process is None or not processes.lives(*process):
        return False
    try:
        os.kill(process[0], 0)
    except OSError:
        return False
    return True


def user_of(host: Host, identity: str) -> int | None:
    """The uid of the living process that *identity* names; None when it is gone or cannot be seen from here."""
    process = process_of(host, identity)
    if process is None or not processes.lives(*process):
        return None
    try:
        return Path(f"/proc/{process[0]}").stat().st_uid
    except OSError:
        return None
