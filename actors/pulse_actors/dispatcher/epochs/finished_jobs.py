"""The jobs that were completed last, by their ids alone: 16 bytes each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

MOST: Final = 200_000  # 3 MiB; at full speed the last half minute
_BYTES: Final = 16


class FinishedJobs:
    """
    A ring of ids.

    Args:
        most: How many are kept.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most_bytes = most * _BYTES
        self._ring = bytearray()
        self._at = 0

    def add(self, ids: Iterable[bytes]) -> None:
        """These were completed; what is too many falls out, the oldest first."""
        new = b"".join(ids)[-self._most_bytes :]
        free_bytes = self._most_bytes - self._at
        self._ring[self._at : self._at + len(new)] = new[:free_bytes]
        if len(new) > free_bytes:
            self._ring[: len(new) - free_bytes] = new[free_bytes:]
        self._at = (self._at + len(new)) % self._most_bytes

    def ids(self) -> list[bytes]:
        """All that are kept, in no order."""
        return [bytes(self._ring[at : at + _BYTES]) for at in range(0, len(self._ring), _BYTES)]
