"""Reading a stream when a test says so, and not before."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import Final

DEADLINE_S: Final = 10.0
PIPE_BYTES: Final = 4096  # as small as a pipe can be


class Reader:
    """The other end; it reads when it is asked to."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.text = b""
        os.set_blocking(fd, False)

    def look(self, size: int) -> None:
        """Read so much, if it is there."""
        with contextlib.suppress(BlockingIOError):
            self.text += os.read(self._fd, size)

    def read(self, until: Callable[[bytes], object]) -> bytes:
        """All that has come, as soon as *until* is content with it."""
        deadline_s = time.monotonic() + DEADLINE_S
        while not until(self.text):
            assert time.monotonic() < deadline_s, self.text[-200:]
            self.look(1 << 20)
        return self.text
