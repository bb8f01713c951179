"""
The duties of pulse as the first process of a container.

In a pid namespace number 1 is special: the kernel discards signals that it has no handler for, also SIGTERM; and it
becomes the parent of all orphans, which only it can reap.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Container
from contextlib import suppress
from types import FrameType
from typing import Final

_INIT: Final = 1
_SIGNALED: Final = 128  # plus the number: how a shell says that a signal ended a process


def is_init() -> bool:
    """Whether this process is the first one of its pid namespace."""
    return os.getpid() == _INIT


def obey_sigterm() -> None:
    """
    As number 1, end at SIGTERM like any other process, until the program has its own handler.

    Else stopping a container that has just started waits in vain, until it is killed.
    """
    if is_init():
        signal.signal(signal.SIGTERM, _leave)


def _leave(number: int, _frame: FrameType | None) -> None:
    os._exit(_SIGNALED + number)


def bury_orphans(kept: Container[int]) -> None:
    """
    Reap every dead child of this process but those *kept*, which are reaped where their exit status is wanted.

    To be called from the main thread: that is the one which the kernel gives orphans to.
    """
    from pulse.system.processes import own_children

    for pid in own_children():
        if pid not in kept:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
