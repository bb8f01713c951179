"""
The rights of accounts of this machine: the settings ``allow_users`` and ``allow_groups``, resolved once at start.

The server's own account and root may do everything; others only what these settings allow.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
import socket
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from pulse.errors import ConfigError
from pulse.protocol.roles import EVERYTHING, NOTHING, Access, Rights, rights_of
from pulse.system.sockets.peer_credentials import credentials_of, groups_of

_ROOT: Final = 0
_ROLES: Final = "|".join(Access)
PATTERN: Final = rf"\A\s*[^\s:,+]+:({_ROLES})(\+({_ROLES}))*\s*(,\s*[^\s:,+]+:({_ROLES})(\+({_ROLES}))*\s*)*\Z"
ALLOWED: Final = f"NAME:ROLE, NAME:ROLE+ROLE, ... with the roles {', '.join(Access)} is allowed"
_ENTRY: Final = re.compile(r"[^,]+")


class Grants(msgspec.Struct, frozen=True):
    """
    The rights of accounts and groups.

    Attributes:
        own: The server's uid.
        users: uid -> its rights.
        groups: gid -> its rights.
    """

    own: int
    users: Mapping[int, Rights] = msgspec.field(default_factory=dict[int, Rights])
    groups: Mapping[int, Rights] = msgspec.field(default_factory=dict[int, Rights])

    @property
    def shared(self) -> bool:
        """Whether accounts other than the server's own and root may connect."""
        return bool(self.users or self.groups)

    def is_own(self, uid: int) -> bool:
        """Whether that is the server's own account, or root: these may do everything."""
        return uid in {self.own, _ROOT}

    def of(self, connection: socket.socket) -> Rights:
        """
        The rights of the process that connected, from its uid and all of its groups.

        Raises:
            OSError: The connection is gone.
        """
        uid = credentials_of(connection).uid
        if self.is_own(uid):
            return EVERYTHING
        groups = groups_of(connection) if self.groups else frozenset[int]()
        given = (self.groups[gid] for gid in groups if gid in self.groups)
        return frozenset[Access]().union(self.users.get(uid, NOTHING), *given)


def read_grants(users: str | None, groups: str | None) -> Grants:
    """
    The grants in the two settings, which match ``PATTERN``.

    Raises:
        ConfigError: An account or group does not exist.
    """
    return Grants(
        os.geteuid(),
        _resolved("allow_users", "user", users, lambda name: pwd.getpwnam(name).pw_uid),
        _resolved("allow_groups", "group", groups, lambda name: grp.getgrnam(name).gr_gid),
    )


def parse_roles(text: str) -> Rights | None:
    """The rights of ``ROLE+ROLE``; None: *text* is malformed."""
    names = text.split("+")
    if not all(name in set(Access) for name in names):
        return None
    return rights_of({Access(name) for name in names})


def _resolved(setting: str, what: str, text: str | None, number_of: Callable[[str], int]) -> dict[int, Rights]:
    found: dict[int, Rights] = {}
    for entry in _ENTRY.findall(text or ""):
        name, _, roles = entry.strip().partition(":")
        try:
            number = int(name) if name.isdecimal() else number_of(name)
        except KeyError:
            raise ConfigError(f"{setting}: there is no {what} {name!r:.40} on this machine") from None
        if number in found:
            raise ConfigError(f"{setting}: {what} {name!r:.40} is there twice: each once is allowed")
        found[number] = rights_of({Access(role) for role in roles.split("+")})
    return found
