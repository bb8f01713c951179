"""
Memory that was freed goes back to the kernel.

glibc keeps what is freed between pieces that are still in use: after a flood of long frames a third of this process
would be holes. Where the allocator has no such function (musl), nothing is done.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import anyio

LOOK_S: Final = 5.0
MORE_BYTES: Final = 4 * 1024 * 1024  # than after the last time: to trim takes a millisecond or two
_STATM: Final = Path("/proc/self/statm")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """Memory that this process has."""
    return int(_STATM.read_bytes().split()[1]) * _PAGE_BYTES


def allocators_trim() -> Callable[[int], object] | None:
    """The allocator's own, if it has one."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None)


class MemoryTrim:
    """
    Trims when there is more than there was after the last time.

    Args:
        trim: Of the allocator; None: it has none.
        resident: How much there is, bytes.
    """

    def __init__(self, trim: Callable[[int], object] | None, resident: Callable[[], int]) -> None:
        self._trim = trim
        self._resident = resident
        self._least = 0

    def look(self) -> None:
        """Trim, if it may be worth it."""
        if self._trim is not None and self._resident() > self._least + MORE_BYTES:
            self._trim(0)
            self._least = self._resident()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await anyio.sleep(LOOK_S)
            with suppress(OSError):  # no descriptor is free to look with
                self.look()
