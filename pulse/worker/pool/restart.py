"""Whether a handler process that ended is started again; `system.restart_policy` says how often and how soon. Pure."""

from __future__ import annotations

import enum
from typing import Final

from pulse.system.restart_policy import Delay, Intensity, RestartLog

__all__ = ["Next", "decide", "next_delay_s"]

RESTART_DELAY: Final = Delay(first_s=0.25, longest_s=5.0)


class Next(enum.Enum):
    """What becomes of a slot whose process has ended."""

    RESTART = enum.auto()
    DONE = enum.auto()  # it was meant to end
    REFUSED = enum.auto()  # it cannot work, and the next one could not either


def decide(*, stopping: bool, drained: bool, refused: bool) -> Next:
    """
    What to do after a process ended, however it did: one whose handler outlasts the drain must not come back either.

    Args:
        stopping: The pool is being stopped.
        drained: The server had asked the process to end for good.
        refused: The process said that it cannot work.
    """
    if refused:
        return Next.REFUSED
    return Next.DONE if stopping or drained else Next.RESTART


def next_delay_s(log: RestartLog, limits: Intensity, *, worked: bool) -> float | None:
    """
    How long to wait before the restart that *log* recorded last; None: there were too many.

    A process that had *worked* was killed by one of its jobs: that is bounded by the job's own budgets, and must not
    take the pool away from all the others. One that dies before it got to work does so whatever it is given.
    """
    return None if log.exceeds(limits) and not worked else RESTART_DELAY.after(log.earlier)
