"""
Latencies in bounded memory, three significant figures, shared between processes.

A histogram in the manner of HDR: 1024 linear steps between a power of two and the next, so that a value is off by less
than a thousandth. Its counters lie in a file that a handler process maps and the adapter reads, and they only grow;
what happened in a window is the difference of two readings.
"""

from __future__ import annotations

import mmap
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Final

STEP_BITS: Final = 10  # 1024 steps: three significant figures
STEPS: Final = 1 << STEP_BITS
TOP_BITS: Final = 36  # of microseconds: 19 hours; longer ones count as that
SLOTS: Final = (TOP_BITS - STEP_BITS + 1) * STEPS
WIDTH: Final = 1 + SLOTS  # before the slots, how many jobs have ended
ITEM_BYTES: Final = 8

Counters = Sequence[int]


def slot_of(value_us: int) -> int:
    """The slot that counts this value."""
    value_us = min(max(value_us, 0), (1 << TOP_BITS) - 1)
    shift = max(0, value_us.bit_length() - STEP_BITS - 1)
    return (shift << STEP_BITS) + (value_us >> shift)


def value_of(slot: int) -> float:
    """The middle of the values that a slot counts, microseconds."""
    shift = max(0, (slot >> STEP_BITS) - 1)
    return ((slot - (shift << STEP_BITS)) << shift) + ((1 << shift) - 1) / 2


class Tally:
    """
    What this process counts.

    Args:
        path: Its file, which is made.
    """

    def __init__(self, path: Path) -> None:
        with path.open("w+b") as file:
            file.truncate(WIDTH * ITEM_BYTES)
            self._counters = memoryview(mmap.mmap(file.fileno(), WIDTH * ITEM_BYTES)).cast("Q")

    def started(self, after_s: float) -> None:
        """A job began, so long after it was submitted."""
        self._counters[1 + slot_of(int(1e6 * after_s))] += 1

    def ended(self) -> None:
        """A job ended well."""
        self._counters[0] += 1


def reading(directory: Path) -> Counters:
    """The counters of all processes that have a file in this directory, summed up."""
    total: Counters = array("Q", bytes(WIDTH * ITEM_BYTES))
    for path in directory.iterdir():
        found = array("Q", path.read_bytes().ljust(WIDTH * ITEM_BYTES, b"\0"))
        total = array("Q", map(int.__add__, total, found))
    return total


def percentiles_ms(before: Counters, after: Counters, parts: Sequence[float]) -> Iterator[float]:
    """
    Of what was counted between two readings.

    Args:
        parts: Which ones, 0 to 1.

    Yields:
        Milliseconds; 0 where nothing was counted, as the other adapters report it.
    """
    sums = list(accumulate(map(int.__sub__, after[1:], before[1:])))
    for part in parts:
        rank = part * sums[-1]
        slot = next((index for index, count in enumerate(sums) if count and count >= rank), None)
        yield 0.0 if slot is None else value_of(slot) / 1000
