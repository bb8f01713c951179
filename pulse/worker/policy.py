"""When a handler process that ended is started again. Pure: a table of endings and one counter."""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass

__all__ = ["Intensity", "Next", "RestartLog", "decide"]


@dataclass(frozen=True, slots=True)
class Intensity:
    """How much crashing is borne."""

    max_restarts: int = 5  # more than this many ...
    window_s: float = 60.0  # ... within this many seconds: the pool ends with exit code 70
    first_delay_s: float = 0.0  # one crash is an accident, and the jobs wait
    delay_unit_s: float = 0.25  # from the second one on, doubling: 0.25, 0.5, 1, 2 s
    max_delay_s: float = 5.0


class Next(enum.Enum):
    """What becomes of a slot whose process has ended."""

    RESTART = enum.auto()
    DONE = enum.auto()  # it was meant to end
    REFUSED = enum.auto()  # it cannot work, and the next one could not either


def decide(exit_code: int, *, stopping: bool, drained: bool, refused: bool) -> Next:
    """
    What to do after a process ended.

    Args:
        exit_code: Its exit code; negative: killed by that signal.
        stopping: The pool is being stopped.
        drained: The server had asked the process to end for good.
        refused: The process said that it cannot work.

    """
    if refused:
        return Next.REFUSED
    if stopping or (drained and exit_code == 0):
        return Next.DONE
    return Next.RESTART


class RestartLog:
    """The restarts of one slot within the window."""

    def __init__(self, intensity: Intensity) -> None:
        self._intensity = intensity
        self._times_s: deque[float] = deque()

    def next_delay_s(self, now_s: float) -> float | None:
        """Count a restart; how long to wait before it, or None when there were too many."""
        limits = self._intensity
        while self._times_s and self._times_s[0] <= now_s - limits.window_s:
            self._times_s.popleft()
        self._times_s.append(now_s)
        count = len(self._times_s)
        if count > limits.max_restarts:
            return None
        if count == 1:
            return limits.first_delay_s
        return float(min(limits.max_delay_s, limits.delay_unit_s * 2 ** (count - 2)))
