"""
Counts of the dispatcher by topic, durations, and an hour of both in steps. Pure.

Callers of `add` count a whole batch at once, or once per topic in it, and call `observe` for a few durations of it. The
caller of `close_step` passes the time.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Final

from pulse.common.histogram import Histogram

STEP_S: Final = 5.0
HISTORY: Final = 720  # steps: an hour
RECENT: Final = 12  # steps for rates and percentiles: a minute
MAX_TOPICS: Final = 1000  # counted by name; later topics are counted under ''
MAX_RECOVERING: Final = 10_000  # jobs of dead workers whose next claim is awaited


class Counted(IntEnum):
    """Counts by topic."""

    SUBMITTED = 0
    STARTED = 1
    COMPLETED = 2
    FAILED = 3
    RETRIED = 4


KINDS: Final = tuple(kind.name.lower() for kind in Counted)
TIMED: Final = ("wait_s", "start_s", "run_s", "recovery_s", "lease_margin_s")
CHARTED: Final = ("wait_s", "run_s")  # each step keeps their percentiles
SHARES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
STEP_SHARES: Final = ("p50", "p99")
Counts = list[int]


class CounterStep:
    """Counts within one step, by topic."""

    __slots__ = ("by_topic", "timed")

    def __init__(self) -> None:
        self.by_topic: dict[str, Counts] = {}
        self.timed = {name: Histogram() for name in CHARTED}


class DispatchCounters:
    """
    All counts since the dispatcher started.

    Attributes:
        totals: By topic, until the last step was closed.
        timed: Durations.
        outcomes: How attempts ended, by the words of ``pulse.attempts.outcome``, and ``completed``.
        dead_lettered: Jobs that became dead letters.
        reaped: Attempts that the server ended although their workers had not reported, by the reason.
        worker_deaths: By cause.
        clock_ahead_s: How far the database's clock is ahead of this host's, if known.
        history: Closed steps: when each ended (Unix), counts by kind, waiting jobs, percentiles by name.
    """

    def __init__(self) -> None:
        self.totals: dict[str, Counts] = {}
        self.timed = {name: Histogram() for name in TIMED}
        self.outcomes: Counter[str] = Counter()
        self.dead_lettered = 0
        self.reaped: Counter[str] = Counter()
        self.worker_deaths: Counter[str] = Counter()
        self.clock_ahead_s = 0.0
        self.history: deque[tuple[float, Counts, int | None, Mapping[str, float | None]]] = deque(maxlen=HISTORY)
        self._now = CounterStep()
        self._recent: deque[CounterStep] = deque(maxlen=RECENT)
        self._recovering: dict[bytes, float] = {}

    def add(self, kind: Counted, topic: str, count: int) -> None:
        """Count so many more for a topic."""
        row = self._now.by_topic.get(topic)
        if row is None:
            if topic not in self.totals:
                topic = topic if len(self.totals) < MAX_TOPICS else ""
                self.totals.setdefault(topic, [0] * len(KINDS))
            row = self._now.by_topic.setdefault(topic, [0] * len(KINDS))
        row[kind] += count

    def add_all(self, kind: Counted, topics: Iterable[str]) -> None:
        """Count one more for each of these."""
        for topic, count in Counter(topics).items():
            self.add(kind, topic, count)

    def observe(self, name: str, value_s: float, weight: float = 1.0) -> None:
        """Add a duration, one of TIMED, which stands for *weight* of them."""
        self.timed[name].add(value_s, weight)
        if name in CHARTED:
            self._now.timed[name].add(value_s, weight)

    def ended(self, outcome: str, topic: str, status: str) -> None:
        """An attempt ended without success; *status*: the job's new status."""
        self.outcomes[outcome] += 1
        if outcome in {"released", "unassigned", "snoozed"}:
            return
        self.add(Counted.FAILED, topic, 1)
        if status == "DEAD_LETTERED":
            self.dead_lettered += 1
        else:
            self.add(Counted.RETRIED, topic, 1)

    def died(self, job: bytes, at_s: float) -> None:
        """The worker of *job* died at that monotonic time; measure until the job is claimed again."""
        if len(self._recovering) < MAX_RECOVERING:
            self._recovering[job] = at_s

    @property
    def is_recovering(self) -> bool:
        """Whether jobs of dead workers await their next claim."""
        return bool(self._recovering)

    def claimed_again(self, jobs: Iterable[bytes], now_s: float) -> None:
        """Some of these may be jobs of dead workers."""
        for job in self._recovering.keys() & set(jobs):
            self.observe("recovery_s", now_s - self._recovering.pop(job))

    @property
    def is_idle(self) -> bool:
        """Whether nothing was counted within this step."""
        return not self._now.by_topic

    def close_step(self, ended_at: float, depth: int | None) -> None:
        """
        Begin a new step.

        Args:
            ended_at: Unix time.
            depth: Waiting jobs, if known.
        """
        step, self._now = self._now, CounterStep()
        for topic, counts in step.by_topic.items():
            total = self.totals[topic]
            total[:] = map(int.__add__, total, counts)
        self._recent.append(step)
        charted = {
            f"{name.removesuffix('_s')}_{share}_s": step.timed[name].percentile(SHARES[share])
            for name in CHARTED
            for share in STEP_SHARES
        }
        self.history.append((ended_at, _sum(step.by_topic.values()), depth, charted))

    def total(self, topic: str) -> Counts:
        """The total of one topic."""
        return _sum(counts[topic] for counts in (self.totals, self._now.by_topic) if topic in counts)

    def grand_total(self) -> Counts:
        """The total of all topics."""
        return _sum((*self.totals.values(), *self._now.by_topic.values()))

    def rates(self) -> tuple[dict[str, list[float]], list[float]]:
        """Rates per second within the last minute: of each topic, and of all together."""
        window_s = STEP_S * max(1, len(self._recent))
        sums: dict[str, Counts] = {}
        for step in self._recent:
            for topic, counts in step.by_topic.items():
                sums[topic] = _sum((sums[topic], counts)) if topic in sums else counts
        each = {topic: [count / window_s for count in counts] for topic, counts in sums.items()}
        return each, [count / window_s for count in _sum(sums.values())]

    def percentiles(self, name: str) -> dict[str, float | None]:
        """Percentiles of the durations within the last minute; *name*: one of CHARTED."""
        minute = Histogram()
        for step in (*self._recent, self._now):
            minute.merge(step.timed[name])
        return {label: minute.percentile(share) for label, share in SHARES.items()}


def _sum(rows: Iterable[Counts]) -> Counts:
    total = [0] * len(KINDS)
    for row in rows:
        for index, count in enumerate(row):
            total[index] += count
    return total
