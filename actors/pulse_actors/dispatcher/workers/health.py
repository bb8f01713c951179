"""
Why a worker that holds jobs is silent, from its frames and the kernel. See `silent_workers` for what is done about it.

A worker sends heartbeats from its event loop. If only its pool parent sends them, because it sees the process work, a
handler blocks the loop: a blocking call in a coroutine, or C code that holds the interpreter. If neither sends any,
it hangs together with its parent. One that is stopped is seen at once: the kernel says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from pulse.system import processes
from pulse_actors.dispatcher.workers.records import RegisteredWorker

QUIET_BEATS: Final = 2.0  # heartbeats without its own frame; its parent begins to send them after 1.2
STOPPED: Final = frozenset({"T", "t"})


class Condition(StrEnum):
    """The condition of a worker."""

    WELL = "well"
    STOPPED = "stopped"  # by a signal, or a debugger
    BLOCKED = "blocked"  # its process works, its event loop does not
    SILENT = "silent"  # it was silent for a lease, for an unknown reason


def condition_of(worker: RegisteredWorker, now_s: float, heartbeat_s: float) -> Condition:
    """The condition of *worker*, as of now; *now_s*: monotonic clock."""
    if worker.watched and processes.state(worker.facts.pid) in STOPPED:
        return Condition.STOPPED
    is_quiet = worker.held and quiet_s(worker, now_s) >= QUIET_BEATS * heartbeat_s
    if is_quiet and worker.contact.heard_s > worker.contact.said_s and not worker.contact.silent:
        return Condition.BLOCKED
    return Condition.SILENT if worker.contact.silent else Condition.WELL


def quiet_s(worker: RegisteredWorker, now_s: float) -> float:
    """For how long it has sent nothing itself; 0: it never has."""
    return max(0.0, now_s - worker.contact.said_s)


def lease_of(worker: RegisteredWorker, leases: Mapping[str, float], lease_s: float) -> float:
    """The longest lease of the jobs that *worker* holds; *leases*: of topics that have their own."""
    return max((leases.get(held.topic, lease_s) for held in worker.held.values()), default=lease_s)
