"""
The system user that the embedded PostgreSQL runs under when pulse runs as root.

initdb and postgres refuse root and need a passwd entry, so there must be another user: the one that the administrator
names, else ``pulse``, which is made once. No permissions are changed here: to find directories that the user may not
enter, a process tries it as that user, and the administrator gets the answer.
"""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from pulse.errors import EmbeddedError

DEFAULT_USER: Final = "pulse"
_RUN_S: Final = 30.0  # commands here take milliseconds; this bounds a hung NSS or a dead network disk
# Prints how many directories were left when one could not be entered. cd needs search permission only, as PostgreSQL.
_ENTER_EACH: Final = 'while [ $# -gt 0 ]; do cd -P -- "$1" 2>/dev/null || { echo $#; exit 0; }; shift; done; echo 0'


class Account(msgspec.Struct, frozen=True):
    """A user of this system, other than root: name and numbers."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]


def account_for(embedded_user: str | None, log: Callable[..., object]) -> Account | None:
    """
    The account to run PostgreSQL under; None: that of pulse itself.

    Args:
        embedded_user: Name of an existing user (PULSE_EMBEDDED_USER), None for ``pulse``, which is made when missing.
        log: Called with an event and fields when a user was made, or a setting has no effect.

    Raises:
        EmbeddedError: The user does not exist, cannot be made, or is root.
    """
    if os.geteuid() != 0:
        entry = _entry(embedded_user) if embedded_user else None
        if embedded_user and (entry is None or entry.pw_uid != os.geteuid()):
            log("embedded_user_ignored", user=embedded_user, reason="only root can run PostgreSQL as another user")
        return None
    name = embedded_user or DEFAULT_USER
    entry = _entry(name)
    if entry is None and embedded_user:
        raise EmbeddedError(f'PULSE_EMBEDDED_USER names the user "{name}", which does not exist')
    if entry is None:
        entry = make_system_user(name)
        log("system_user_made", user=name, uid=entry.pw_uid)
    if entry.pw_uid == 0:
        raise EmbeddedError(f'PostgreSQL refuses to run as root, and the user "{name}" has uid 0')
    return Account(name, entry.pw_uid, entry.pw_gid, groups=tuple(os.getgrouplist(name, entry.pw_gid)))


def make_system_user(name: str) -> pwd.struct_passwd:
    """
    Make the system user *name*, without home or shell, with a tool of this system.

    Raises:
        EmbeddedError: There is no such tool, or it failed; contains its message.
    """
    complaints: list[str] = []
    for argv in _make_user_commands(name):
        try:
            done = subprocess.run(
                argv, check=False, capture_output=True, text=True, timeout=_RUN_S, stdin=subprocess.DEVNULL
            )
        except FileNotFoundError:
            continue
        except (OSError, subprocess.TimeoutExpired) as error:
            complaints.append(str(error))
            continue
        entry = _entry(name)  # checked whatever the tool prints: another start may have made the user meanwhile
        if entry is not None:
            return entry
        complaints.append(f"{argv[0]}: {(done.stderr or done.stdout).strip() or f'exit code {done.returncode}'}")
    said = complaints[0] if complaints else "neither useradd nor adduser was found"  # the first tool is the usual one
    raise EmbeddedError(
        f'the system user "{name}" for the embedded PostgreSQL (which refuses root) could not be made: '
        f"{' '.join(said.split())}; make it, or name another user with PULSE_EMBEDDED_USER"
    )


def first_closed(directory: Path, account: Account | None) -> Path | None:
    """The first directory of the path to *directory*, itself included, that *account* may not enter; None: none."""
    way = [*reversed(directory.parents), directory]
    left = run_as(account, ["/bin/sh", "-c", _ENTER_EACH, "sh", *map(str, way)]).stdout
    return way[len(way) - int(left)] if int(left) else None


def run_as(account: Account | None, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """
    Run a short command as *account* (None: as pulse itself) and return its output.

    Raises:
        PermissionError: The account may not reach or execute the program.
        EmbeddedError: It hung, or this process cannot become that user.
    """
    try:
        return subprocess.run(
            argv,
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_RUN_S,
            stdin=subprocess.DEVNULL,
            cwd="/",  # the current directory may be closed to that user
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=account.groups if account else None,
        )
    except subprocess.TimeoutExpired as error:
        raise EmbeddedError(f"{argv[0]} did not end within {_RUN_S:.0f} s") from error
    except subprocess.SubprocessError as error:
        name = account.name if account else ""
        raise EmbeddedError(f'a process could not be started as the user "{name}": {error}') from error


def _entry(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def _make_user_commands(name: str) -> list[list[str]]:
    shell = shutil.which("nologin", path="/usr/sbin:/sbin") or "/bin/false"
    try:
        grp.getgrnam(name)
        group = ["--gid", name]
    except KeyError:
        group = ["--user-group"]
    home = "/nonexistent"
    return [
        ["/usr/sbin/useradd", "--system", "--no-create-home", "--home-dir", home, "--shell", shell, *group, name],
        ["adduser", "--system", "--no-create-home", "--home", home, "--shell", shell, "--disabled-password", name],
        ["adduser", "-S", "-D", "-H", "-h", home, "-s", shell, name],  # BusyBox
    ]
