"""
The directories of the embedded PostgreSQL. Permissions are changed only of directories that pulse made.

::

    STATE_DIR/                  made here when missing; 0711 where PostgreSQL runs as another user, else 0700
        postgres.lock           held by the process that owns the server
        postgres.log            PostgreSQL's log; only its owner may read it
        postgres-copy/          a copy of PostgreSQL, where the other user could not reach the original
        postgres/               0700, of the user that PostgreSQL runs as
            data/               the data directory
            .s.PGSQL.5432       the socket

Root writes to STATE_DIR itself; inside ``postgres/``, which belongs to the other user, it follows no links.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import stat
import tempfile
import time
from pathlib import Path
from typing import Final

from pulse.errors import EmbeddedError
from pulse_supervisor.postgres.accounts import Account, first_closed

PORT: Final = 5432  # never listened on: part of the socket's name
_SOCKET_NAME: Final = f".s.PGSQL.{PORT}"
_SOCKET_PATH_BYTES: Final = 107  # sun_path of Linux has 108 bytes with its final NUL
_FIRST_PRINTABLE: Final = " "
_LOCK_WAIT_S: Final = (
    1.0  # after a kill the lock is free when the kernel has freed the memory: some 10 ms, more under load
)
_LOCK_POLL_S: Final = 0.01


def make_state_dir(state_dir: Path, account: Account | None) -> Path:
    """
    The state directory with its links resolved, made with its missing parents.

    Raises:
        EmbeddedError: A parent is closed to the user that PostgreSQL runs as, or the name cannot be used.
        OSError: It cannot be made.
    """
    wanted = state_dir.resolve()
    if any(character < _FIRST_PRINTABLE for character in str(wanted)):
        raise EmbeddedError(f"the state directory {str(wanted)!r} has a control character in its name")
    missing = [wanted]
    while not _exists(missing[-1]):
        missing.append(missing[-1].parent)
    closed = first_closed(missing.pop(), account)
    if closed is not None:
        raise EmbeddedError(_closed_line(wanted, closed, account))
    for directory in reversed(missing):
        mode = 0o711 if account else 0o700
        try:
            directory.mkdir(mode)
        except FileExistsError:
            continue  # made by another process just now: not changed
        directory.chmod(mode)  # mkdir's mode is cut by the umask
    mode = stat.S_IMODE(wanted.stat().st_mode)
    if mode & 0o002:
        raise EmbeddedError(f"the state directory {wanted} is writable by everyone (mode {mode:04o}); choose another")
    return wanted


def lock(state_dir: Path) -> int:
    """
    Own the PostgreSQL of *state_dir* until the returned descriptor is closed or this process ends.

    Raises:
        EmbeddedError: A living process owns it; names its pid.
    """
    path = state_dir / "postgres.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    deadline_s = time.monotonic() + _LOCK_WAIT_S
    while not _locked(descriptor):
        if time.monotonic() >= deadline_s:
            owner = os.read(descriptor, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            raise EmbeddedError(f"the state directory {state_dir} is in use by another pulse (pid {owner})")
        time.sleep(_LOCK_POLL_S)
    os.truncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()}\n".encode("ascii"))
    return descriptor


def make_private_dir(path: Path, account: Account | None) -> Path:
    """
    A directory that belongs to *account* (None: to pulse itself) and is closed to all others, made when missing.

    It gets its name after its owner is set, so a kill at any moment leaves nothing half made.

    Raises:
        EmbeddedError: The name is taken: by a link, a file, a directory of another user or an open one.
        OSError: It cannot be made.
    """
    if not _exists(path):
        fresh = path.with_name(f".new-{path.name}-{secrets.token_hex(4)}")
        fresh.mkdir(0o700)
        if account:
            _give(fresh, account)
        fresh.rename(path)
    owner_uid = account.uid if account else os.geteuid()
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise EmbeddedError(f"{path} is not a directory")
    if found.st_uid != owner_uid:
        raise EmbeddedError(
            f"{path} belongs to uid {found.st_uid}, and PostgreSQL would run as uid {owner_uid}: run pulse as before "
            "(as root: name that user with PULSE_EMBEDDED_USER), or choose another state directory"
        )
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise EmbeddedError(f"{path} is open to other users (mode {stat.S_IMODE(found.st_mode):04o}); it must be 0700")
    return path


def socket_dir(home: Path, account: Account | None) -> Path:
    """
    The directory of the socket: *home*, or a short private directory if the path would be too long for a socket.

    Raises:
        EmbeddedError: No place is short enough; tells the length.
    """
    if _fits(home):
        return home
    name = f"pulse-pg-{hashlib.sha256(os.fsencode(home)).hexdigest()[:12]}"
    # Root's run-time directory of a login session is closed to the other user; /run is open.
    bases = ("/run", "/tmp") if account else (os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp")  # noqa: S108 - a private directory in it, checked
    for base in filter(None, bases):
        if _fits(Path(base, name)) and _is_safe(Path(base)):
            return make_private_dir(Path(base, name), account)
    length_bytes = len(os.fsencode(home / _SOCKET_NAME))
    raise EmbeddedError(
        f"the path of PostgreSQL's socket {home / _SOCKET_NAME} has {length_bytes} bytes, the kernel allows "
        f"{_SOCKET_PATH_BYTES}: choose a shorter state directory with --state-dir or PULSE_STATE_DIR"
    )


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _fits(directory: Path) -> bool:
    # To clients a comma ends a host name.
    return len(os.fsencode(directory / _SOCKET_NAME)) <= _SOCKET_PATH_BYTES and "," not in str(directory)


def _is_safe(base: Path) -> bool:
    """Whether only root and this user can rename a directory of ours in *base*."""
    try:
        found = base.stat()
    except OSError:
        return False
    shared = bool(found.st_mode & 0o022) and not found.st_mode & stat.S_ISVTX
    return not shared and found.st_uid in {0, os.geteuid()} and os.access(base, os.W_OK | os.X_OK)


def _exists(path: Path) -> bool:
    """As Path.exists, but true for a dangling link and for what a closed parent hides: these must not be made."""
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    except PermissionError:
        return True
    return True


def _give(directory: Path, account: Account) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise EmbeddedError(f"{directory} was replaced by another user while it was made")
        os.fchown(descriptor, account.uid, account.gid)
    finally:
        os.close(descriptor)


def _closed_line(state_dir: Path, closed: Path, account: Account | None) -> str:
    user = f'the user "{account.name}", which PostgreSQL runs as,' if account else "this user"
    try:
        found = closed.stat()
        why = f" (mode {stat.S_IMODE(found.st_mode):04o}, owner uid {found.st_uid})"
    except OSError as error:
        why = f" ({error.strerror})"
    return (
        f"the state directory {state_dir} cannot be used: {user} may not enter {closed}{why}; "
        "choose another with --state-dir or PULSE_STATE_DIR"
    )
