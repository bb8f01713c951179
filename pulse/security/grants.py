"""
Which accounts of this machine may do what: the settings ``allow_users`` and ``allow_groups``, resolved once at start.

The server's own account and root may do everything, and without these settings nobody else may do anything.
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
from pulse.system.peer_credentials import credentials_of, groups_of

_ROOT: Final = 0
_ROLES: Final = "|".join(Access)
PATTERN: Final = rf"\A\s*[^\s:,+]+:({_ROLES})(\+({_ROLES}))*\s*(,\s*[^\s:,+]+:({_ROLES})(\+({_ROLES}))*\s*)*\Z"
ALLOWED: Final = f"NAME:ROLE, NAME:ROLE+ROLE, ... with the roles {', '.join(Access)} is allowed"
_ENTRY: Final = re.compile(r"[^,]+")


class Grants(msgspec.Struct, frozen=True):
    """
    Who may do what.

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
        """Whether others than the server's own account and root may come."""
        return bool(self.users or self.groups)

    def is_own(self, uid: int) -> bool:
        """Whether that is the server's own account, or root: nothing is refused to them."""
        return uid in {self.own, _ROOT}

    def of(self, connection: socket.socket) -> Rights:
        """
        What the process that connected may do, by all that its uid and its groups are given.

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
    The grants that the two settings are about.

    Raises:
        ConfigError: An account or group is not there.
    """
    return Grants(
        os.geteuid(),
        _resolved("allow_users", "user", users, lambda name: pwd.getpwnam(name).pw_uid),
        _resolved("allow_groups", "group", groups, lambda name: grp.getgrnam(name).gr_gid),
    )


def parse_roles(text: str) -> Rights | None:
    """What ``ROLE+ROLE`` amounts to; None where *text* is something else."""
    names = text.split("+")
    if not all(name in set(Access) for name in names):
        return None
    return rights_of({Access(name) for name in names})


def _resolved(setting: str, what: str, text: str | None, number_of: Callable[[str], int]) -> dict[int, Rights]:
    found: dict[int, Rights] = {}
    for entry in _ENTRY.findall(text or ""):
        name, _, roles = entry.strip().partition(":")
        rights = parse_roles(roles)
        if rights is None:
            raise ConfigError(f"{setting}: {entry.strip()!r:.80} is not understood: {ALLOWED}")
        try:
            number = int(name) if name.isdecimal() else number_of(name)
        except KeyError:
            raise ConfigError(f"{setting}: there is no {what} {name!r:.40} on this machine") from None
        if number in found:
            raise ConfigError(f"{setting}: {what} {name!r:.40} is there twice: each once is allowed")
        found[number] = rights
    return found
