"""
Who a worker is: composed from what the kernel says of the peer, so it cannot be forged and survives a reconnect.

``locked_by`` is ``host/boot/pidns/pid.start/name``: the host, its boot, the pid namespace, and the process by pid and
start time (a pid alone is used again), then the name that the worker gave itself.

Of who comes over TCP no kernel tells anything. There it is ``tcp:user/mark/name``, and the mark stands for a session
that the server drew at the first hello: whoever knows it is that worker, come back.
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
from pulse.system.peer_credentials import credentials_of

_SESSION_BYTES: Final = 16
_REMOTE: Final = "tcp:"  # no host has a colon in its name
SO_PEERPIDFD: Final = 77  # Linux 6.5; not in Python's socket module yet
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
    return Host(host_id or _machine(), processes.boot_id()[:16], processes.pid_namespace())


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
    pid, uid, gid = credentials_of(connection)
    return Peer(
        pid,
        uid,
        gid,
        start_time=processes.start_time(pid) if pid else 0,
        pidns=processes.pid_namespace(pid) if pid else 0,
    )


def is_gone(peer: Peer) -> bool:
    """Whether the process has ended, and its parent knows: nothing is left of it but the number."""
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
    A pidfd of the process that connected, for the caller to close; None where the kernel gives none, or it is gone.

    Best from the socket itself, which cannot name another process; before Linux 6.5 by pid, with the start time held
    against what it was when the process connected.
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

    A group alone is not enough: a shell makes one of all that stands in a pipeline with it.
    """
    try:
        return os.getpgid(pid) == os.getsid(pid) == pid
    except OSError:
        return False


def compose(host: Host, peer: Peer, name: str) -> str:
    """
    The ``locked_by`` of the worker *name* in the process *peer*.

    Processes of pid namespaces that cannot be seen from here all have pid 0: its account is in the place of its start
    time then, so that one cannot pass for a worker of another by taking its name.
    """
    return f"{host.id}/{host.boot}/{peer.pidns}/{peer.pid}.{peer.start_time if peer.pid else peer.uid}/{name}"


def compose_remote(user: str, session: bytes, name: str) -> str:
    """The ``locked_by`` of the worker *name* that logged in over TCP as *user*, in that session."""
    return f"{_REMOTE}{quote(user, safe='')}/{mark_of(session)}/{name}"


def mark_of(session: bytes) -> str:
    """What stands for a session of TCP where it must not be seen itself."""
    return hashlib.blake2b(session, digest_size=_SESSION_BYTES).hexdigest()


def is_remote(identity: str) -> bool:
    """Whether *identity* is that of a worker that came over TCP."""
    return identity.startswith(_REMOTE)


def new_session() -> bytes:
    """A session for a worker that comes over TCP for the first time; it is a secret between it and the server."""
    return secrets.token_bytes(_SESSION_BYTES)


def is_session(given: bytes | None) -> bool:
    """Whether *given* has the form of a session."""
    return given is not None and len(given) == _SESSION_BYTES


def key_of(host: Host, identity: str) -> str | bytes:
    """By what the worker *identity*, which need not be connected, is found: its session, or over TCP the mark of it."""
    if is_remote(identity):
        return identity.partition("/")[2].partition("/")[0]
    return session_of(host, identity)


def session_of(host: Host, identity: str) -> bytes:
    """
    The session that stands for *identity* in a pool parent's heartbeat.

    Made from the identity, so that a restarted dispatcher can tell whose it is from the leases in the database, even of
    a worker that is too busy to reconnect. It is no secret: it extends leases and nothing else, and only for its own
    user.
    """
    return hashlib.blake2b(identity.encode(), digest_size=_SESSION_BYTES, key=host.boot.encode()).digest()


@dataclass(frozen=True, slots=True)
class IdentityParts:
    """What an identity says: ``host/boot/pidns/pid.start/name``."""

    host: str
    boot: str
    pidns: int
    pid: int
    start_time: int
    name: str


def parse(identity: str) -> IdentityParts | None:
    """*identity* taken apart; None for one of another form."""
    try:
        host, boot, pidns, process, name = identity.split("/", 4)
        pid, start_time = map(int, process.split("."))
        return IdentityParts(host, boot, int(pidns), pid=pid, start_time=start_time, name=name)
    except ValueError:
        return None


def process_of(host: Host, identity: str) -> tuple[int, int] | None:
    """
    The pid and start time in *identity*; None for another host, another boot, another pid namespace, or another form.

    Only of a process that this kernel numbers in this namespace can be said whether it lives.
    """
    named = parse(identity)
    if named is None or (named.host, named.boot, named.pidns) != (host.id, host.boot, host.pidns) or named.pid <= 0:
        return None
    return named.pid, named.start_time


def is_in_hand(host: Host, identity: str) -> bool:
    """
    Whether *identity* names a living process that this one can see, and may kill.

    Then its attempts are never handed out again before it is dead. Of all others only their leases are known.
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
