"""Limits the log of refusals to one line a minute: a client in a loop must not fill log and audit."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

AGAIN_S: Final = 60.0
_MOST: Final = 1024


class Refused:
    """
    Counts refusals by subject. Pure: the clock is the caller's.

    Args:
        again_s: Seconds between two log lines about the same subject.
    """

    def __init__(self, again_s: float = AGAIN_S) -> None:
        self._again_s = again_s
        self._told: OrderedDict[tuple[str, ...], tuple[float, int]] = OrderedDict()  # when last, and how many since

    def count(self, what: tuple[str, ...], now_s: float) -> int | None:
        """Count one more; returns how many since the last log line if another is due now, else None."""
        told_s, since = self._told.get(what, (float("-inf"), 0))
        if now_s - told_s < self._again_s:
            self._told[what] = (told_s, since + 1)
            return None
        self._told.pop(what, None)  # the newest come last
        self._told[what] = (now_s, 0)
        if len(self._told) > _MOST:
            self._told.popitem(last=False)
        return since + 1
