"""
Whether the database has gone back, from what it says of itself and what this host remembers of it. Pure.

What proves it: it does not know this host, or has counted less of it than it had confirmed; its newest epoch is older
than one that was accepted; or it is another database under the same name. So do attempts of which it knows less: those
are asked for at a new place, since the counter moves only once a second. A new server, or a new timeline, proves
nothing: a synchronous failover loses nothing.
"""

from __future__ import annotations

import enum
from typing import Final

from pulse.store.recovery.epochs import DatabaseState
from pulse.store.rows import Claim
from pulse_actors.shared.epoch_memory import Memory

_MOST: Final = 10  # what doubles each time is long enough then
STEP: Final = 1000  # attempts; the numbers of each epoch begin above a multiple of it


class Verdict(enum.Enum):
    """What to do."""

    STANDBY = enum.auto()  # it takes no writes: away
    COME = enum.auto()  # seen for the first time
    BACK = enum.auto()  # it has gone back: raise the epoch
    ACCEPT = enum.auto()  # another host has raised it
    MOVED = enum.auto()  # another place: look whether it knows what was handed out last
    STAY = enum.auto()


def judge(memory: Memory, seen: DatabaseState) -> Verdict:
    """What to do about a database that says *seen* of itself."""
    if seen.timeline is None:
        return Verdict.STANDBY
    if not memory.counter:
        return Verdict.COME
    if memory.lineage != seen.lineage or seen.epoch < memory.epoch:
        return Verdict.BACK
    if seen.epoch > memory.epoch:  # whatever it has counted; but its floor must be above all that was handed out here
        return Verdict.BACK if memory.highest > seen.floor else Verdict.ACCEPT
    if seen.counter is None or seen.counter < memory.counter:
        return Verdict.BACK
    return Verdict.MOVED if memory.place != seen.place else Verdict.STAY


def next_epoch(memory: Memory, seen: DatabaseState) -> int:
    """The number of a new epoch: above all that are known."""
    return max(memory.epoch, seen.epoch) + 1


def given_back(claim: Claim) -> int:
    """How often a job may have been given back, 10 times at most; that its number jumped to a floor does not count."""
    return min(claim.uncharged, (claim.attempt - 1) % STEP, _MOST)


def bound_of(attempt: int) -> int:
    """What is remembered before *attempt* is handed out: so it happens once in many attempts of a job."""
    return -(-attempt // STEP) * STEP
