"""Benches on a shared machine take turns: a lock on a file, held for some minutes at a time."""

from __future__ import annotations

import fcntl
import time
from pathlib import Path
from typing import IO, Final

HOLD_S: Final = 175.0  # then others may, too


class TurnLock:
    """
    Held while the next turn is likely to end in time; else given away, and waited for.

    Args:
        path: The file; None: there is nobody to take turns with.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: IO[str] | None = None
        self._since_s = self._turn_s = self._longest_s = 0.0

    def begin_turn(self) -> None:
        """Call it before each turn; it may take long."""
        now_s = time.monotonic()
        if self._file is not None:
            self._longest_s = max(self._longest_s, now_s - self._turn_s)
            if now_s + self._longest_s > self._since_s + HOLD_S:
                self.close()
        if self._file is None and self._path is not None:
            self._file = self._path.open("a")
            fcntl.flock(self._file, fcntl.LOCK_EX)
            self._since_s = time.monotonic()
        self._turn_s = time.monotonic()

    def close(self) -> None:
        """Give it away."""
        if self._file is not None:
            self._file.close()
            self._file = None
