"""Decides whether a handler process that ended is started again; `system.restart_policy` bounds how often. Pure."""

from __future__ import annotations

import enum
from typing import Final

from pulse.system.restart_policy import Delay, Intensity, RestartLog

__all__ = ["Next", "decide", "next_delay_s"]

RESTART_DELAY: Final = Delay(first_s=0.25, longest_s=5.0)


class Next(enum.Enum):
    """What happens to a slot whose process has ended."""

    RESTART = enum.auto()
    REPLACE = enum.auto()  # the end was requested, for a new process to follow
    DONE = enum.auto()  # the end was requested
    REFUSED = enum.auto()  # it cannot work, nor could another one


def decide(*, stopping: bool, drained: bool, replaced: bool, refused: bool) -> Next:
    """
    What to do after a process ended, however it did: also one that was killed at the end of a drain stays away.

    Args:
        stopping: The pool is being stopped.
        drained: The server asked the process to end for good.
        replaced: The server asked it to end, and another one is to follow.
        refused: The process reported that it cannot work.
    """
    if refused:
        return Next.REFUSED
    if stopping or drained:
        return Next.DONE
    return Next.REPLACE if replaced else Next.RESTART


def next_delay_s(log: RestartLog, limits: Intensity, *, worked: bool) -> float | None:
    """
    The delay of the restart that *log* recorded last; None: there were too many.

    A process that had *worked* was killed by one of its jobs: the job's own budgets bound that, and it must not cost
    the others their pool. A process that dies before it works does so whatever its jobs.
    """
    return None if log.exceeds(limits) and not worked else RESTART_DELAY.after(log.earlier)
