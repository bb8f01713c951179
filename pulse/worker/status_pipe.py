"""
Notes of a handler process to its pool parent, over a pipe: app loaded, session, answered heartbeats, why it ended.

A note is a kind (1 byte), a length (4 bytes, big-endian) and a text. The parent needs them to know when to send
heartbeats for a child, and to print once, not once per process, that the app cannot be loaded.
"""

from __future__ import annotations

import contextlib
import enum
import os
from dataclasses import dataclass
from typing import Final

__all__ = ["Kind", "Note", "NoteReader", "NoteWriter"]

TEXT_MAX_BYTES: Final = 32 * 1024  # half a pipe: written in one piece even if nobody reads yet
_LENGTH: Final = slice(1, 5)


class Kind(enum.Enum):
    """The kind of a note."""

    LOADED = b"L"  # the app is loaded
    SESSION = b"S"  # connected; the text is the session
    BEAT = b"B"  # the server answered a heartbeat
    DRAINED = b"D"  # the server asked this process to end for good
    REPLACED = b"N"  # the server asked this process to end, and another one is to follow
    REFUSED = b"R"  # this process cannot work, nor could another one; the text says why


_KINDS: Final = frozenset(kind.value for kind in Kind)


@dataclass(frozen=True, slots=True)
class Note:
    """One note."""

    kind: Kind
    text: bytes = b""


class NoteWriter:
    """The child's end. A parent that does not read never blocks the child: what does not fit is dropped."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        os.set_inheritable(fd, False)  # a child of a handler must not hold the pipe open
        os.set_blocking(fd, False)

    def write(self, kind: Kind, text: bytes = b"") -> None:
        """Send a note."""
        text = text[:TEXT_MAX_BYTES]
        with contextlib.suppress(OSError):
            os.write(self._fd, kind.value + len(text).to_bytes(4, "big") + text)


class NoteReader:
    """The parent's end, without the reading: bytes in, notes out."""

    def __init__(self) -> None:
        self._buffer = b""
        self._is_lost = False

    def is_lost(self) -> bool:
        """Whether something malformed came: a handler has written there. The rest cannot be read."""
        return self._is_lost

    def feed(self, data: bytes) -> list[Note]:
        """The notes that *data* completes."""
        self._buffer += data
        notes: list[Note] = []
        while not self._is_lost and len(self._buffer) >= _LENGTH.stop:
            length = int.from_bytes(self._buffer[_LENGTH], "big")
            if self._buffer[:1] not in _KINDS or length > TEXT_MAX_BYTES:
                self._is_lost = True
                break
            end = _LENGTH.stop + length
            if len(self._buffer) < end:
                break
            notes.append(Note(Kind(self._buffer[:1]), self._buffer[_LENGTH.stop : end]))
            self._buffer = self._buffer[end:]
        return notes
