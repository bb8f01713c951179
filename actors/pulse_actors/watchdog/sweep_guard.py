"""
Decides whether a sweep may trust that a lapsed lease means a silent worker.

When the database or every watchdog was away, leases may have lapsed because no heartbeat could be stored, or it is
unknown whether one could. The same if the database's clock was set forward. Then sweeps wait for one lease, within
which every living worker sends a heartbeat. A death that the kernel has proven needs no sweep.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BEATS: Final = 1.5  # one is due within the gap, and another one may have been missed just before it
SWEEPS: Final = 1.5  # a sweep that is a little late is no gap


@dataclass(frozen=True, slots=True)
class Reading:
    """
    The database's clock, read between two readings of this host's.

    Attributes:
        database_s: Unix seconds.
        asked_s: Monotonic, before the query.
        heard_s: Monotonic, after the answer.
    """

    database_s: float
    asked_s: float
    heard_s: float


class SweepGuard:
    """
    One watchdog's memory of its sweeps. Pure: times come in.

    Args:
        heartbeat_s: Pause between two heartbeats of a worker.
        sweep_s: Wanted pause between two sweeps.

    Attributes:
        gap_s: A longer time between two sweeps is a gap.
        sweep_s: Pause between two sweeps, short enough that a late one makes no gap.
    """

    def __init__(self, *, lease_s: float, heartbeat_s: float, sweep_s: float) -> None:
        self.lease_s: Final = lease_s
        # A worker with a heartbeat just before the gap, and one right after it, still holds its lease.
        self.gap_s: Final = lease_s - BEATS * heartbeat_s
        self.sweep_s: Final = min(sweep_s, self.gap_s / SWEEPS)
        self.step_s: Final = max(lease_s - BEATS * heartbeat_s, heartbeat_s) / 2
        self._last: Reading | None = None
        self._wait_until_s = float("-inf")

    @property
    def is_new(self) -> bool:
        """Whether no sweep has begun yet."""
        return self._last is None

    def doubt(self, gap_s: float, reading: Reading, wait_s: float = 0.0) -> str | None:
        """
        A sweep begins.

        Args:
            gap_s: Seconds since the last sweep of any watchdog.
            reading: The database's clock, and when it was read.
            wait_s: Until the end of a wait that another watchdog began: this one may have seen no gap.

        Returns:
            Why leases cannot be trusted for one lease from now; None: nothing new.
        """
        last, self._last = self._last, reading
        reason = None
        if not -self.step_s <= gap_s <= self.gap_s:
            reason = f"the last sweep was {gap_s:.1f} s ago"
        elif last is None:
            self._wait_until_s = max(
                self._wait_until_s, reading.heard_s
            )  # a single reading of the clock shows no change
        else:
            moved_s = reading.database_s - last.database_s
            least_s, most_s = reading.asked_s - last.heard_s, reading.heard_s - last.asked_s
            step_s = max(least_s - moved_s, moved_s - most_s)
            if step_s > self.step_s:
                reason = f"the database's clock was set by about {moved_s - most_s:+.1f} s"
        if wait_s > 0:
            self._wait_until_s = max(self._wait_until_s, reading.heard_s + min(wait_s, self.lease_s))
        if reason is not None:
            self._wait_until_s = reading.heard_s + self.lease_s
        return reason

    def may_reap(self, now_s: float) -> bool:
        """Whether lapsed leases may be ended now."""
        return now_s > self._wait_until_s
