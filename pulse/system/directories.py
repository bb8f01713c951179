"""
Chooses the directories of sockets and state, and checks that they are safe.

A user who can write into the runtime directory can put a socket of their own there and receive the jobs of others. So
both sides refuse a directory that another user controls: the server before it listens, the client before it connects.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pulse.errors import PathError
from pulse.system.sockets.peer_credentials import user_name

CLIENT_SOCKET: Final = "pulse.sock"  # workers and clients, served by the dispatcher
SUPERVISOR_SOCKET: Final = "supervisor.sock"  # status and control, served by the supervisor
MAX_SOCKET_PATH_BYTES: Final = 107  # sun_path of Linux has 108, one of them for the NUL
_SYSTEM_RUNTIME_DIR: Final = Path("/run/pulse")
_SYSTEM_STATE_DIR: Final = Path("/var/lib/pulse")
_ROOT: Final = 0
_PASS: Final = stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH


def client_candidates(env: Mapping[str, str], named: Path | None = None) -> list[Path]:
    """
    The directories where a client looks for a server, in order; the first that accepts is taken.

    Args:
        env: The environment.
        named: The directory that an option or the config file names; it comes first.
    """
    found = (
        named,
        _from_env(env, "PULSE_RUNTIME_DIR"),
        _user_runtime_dir(env),
        _SYSTEM_RUNTIME_DIR,
        _temporary_dir(env, os.geteuid()),
    )
    return list(dict.fromkeys(path for path in found if path is not None))


def server_runtime_dir(env: Mapping[str, str], named: Path | None = None, *, uid: int | None = None) -> Path:
    """
    The directory where a server puts its sockets: the named one, else systemd's, else the usual one.

    Args:
        env: The environment.
        named: The directory that an option, the environment or the config file names.
        uid: Effective user id, by default this process's.

    Returns:
        A path, neither made nor checked yet; see ``prepare_runtime_dir``.
    """
    uid = os.geteuid() if uid is None else uid
    chosen = named or _from_env(env, "PULSE_RUNTIME_DIR") or _from_systemd(env, "RUNTIME_DIRECTORY")
    if chosen is not None:
        return chosen
    if uid == _ROOT:
        return _SYSTEM_RUNTIME_DIR
    by_custom = (_user_runtime_dir(env), _SYSTEM_RUNTIME_DIR)
    usable = (path for path in by_custom if path is not None and _can_be_used(path))
    return next(usable, _temporary_dir(env, uid))


def server_state_dir(env: Mapping[str, str], named: Path | None = None, *, uid: int | None = None) -> Path:
    """
    The directory where a server keeps its data (the embedded PostgreSQL).

    Args:
        env: The environment.
        named: The directory that an option, the environment or the config file names.
        uid: Effective user id, by default this process's.

    Raises:
        PathError: Nothing is named and this user has no home directory.
    """
    uid = os.geteuid() if uid is None else uid
    chosen = named or _from_env(env, "PULSE_STATE_DIR") or _from_systemd(env, "STATE_DIRECTORY")
    if chosen is not None:
        return chosen
    if uid == _ROOT:
        return _SYSTEM_STATE_DIR
    return (_from_env(env, "XDG_STATE_HOME", absolute=True) or _home(env, uid) / ".local" / "state") / "pulse"


def prepare_runtime_dir(path: Path, *, named: bool, shared: bool = False) -> None:
    """
    Make the server's runtime directory (0700) when it is missing, and refuse it when it is not safe or not usable.

    Args:
        path: The directory.
        named: Whether the user named it: then it may belong to another user and be shared with a group.
        shared: Whether other accounts may reach the sockets in it (0711); the server checks their rights.

    Raises:
        PathError: It cannot be made, is a symlink or no directory, belongs to another user, or others may write to it.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise PathError(f"runtime directory {path} cannot be made: {_reason(error)}; set PULSE_RUNTIME_DIR") from error
    _check(path, named=named)
    if not _is_writable(path):
        raise PathError(f"runtime directory {path} is not writable by this user; set PULSE_RUNTIME_DIR to one that is")
    if shared:
        _let_pass(path)


def check_client_dir(path: Path, *, named: bool) -> None:
    """
    Refuse a directory in which a client must not trust a socket.

    Args:
        path: The directory.
        named: Whether the user named it: then it may belong to another user and be shared with a group.

    Raises:
        PathError: It is missing, a symlink or no directory, belongs to another user, or others may write to it.
    """
    _check(path, named=named)


def check_socket_path(path: Path) -> None:
    """
    Refuse a socket path that the kernel cannot hold.

    Raises:
        PathError: It has more than 107 bytes; the message says how many.
    """
    length = len(os.fsencode(path))
    if length > MAX_SOCKET_PATH_BYTES:
        raise PathError(
            f"socket path {path} has {length} bytes, at most {MAX_SOCKET_PATH_BYTES} are possible: "
            "set PULSE_RUNTIME_DIR to a shorter directory"
        )


def _check(path: Path, *, named: bool) -> None:
    try:
        found = path.lstat()
    except OSError as error:
        raise PathError(f"runtime directory {path} cannot be used: {_reason(error)}") from error
    mode = found.st_mode
    if stat.S_ISLNK(mode):
        raise PathError(f"runtime directory {path} is a symlink: name the directory that it points to")
    if not stat.S_ISDIR(mode):
        raise PathError(f"runtime directory {path} is not a directory")
    if not named and found.st_uid not in (_ROOT, os.geteuid()) and not _was_made_by_root(path):
        raise PathError(
            f"runtime directory {path} belongs to user {user_name(found.st_uid) or found.st_uid}: "
            "name it by PULSE_RUNTIME_DIR if that is meant"
        )
    # A group may share a directory that the user chose; a usual one must be private to its owner.
    if mode & stat.S_IWOTH or (mode & stat.S_IWGRP and not named):
        raise PathError(
            f"runtime directory {path} is writable by others (mode {stat.S_IMODE(mode):04o}): chmod go-w {path}"
        )


def _was_made_by_root(path: Path) -> bool:
    """Whether only root can make directories in its parent: then root chose its owner."""
    if path != _SYSTEM_RUNTIME_DIR:
        return False
    parent = path.parent.stat()
    return parent.st_uid == _ROOT and not parent.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _let_pass(path: Path) -> None:
    """Let all accounts reach files in *path*, without listing them."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & _PASS == _PASS:
        return
    try:
        path.chmod(mode | _PASS)
    except OSError as error:
        raise PathError(
            f"runtime directory {path} is not passable for those of allow_users and allow_groups "
            f"(mode {mode:04o}), and cannot be made so: {_reason(error)}; chmod a+x {path}"
        ) from error


def _from_env(env: Mapping[str, str], name: str, *, absolute: bool = False) -> Path | None:
    """The path in *name*, made absolute; None when unset, empty, or relative where only absolute ones count."""
    text = env.get(name, "")
    if not text or (absolute and not text.startswith("/")):
        return None
    return Path(text).absolute()


def _from_systemd(env: Mapping[str, str], name: str) -> Path | None:
    """The first directory of a colon-separated list, as systemd hands them to a unit with several."""
    first = env.get(name, "").split(":", 1)[0]
    return Path(first) if first.startswith("/") else None


def _user_runtime_dir(env: Mapping[str, str]) -> Path | None:
    base = _from_env(env, "XDG_RUNTIME_DIR", absolute=True)
    return base / "pulse" if base is not None else None


def _temporary_dir(env: Mapping[str, str], uid: int) -> Path:
    return (_from_env(env, "TMPDIR", absolute=True) or Path("/tmp")) / f"pulse-{uid}"  # noqa: S108 -- owner and mode are checked before use


def _can_be_used(path: Path) -> bool:
    """Whether this user can work in *path*, or make it."""
    return _is_writable(path) or (not os.access(path, os.F_OK, effective_ids=True) and _is_writable(path.parent))


def _is_writable(path: Path) -> bool:
    return os.access(path, os.W_OK | os.X_OK, effective_ids=True)


def _home(env: Mapping[str, str], uid: int) -> Path:
    home = _from_env(env, "HOME", absolute=True)
    if home is not None:
        return home
    try:
        return Path(pwd.getpwuid(uid).pw_dir)
    except KeyError:
        raise PathError(f"user {uid} has no home directory to keep state in: set PULSE_STATE_DIR") from None


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
