"""Whether a handler process that ended is started again. Pure; how often and how soon is in pulse.restarts."""

from __future__ import annotations

import enum

__all__ = ["Next", "decide"]


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
