"""A line on the terminal that says how far a command is: each text takes the place of the last one."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Final, Self

_ERASE: Final = "\r\x1b[K"


class ProgressLine:
    """
    The line, on standard error; nothing, where that is no terminal. As a context manager it is gone in the end.

    Args:
        every_s: Least time between two texts; those that come sooner are left out.
        is_shown: Whether it may be shown at all.
    """

    def __init__(self, every_s: float = 0.0, *, is_shown: bool = True) -> None:
        self._every_s = every_s
        self._is_shown = is_shown and sys.stderr.isatty()
        self._at_s = float("-inf")
        self._is_there = False

    def __enter__(self) -> Self:
        """The line itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove it."""
        self.clear()

    def show(self, text: str) -> None:
        """Show *text* instead of what is there."""
        if self._is_shown and time.monotonic() - self._at_s >= self._every_s:
            self._at_s, self._is_there = time.monotonic(), True
            _write(text)

    def clear(self) -> None:
        """Make room for something else."""
        if self._is_there:
            self._is_there = False
            _write("")

    def end(self, text: str) -> None:
        """Leave *text* there, and go to the next line."""
        if self._is_shown:
            self._is_there = False
            _write(f"{text}\n")


def _write(text: str) -> None:
    sys.stderr.write(f"{_ERASE}{text}")
    sys.stderr.flush()
