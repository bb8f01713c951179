"""
How all tools tell of workers: their places, and what is the matter with them. Pure.

A worker runs as many jobs at once as it has places. It may hold more: those that were sent ahead, so that a free place
need not wait for the next claim. One that drains takes no more jobs, so its places do not count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pulse.common.text import count
from pulse.protocol.answers import Worker

STATES: Final = {"stopped": "stopped (SIGSTOP)", "blocked": "hangs"}  # by condition


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """
    The places of some workers.

    Attributes:
        places: Of those that do not drain.
        taken: Jobs that run there.
        ahead: Jobs that were sent ahead, to all of them.
        finishing: Jobs that run on workers that drain.
    """

    places: int
    taken: int
    ahead: int
    finishing: int

    @property
    def text(self) -> str:
        """The same in words."""
        sent = f", {count(self.ahead, 'job')} sent ahead" if self.ahead else ""
        last = f", {count(self.finishing, 'job')} on workers that drain" if self.finishing else ""
        return f"{self.taken:,} of {count(self.places, 'place')} taken{sent}{last}"


def places_of(workers: Iterable[Worker]) -> WorkerLoad:
    """The places of *workers*, together."""
    known = list(workers)
    taking = [one for one in known if not one.draining]
    return WorkerLoad(
        places=sum(room_of(one) for one in taking),
        taken=sum(taken_of(one) for one in taking),
        ahead=sum(ahead_of(one) for one in known),
        finishing=sum(taken_of(one) for one in known if one.draining),
    )


def room_of(worker: Worker) -> int:
    """The places of *worker*; an older one did not say how many of its jobs it runs at once."""
    return worker.concurrency or worker.capacity


def taken_of(worker: Worker) -> int:
    """
    How many of its places are taken: more jobs may have started, whose ends are still to be written.

    The jobs of a batch take one; an older server does not know that.
    """
    return min(worker.started if worker.taken is None else worker.taken, room_of(worker))


def ahead_of(worker: Worker) -> int:
    """How many jobs were sent ahead to *worker*, and have not started."""
    return max(0, worker.held - worker.started)


def state_of(worker: Worker) -> str:
    """What is the matter with *worker*, in a word or two; '': nothing."""
    return STATES.get(worker.condition) or ("silent" if worker.silent else "draining" if worker.draining else "")


def cpu_shares(workers: Iterable[Worker], before: Iterable[Worker], passed_s: float) -> dict[str, float]:
    """The share of a core that each worker, by identity, used since *before*; of a new one since its start."""
    known = {one.identity: one.cpu_s for one in before if one.cpu_s is not None}
    shares: dict[str, float] = {}
    for one in workers:
        if one.cpu_s is not None and one.uptime_s is not None:
            old_s = known.get(one.identity)
            used_s, of_s = (one.cpu_s, one.uptime_s) if old_s is None else (one.cpu_s - old_s, passed_s)
            shares[one.identity] = max(0.0, used_s) / max(of_s, 0.01)
    return shares


def load_of(worker: Worker) -> str:
    """What *worker* does: `3/10`, with what was sent ahead; of one that drains, only what it still runs."""
    ahead = f" +{ahead_of(worker)}" if ahead_of(worker) else ""
    return f"{taken_of(worker)}{ahead}" if worker.draining else f"{taken_of(worker)}/{room_of(worker)}{ahead}"
