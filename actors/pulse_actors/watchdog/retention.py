"""
Retention: deletes old finished jobs, in small batches, for a small share of the time.

The table is walked by primary key, window by window, since an index on completed_at would slow down every completion.
Ids of version 7 ascend with time, so old jobs are at the beginning, and a walk begins where the last one met the first
job that stays: so it meets no dead entries, which a snapshot may pin there by the million. Jobs submitted within the
retention time cannot be old enough and are skipped: they may be most of the table. Now and then a walk begins at the
very start, for ids of other kinds.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

import anyio
import structlog

from pulse.common.ids import first_at, time_of
from pulse.config import keeps
from pulse.errors import StatementError, UnavailableError
from pulse.store.operators.policies import LivePolicy
from pulse.store.rows import Forgotten
from pulse.store.store import Store
from pulse_actors.runtime.actor import Backoff
from pulse_actors.shared.duty_cycle import rest_s

WINDOW: Final = 2000  # jobs of one statement: some milliseconds
NARROWER: Final = 8  # so many times smaller is a window in which a job is refused
SHARE: Final = 0.1  # of the time
BUSY_SHARE: Final = 0.3  # while most of the jobs that it meets are deleted
MIN_PAUSE_S: Final = 2.0  # between two walks ...
MAX_PAUSE_S: Final = 3600.0
PAUSES: Final = 100  # ... or this fraction of the retention time
WHOLE_WALKS_S: Final = 3600.0  # between two walks from the very start
NOTE_S: Final = 1.0  # between two records of the progress
OTHERS_S: Final = 30.0  # while another supervisor does it
MAX_STEP_PAUSE_S: Final = 1.0
FIRST: Final = bytes(16)
AHEAD_S: Final = 60.0  # tolerance for clocks that run ahead, else their ids would be walked each time

log = structlog.get_logger()


class Walk:
    """
    Where the walk goes on, and when. Pure: times come in.

    Args:
        keep_s: How long a job is kept.
    """

    def __init__(self, keep_s: float) -> None:
        self.keeping(keep_s)
        self._low: bytes | None = None  # in this walk: the first job that stays
        self._whole_s = float("-inf")  # when a walk last began at the very start
        self.at = FIRST
        self.gone = 0  # in this walk
        self.is_over = True  # the next step begins a new walk

    def keeping(self, keep_s: float) -> None:
        """The shortest time that any job is kept."""
        self._keep_s = keep_s
        self._pause_s = min(max(keep_s / PAUSES, MIN_PAUSE_S), MAX_PAUSE_S)

    def took(self, step: Forgotten, took_s: float, now_s: float, wall_s: float, window: int = WINDOW) -> float:
        """
        Add the result of a step.

        Args:
            step: Its result.
            took_s: How long it took.
            now_s: Monotonic.
            wall_s: Unix seconds.
            window: Jobs that it was to look at.

        Returns:
            Seconds until the next one.
        """
        if not step.mine:
            self.at, self._low, self.gone = FIRST, None, 0
            return OTHERS_S
        if self.at == FIRST:
            self._whole_s = now_s
        self.is_over = step.walked < window
        self.gone += step.gone
        self._low = self._low or step.first_left
        going_on = self.at if step.last is None else after(step.last)
        if self.is_over:
            self.at = FIRST if now_s - self._whole_s >= WHOLE_WALKS_S else self._low or going_on
            self._low, self.gone = None, 0
            return self._pause_s
        self.at = going_on
        if step.last is not None and self._is_young(step.last, wall_s):
            self._low = self._low or going_on
            self.at = first_at(wall_s + AHEAD_S)
        share = BUSY_SHARE if 2 * step.gone >= step.walked else SHARE
        return rest_s(took_s, share, MAX_STEP_PAUSE_S)

    def _is_young(self, identity: bytes, wall_s: float) -> bool:
        """Whether a job was submitted too late to be old enough, and so all that follow until now."""
        made_s = time_of(identity)
        return made_s is not None and wall_s - self._keep_s < made_s <= wall_s + AHEAD_S


class Progress:
    """The progress that people see, recorded once a second and at the ends of a walk. Pure: times come in."""

    def __init__(self) -> None:
        self._walked = self._gone = 0
        self._begins = False
        self._noted_s = float("-inf")

    def took(self, step: Forgotten, now_s: float, *, begins: bool, ends: bool) -> tuple[int, int, bool] | None:
        """What to record after this step: jobs walked, gone, and whether a walk began meanwhile; None: not yet."""
        self._walked += step.walked
        self._gone += step.gone
        self._begins = self._begins or begins
        if not ends and now_s - self._noted_s < NOTE_S:
            return None
        due = self._walked, self._gone, self._begins
        self._walked, self._gone, self._begins, self._noted_s = 0, 0, False, now_s
        return due


def after(identity: bytes) -> bytes:
    """The id after *identity*; after the last comes the first."""
    return ((int.from_bytes(identity) + 1) % (1 << 8 * len(FIRST))).to_bytes(len(FIRST))


def shortest_s(policies: Iterable[LivePolicy], keep_s: float) -> float:
    """The shortest time that any job is kept: *keep_s*, or what a topic's policy says."""
    own = (one for policy in policies for one in (policy.retention_s, policy.retention_dead_s) if one is not None)
    return min([keep_s, *own])


async def retain(store: Store, retention_s: float | None) -> None:
    """
    Delete old jobs until cancelled.

    Args:
        retention_s: How long completed and canceled jobs are kept; None: 7 days.
    """
    keep_s, keep_dead_s = keeps(retention_s)
    walk, backoff, progress, window = Walk(keep_s), Backoff(), Progress(), WINDOW
    while True:
        began_s = time.monotonic()
        try:
            walk.keeping(shortest_s((await store.topics.live()).values(), keep_s))
            step = await store.forget(walk.at, window, keep_s, keep_dead_s)
        except UnavailableError as error:
            if isinstance(error, StatementError) and window > 1:
                window = max(1, window // NARROWER)  # one of these jobs cannot be deleted: the others can
                continue
            await anyio.sleep(backoff.failed(error, "retention"))
            if isinstance(error, StatementError):
                walk.at = await _behind(store, walk.at)
            continue
        backoff.reset()
        looked_through, window = window, min(WINDOW, window * NARROWER)
        now_s, gone, begins = time.monotonic(), walk.gone + step.gone, walk.is_over
        pause_s = walk.took(step, now_s - began_s, now_s, time.time(), looked_through)
        due = progress.took(step, now_s, begins=begins, ends=walk.is_over) if step.mine else None
        if due is not None:
            await _tell(store, *due, ends=walk.is_over)
        if gone and not walk.gone:  # the walk is over
            log.info("jobs_forgotten", count=gone)
        await anyio.sleep(pause_s)


async def _behind(store: Store, at: bytes) -> bytes:
    """The id after the first job from *at* on, which is skipped in this walk."""
    try:
        first = await store.aside.first_from(at)
    except UnavailableError:
        return at
    return FIRST if first is None else after(first)


async def _tell(store: Store, walked: int, gone: int, begins: bool, *, ends: bool) -> None:
    """Record the progress; at the end of a walk also delete a batch of old audit entries."""
    try:
        await store.audit.note_retention(walked, gone, begins=begins, ends=ends)
        if ends:
            await store.audit.forget()
    except UnavailableError:
        pass  # the next step says that it is away
