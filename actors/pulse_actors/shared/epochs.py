"""
Decides whether the database has gone back, from its state and what this host remembers. Pure.

Proof: it does not know this host, or has a smaller counter than it had confirmed; its newest epoch is older than one
that was accepted; or it is another database under the same name. So is a job with fewer attempts than were handed out:
that is checked at a new place, since the counter moves only once a second. A new server or a new timeline alone proves
nothing: a synchronous failover loses nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from datetime import datetime
from typing import Final

from pulse.common.ids import first_at
from pulse.store.recovery.epochs import DatabaseState
from pulse.store.rows import Claim
from pulse_actors.shared.epoch_memory import Memory

_MOST: Final = 10  # doublings: enough to be long
_TIMED: Final = 7  # the version of such an id
CLOCKS_S: Final = 60.0  # as far as the clocks of clients and of the database may be apart
STEP: Final = 1000  # attempts; the numbers of each epoch begin above a multiple of it


class Verdict(enum.Enum):
    """What to do."""

    STANDBY = enum.auto()  # it takes no writes: treated as away
    COME = enum.auto()  # seen for the first time: connect
    BACK = enum.auto()  # it has gone back: raise the epoch
    ACCEPT = enum.auto()  # another host has begun an epoch
    MOVED = enum.auto()  # another place: check whether it knows the last attempts
    STAY = enum.auto()


def judge(memory: Memory, seen: DatabaseState) -> Verdict:
    """What to do about a database with the state *seen*."""
    if seen.timeline is None:
        return Verdict.STANDBY
    if not memory.counter:
        return Verdict.COME
    if memory.lineage != seen.lineage or seen.epoch < memory.epoch:
        return Verdict.BACK
    if seen.epoch > memory.epoch:  # whatever its counter; but its floor must be above all that was handed out here
        return Verdict.BACK if memory.highest > seen.floor else Verdict.ACCEPT
    if seen.counter is None or seen.counter < memory.counter:
        return Verdict.BACK
    return Verdict.MOVED if memory.place != seen.place else Verdict.STAY


def next_epoch(memory: Memory, seen: DatabaseState) -> int:
    """The number of a new epoch: above all known ones."""
    return max(memory.epoch, seen.epoch) + 1


def submitted_since(ids: Iterable[bytes], back_to: datetime | None) -> list[bytes]:
    """Those with timed ids that were submitted after *back_to*, give or take CLOCKS_S: others may have been deleted."""
    if back_to is None:
        return []
    first = first_at(back_to.timestamp() - CLOCKS_S)
    return [one for one in ids if one[6] >> 4 == _TIMED and one >= first]


def given_back(claim: Claim) -> int:
    """How often a job may have been given back, at most 10; a jump of its number to a floor does not count."""
    return min(claim.uncharged, (claim.attempt - 1) % STEP, _MOST)


def bound_of(attempt: int) -> int:
    """The bound to remember before *attempt* is handed out, so far ahead that this is needed rarely."""
    return -(-attempt // STEP) * STEP
