"""
Why a worker that holds jobs says nothing, as far as the book and the kernel tell. What is done about it: see silence.

A worker beats from its event loop. Where it does not, and its pool parent, which sees the process at work, speaks for
it, a handler keeps the loop: a blocking call in a coroutine, or C code that does not let the interpreter go. Where
nobody speaks for it, it is stopped, or hangs together with its parent.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from pulse.system import processes
from pulse_actors.dispatcher.workers.records import RegisteredWorker

QUIET_BEATS: Final = 2.0  # heartbeats without a word of its own; the parent begins to speak for it after 1.2
STOPPED: Final = frozenset({"T", "t"})


class Condition(StrEnum):
    """How a worker is."""

    WELL = "well"
    STOPPED = "stopped"  # by a signal, or a debugger
    BLOCKED = "blocked"  # its process works, its event loop does not
    SILENT = "silent"  # it has let a lease pass, and why cannot be seen


def condition_of(worker: RegisteredWorker, now_s: float, heartbeat_s: float) -> Condition:
    """How *worker* is; asks the kernel for one that has said nothing for long. *now_s*: the monotonic clock."""
    if worker.held and quiet_s(worker, now_s) >= QUIET_BEATS * heartbeat_s:
        if worker.watched and processes.state(worker.facts.pid) in STOPPED:
            return Condition.STOPPED
        if worker.contact.heard_s > worker.contact.said_s and not worker.contact.silent:
            return Condition.BLOCKED
    return Condition.SILENT if worker.contact.silent else Condition.WELL


def quiet_s(worker: RegisteredWorker, now_s: float) -> float:
    """How long it has said nothing itself; 0: it was never heard of."""
    return max(0.0, now_s - worker.contact.said_s)
