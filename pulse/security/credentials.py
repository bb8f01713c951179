"""
The users who may log in, with passwords and roles: ``PULSE_AUTH_USERS`` as ``user:password,user:$2b$...:viewer``.

Passwords are compared in constant time. A bcrypt check takes a quarter of a second of the processor on purpose, so a
verified password is remembered, as a keyed hash, while this process lives. ``Throttle`` slows down guessing.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections import OrderedDict
from typing import Final

import msgspec

from pulse.errors import ConfigError
from pulse.protocol.roles import EVERYTHING, Access, Rights
from pulse.security.grants import parse_roles

BCRYPT_COST: Final = 12  # a quarter of a second of a core in 2025
MAX_BCRYPT_BYTES: Final = 72  # bcrypt ignores the rest; libraries refuse longer ones
_BCRYPT: Final = re.compile(r"\$2[aby]\$(0[4-9]|1[0-9]|2[0-9]|3[01])\$[./A-Za-z0-9]{53}")
_USER: Final = re.compile(r"[^\s:,\x00-\x1f\x7f]{1,64}")
_KIND_BYTES: Final = 7  # "$2b$12$"
_MOST_REMEMBERED: Final = 1024
_ALLOWED: Final = (
    "user:password or user:$2b$... (pulse passwd makes one), with or without :ROLE+ROLE behind it, "
    f"separated by commas, is allowed; roles are {', '.join(Access)}"
)


class _Entry(msgspec.Struct, frozen=True):
    """A user's password and rights; ``is_bcrypt``: *secret* is its hash."""

    secret: bytes
    is_bcrypt: bool
    rights: Rights = EVERYTHING


_NOBODY: Final = _Entry(b"\0", is_bcrypt=False)


def parse_users(text: str) -> Credentials:
    """
    The users in *text*.

    Raises:
        ConfigError: It is malformed; the message has the user's name, never a password.
    """
    entries: dict[str, _Entry] = {}
    for number, part in enumerate(text.split(","), 1):
        user, colon, secret = part.strip().partition(":")
        if not colon or not secret or _USER.fullmatch(user) is None:
            raise ConfigError(f"auth_users: entry {number} has no user and password: {_ALLOWED}")
        if user in entries:
            raise ConfigError(f"auth_users: user {user!r} is there twice: each once is allowed")
        secret, rights = _with_rights(secret)
        is_bcrypt = secret.startswith("$2")
        if is_bcrypt and _BCRYPT.fullmatch(secret) is None:
            raise ConfigError(f"auth_users: the bcrypt entry of user {user!r} is damaged: {_ALLOWED}")
        entries[user] = _Entry(secret.encode(), is_bcrypt, rights)
    return Credentials(entries)


def _with_rights(text: str) -> tuple[str, Rights]:
    """The secret, and the rights of the roles after it; without roles, all."""
    secret, colon, roles = text.rpartition(":")
    rights = parse_roles(roles) if colon and secret else None
    return (text, EVERYTHING) if rights is None else (secret, rights)


def hash_password(password: str) -> str:
    """
    The bcrypt entry of *password*.

    Raises:
        ConfigError: It is empty, or too long for bcrypt.
    """
    import bcrypt

    data = password.encode()
    if not 1 <= len(data) <= MAX_BCRYPT_BYTES or b"\0" in data:
        raise ConfigError(f"a password has 1 to {MAX_BCRYPT_BYTES} bytes and no NUL; this one has {len(data)} bytes")
    return bcrypt.hashpw(data, bcrypt.gensalt(BCRYPT_COST)).decode()


class Credentials:
    """
    The users, and the check of a password. Made by ``parse_users``.

    Its methods may be called from several threads.
    """

    def __init__(self, entries: dict[str, _Entry]) -> None:
        self._entries = entries
        self._key = secrets.token_bytes(32)
        self._verified: OrderedDict[bytes, None] = OrderedDict()
        # Every guess is checked against one hash of each kind, so that the time does not reveal which users exist.
        self._kinds = {_kind_of(entry): entry for entry in entries.values() if entry.is_bcrypt}

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def has_hashes(self) -> bool:
        """Whether some of the entries are bcrypt's."""
        return any(entry.is_bcrypt for entry in self._entries.values())

    def rights_of(self, user: str) -> Rights:
        """The rights of *user*, after the password was verified."""
        return self._entries[user].rights

    def remembers(self, user: str, password: str) -> bool:
        """Whether *password* was verified for *user* before; takes no time."""
        return user in self._entries and self._mark(user, password) in self._verified

    def verify(self, user: str, password: str) -> bool:
        """Whether *password* is *user*'s. May take a quarter of a second: not for an event loop."""
        if self.remembers(user, password):
            return True
        entry = self._entries.get(user, _NOBODY)
        given = password.encode("utf-8", "surrogatepass")
        matches = _matches(entry, given)
        for kind, other in self._kinds.items():
            if kind != _kind_of(entry):
                _matches(other, given)
        if entry is _NOBODY or not matches:
            return False
        if entry.is_bcrypt:
            self._remember(self._mark(user, password))
        return True

    def _mark(self, user: str, password: str) -> bytes:
        text = f"{user}\0{password}".encode("utf-8", "surrogatepass")
        return hmac.digest(self._key, text, hashlib.sha256)

    def _remember(self, mark: bytes) -> None:
        self._verified[mark] = None
        while len(self._verified) > _MOST_REMEMBERED:
            self._verified.popitem(last=False)


def _kind_of(entry: _Entry) -> bytes:
    """Version and cost of a bcrypt entry, which decide how long a check takes; empty for others."""
    return entry.secret[:_KIND_BYTES] if entry.is_bcrypt else b""


def _matches(entry: _Entry, given: bytes) -> bool:
    if not entry.is_bcrypt:
        # Hashes have one length: the comparison does not show how long the password is.
        return hmac.compare_digest(hashlib.sha256(entry.secret).digest(), hashlib.sha256(given).digest())
    import bcrypt

    if len(given) > MAX_BCRYPT_BYTES or b"\0" in given:
        given = b"\0"
        bcrypt.checkpw(b"x", entry.secret)
        return False
    return bcrypt.checkpw(given, entry.secret)


class Throttle:
    """
    How long a source waits after wrong passwords: half a second, doubling with each failure to half a minute.

    A guess counts as wrong from its start, so that many at the same time gain nothing.

    Args:
        first_s: Wait after the first failure.
        longest_s: Longest wait; after ten times that without a failure all is forgotten.
        most_sources: Sources to remember; the oldest are dropped first.
    """

    def __init__(self, first_s: float = 0.5, longest_s: float = 30.0, most_sources: int = 4096) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._most = most_sources
        # source -> how often, when last, and when before that
        self._failures: OrderedDict[str, tuple[int, float, float]] = OrderedDict()

    def wait_s(self, source: str, now_s: float) -> float:
        """Seconds that *source* still has to wait; 0: it may try."""
        count, last_s, _ = self._failures.get(source, (0, now_s, now_s))
        return max(0.0, last_s + self._pause_s(count) - now_s)

    def tries(self, source: str, now_s: float) -> None:
        """*source* tries a password, which is wrong unless ``was_right`` follows."""
        count, last_s, _ = self._failures.pop(source, (0, now_s, now_s))
        if now_s - last_s > 10 * self._longest_s:
            count = 0
        self._failures[source] = (count + 1, now_s, last_s)
        while len(self._failures) > self._most:
            self._failures.popitem(last=False)

    def was_right(self, source: str) -> None:
        """The last password was right; earlier failures still count."""
        count, _, before_s = self._failures.pop(source, (0, 0.0, 0.0))
        if count > 1:
            self._failures[source] = (count - 1, before_s, before_s)

    def forget(self, source: str) -> None:
        """Forget the failures of *source*."""
        self._failures.pop(source, None)

    def _pause_s(self, count: int) -> float:
        if count == 0:
            return 0.0
        return min(self._longest_s, self._first_s * 2.0 ** min(count - 1, 30))
