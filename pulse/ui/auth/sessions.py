"""Logins: sessions in the memory of this process, bounded in number and in time."""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias, TypeVar

from pulse.protocol.roles import EVERYTHING, Rights

LIFETIME_S: Final = 12 * 3600.0  # a shift
MOST: Final = 500
MOST_OF_ONE: Final = 50  # of one user: a script that never sends its cookie back ends sessions of its own only
_MOST_FLASHES: Final = 8
_MOST_UNDOS: Final = 20
_MOST_ASKED: Final = 4

Form: TypeAlias = Mapping[str, list[str]]
ThingT = TypeVar("ThingT")


@dataclass(frozen=True, slots=True)
class UndoStep:
    """One request of an undo, in the words of the wire."""

    kind: str
    body: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Undo:
    """How something that was done is taken back; ``label`` says what that is, as on a button."""

    label: str
    steps: Sequence[UndoStep]


@dataclass(frozen=True, slots=True)
class Flash:
    """What was done, or why not, for the next page; ``undo`` is the key of its undo."""

    text: str
    is_error: bool = False
    undo: str | None = None
    undo_label: str = ""
    link: str | None = None
    link_label: str = ""


@dataclass(slots=True)
class BrowserSession:
    """The session of one browser: user, end, rights, the token of its forms, and the message for its next page."""

    user: str
    ends_s: float
    rights: Rights = EVERYTHING
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    flashes: list[Flash] = field(default_factory=list[Flash])
    undos: OrderedDict[str, Undo] = field(default_factory=OrderedDict[str, Undo])
    asked: OrderedDict[str, Form] = field(default_factory=OrderedDict[str, Form], repr=False)

    def show_next(self, flash: Flash, undo: Undo | None = None) -> None:
        """Let the next page say this."""
        if undo is not None:
            key = _keep(self.undos, undo, _MOST_UNDOS)
            flash = Flash(
                flash.text, flash.is_error, key, undo_label=undo.label, link=flash.link, link_label=flash.link_label
            )
        self.flashes = [*self.flashes, flash][-_MOST_FLASHES:]

    def ask_about(self, form: Form) -> str:
        """Keep what a page asks about, under a key for its address."""
        return _keep(self.asked, form, _MOST_ASKED)

    def told(self) -> list[Flash]:
        """What is to be said; it is said once."""
        flashes, self.flashes = self.flashes, []
        return flashes


class BrowserSessions:
    """All sessions, by the hash of the cookie: so this process's memory contains no cookies."""

    def __init__(self) -> None:
        self._by_hash: OrderedDict[bytes, BrowserSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_hash)

    def begin(self, user: str, now_s: float, rights: Rights = EVERYTHING) -> tuple[str, BrowserSession]:
        """A new session, and the cookie that stands for it."""
        cookie = secrets.token_urlsafe(32)
        session = BrowserSession(user, now_s + LIFETIME_S, rights)
        self._by_hash[_hash(cookie)] = session
        of_user = [key for key, one in self._by_hash.items() if one.user == user]
        for key in of_user[:-MOST_OF_ONE]:
            self._end(key)
        while len(self._by_hash) > MOST:
            self._end(next(iter(self._by_hash)))
        return cookie, session

    def find(self, cookie: str | None, now_s: float) -> BrowserSession | None:
        """The session of *cookie*, None when there is none (any more)."""
        if cookie is None:
            return None
        key = _hash(cookie)
        session = self._by_hash.get(key)
        if session is not None and session.ends_s <= now_s:
            del self._by_hash[key]
            return None
        return session

    def end(self, cookie: str | None) -> None:
        """Log out."""
        if cookie is not None:
            self._end(_hash(cookie))

    def _end(self, key: bytes) -> None:
        """Forget it; what is open in its name, as a stream of news, ends too."""
        session = self._by_hash.pop(key, None)
        if session is not None:
            session.ends_s = 0.0


def _keep(kept: OrderedDict[str, ThingT], one: ThingT, most: int) -> str:
    """Under a new key; the oldest of too many are forgotten."""
    key = secrets.token_urlsafe(12)
    kept[key] = one
    while len(kept) > most:
        kept.popitem(last=False)
    return key


def _hash(cookie: str) -> bytes:
    return hashlib.sha256(cookie.encode("utf-8", "surrogatepass")).digest()
