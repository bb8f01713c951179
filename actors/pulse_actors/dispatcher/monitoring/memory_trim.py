"""
Returns freed memory to the kernel.

glibc keeps freed memory between pieces that are in use: after a flood of long frames that may be a third of the
process. If the allocator has no malloc_trim (musl), nothing is done.
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
MORE_BYTES: Final = 4 * 1024 * 1024  # growth since the last time: trimming takes a millisecond or two
_STATM: Final = Path("/proc/self/statm")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """Memory of this process."""
    return int(_STATM.read_bytes().split()[1]) * _PAGE_BYTES


def allocators_trim() -> Callable[[int], object] | None:
    """The allocator's malloc_trim, if it has one."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None)


class MemoryTrim:
    """
    Trims when memory has grown since the last time.

    Args:
        trim: The allocator's function; None: it has none.
        resident: Returns the memory in use, bytes.
    """

    def __init__(self, trim: Callable[[int], object] | None, resident: Callable[[], int]) -> None:
        self._trim = trim
        self._resident = resident
        self._least = 0

    def look(self) -> None:
        """Trim, if memory has grown."""
        if self._trim is not None and self._resident() > self._least + MORE_BYTES:
            self._trim(0)
            self._least = self._resident()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await anyio.sleep(LOOK_S)
            with suppress(OSError):  # no descriptor is free
                self.look()
