"""Verdicts on the directories and sockets of this host, and the reading of the facts."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pulse.errors import PathError
from pulse.ops.doctor.finding import Finding, State, verdict_of
from pulse.system.directories import CLIENT_SOCKET, SUPERVISOR_SOCKET, check_client_dir, check_socket_path
from pulse.system.sockets.peer_credentials import credentials_of, user_name

CONNECT_S: Final = 0.5
LITTLE_BYTES: Final = 1024**3
_LITTLE_SHARE: Final = 0.05


@dataclass(frozen=True, slots=True)
class Directory:
    """
    A directory.

    Attributes:
        owner: Name of its owner; None: it does not exist.
        problem: Why no client trusts it.
        free_bytes: What is free on its disk, and ``all_bytes`` how large that is.
    """

    path: Path
    owner: str | None
    mode: int
    problem: str | None
    free_bytes: int = 0
    all_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Socket:
    """
    A socket.

    Attributes:
        is_there: Whether its file exists.
        pid: Process id of the listener; None: no process accepts.
        problem: Why a connection failed.
    """

    path: Path
    is_there: bool
    pid: int | None
    problem: str | None


def runtime_dir(chosen: Directory | None, looked: Sequence[Path]) -> Finding:
    """Whether there is a runtime directory that both sides trust."""
    if chosen is None:
        text = "there is no runtime directory: no server has ever run where clients look"
        return Finding(
            "runtime-dir",
            State.WRONG,
            text,
            details=tuple(map(str, looked)),
            advice=("Start pulse-supervisor, or set PULSE_RUNTIME_DIR.",),
        )
    shown = f"{chosen.path} of {chosen.owner}, mode {chosen.mode:04o}"
    if chosen.problem is not None:
        return Finding(
            "runtime-dir",
            State.WRONG,
            chosen.problem,
            details=(),
            advice=("Nobody else may be able to put a socket there.",),
        )
    return Finding("runtime-dir", State.OK, shown)


def sockets(found: Sequence[Socket]) -> Finding:
    """Whether both sockets exist and accept connections."""
    wrong = [f"{one.path.name}: {one.problem}" for one in found if one.pid is None]
    heard = ", ".join(f"{one.path.name} by pid {one.pid}" for one in found)
    stale = any(one.is_there for one in found if one.pid is None)
    return verdict_of(
        "sockets", wrong, [], f"accepted: {heard}",
        "Start pulse-supervisor" + ("; it replaces what a killed one has left." if stale else ".")
    )  # fmt: skip


def state_dir(found: Directory, *, is_used: bool) -> Finding:
    """Whether the embedded PostgreSQL has a directory, and free space."""
    if not is_used:
        return Finding("state-dir", State.OK, "no embedded PostgreSQL is used")
    if found.owner is None:
        return Finding(
            "state-dir",
            State.WARNING,
            f"{found.path} is not there yet",
            details=(),
            advice=("pulse-supervisor makes it at its start.",),
        )
    free = f"{found.free_bytes / 1024**3:.1f} GiB free"
    shown = f"{found.path} of {found.owner}, mode {found.mode:04o}, {free}"
    is_little = (
        found.free_bytes < max(LITTLE_BYTES, _LITTLE_SHARE * found.all_bytes) and found.free_bytes < 10 * LITTLE_BYTES
    )
    wrong = [found.problem] if found.problem else []
    return verdict_of(
        "state-dir", wrong, [f"{shown}: that is little"] if is_little else [], shown, "A full disk stops the database."
    )


def directory_at(path: Path, *, named: bool, is_shared: bool) -> Directory:
    """Examine *path*; *is_shared*: clients look into it, so it must be safe."""
    try:
        found = path.lstat()
    except OSError:
        return Directory(path, None, 0, problem=None)
    problem = None
    if is_shared:
        try:
            check_client_dir(path, named=named)
            check_socket_path(path / SUPERVISOR_SOCKET)
        except PathError as error:
            problem = error.message
    elif stat.S_ISLNK(found.st_mode):
        problem = f"{path} is a symlink: name the directory that it points to"
    elif found.st_mode & stat.S_IWOTH:
        problem = f"{path} is writable by everybody (mode {stat.S_IMODE(found.st_mode):04o}): chmod o-w {path}"
    disk = os.statvfs(path)
    return Directory(
        path, user_name(found.st_uid) or f"uid {found.st_uid}", stat.S_IMODE(found.st_mode), problem=problem,
        free_bytes=disk.f_bavail * disk.f_frsize, all_bytes=disk.f_blocks * disk.f_frsize,
    )  # fmt: skip


def socket_at(path: Path) -> Socket:
    """Try to connect there."""
    if not os.path.lexists(path):
        return Socket(path, is_there=False, pid=None, problem="it is not there")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(CONNECT_S)
        try:
            sock.connect(os.fspath(path))
            pid = credentials_of(sock).pid
        except OSError as error:
            refused = error.errno == errno.ECONNREFUSED
            reason = "stale: nobody listens any more" if refused else (error.strerror or "nobody accepts").lower()
            return Socket(path, is_there=True, pid=None, problem=reason)
    return Socket(path, is_there=True, pid=pid, problem=None)


def both_sockets(directory: Path) -> list[Socket]:
    """The two sockets of a server."""
    return [socket_at(directory / name) for name in (CLIENT_SOCKET, SUPERVISOR_SOCKET)]
