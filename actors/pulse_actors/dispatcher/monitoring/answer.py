"""The answer to `stats`: waiting jobs, rates and durations; and the loop that keeps its history."""

from __future__ import annotations

import resource
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, cast

import anyio

from pulse import protocol
from pulse.errors import UnavailableError
from pulse.store.connections.usage import away_s
from pulse.store.reading.counts import Depth, Depths
from pulse.store.reading.limits import LimitUsage
from pulse.store.store import Store
from pulse.system import processes
from pulse_actors.dispatcher.monitoring.counters import CHARTED, KINDS, STEP_S, Counted, DispatchCounters
from pulse_actors.dispatcher.monitoring.memory_trim import resident_bytes
from pulse_actors.dispatcher.workers.registry import WorkerRegistry

SHARE: Final = 0.02  # share of the time for counting waiting jobs
ASKED_S: Final = 2.0  # between two counts while a client asks
UNASKED_S: Final = 10.0  # for the history alone
IDLE_S: Final = 60.0  # while nothing happens here
WAIT_S: Final = 1.0  # for a count that a client asked for; then the last one is returned
PRECISE_S: Final = 0.1  # a slower count does not show the database's time precisely enough
MOST_TOPICS: Final = 1000  # listed by name in a count
MOST_LIMITS: Final = 1000
_NEVER: Final = float("-inf")
WAITING: Final = ("ready", "scheduled", "retrying", "unhandled")


class StatsReporter:
    """Counters, and waiting jobs."""

    def __init__(self, store: Store, registry: WorkerRegistry, counters: DispatchCounters) -> None:
        self._store = store
        self._gate = store.gate
        self._depth_store = store.depths
        self._registry = registry
        self._counters = counters
        self._since = time.time()
        self._limit_reads = store.limit_reads
        self._depths: Depths | None = None
        self._limits: tuple[Sequence[LimitUsage], int] = (), 0
        self._looked_s = _NEVER  # the last count that succeeded, monotonic clock
        self._next_s = _NEVER  # no count before
        self._lock = anyio.Lock()

    async def run(self) -> None:
        """Close steps and count waiting jobs now and then, until cancelled."""
        quiet_s, next_s = 0.0, time.monotonic() + STEP_S
        while True:
            await anyio.sleep(max(0.0, next_s - time.monotonic()))
            quiet_s = quiet_s + STEP_S if self._counters.is_idle else 0.0
            await self._look(IDLE_S if quiet_s > UNASKED_S else UNASKED_S)
            self._counters.close_step(time.time(), self._ready())
            next_s = max(next_s + STEP_S, time.monotonic())

    def _ready(self) -> int | None:
        return None if self._depths is None else sum(one.ready for one in self._depths.topics)

    async def _look(self, old_s: float) -> None:
        """Count waiting jobs, unless that was done within *old_s*, or would take too much of the time."""
        async with self._lock:
            began_s = time.monotonic()
            if began_s < self._next_s or began_s - self._looked_s < old_s:
                return
            served = sorted({topic for worker in self._registry.workers() for topic in worker.facts.topics})[
                :MOST_TOPICS
            ]
            try:
                self._limits = await self._limit_reads.usage(MOST_LIMITS)
                depths = await self._depth_store.read(MOST_TOPICS, served)
                self._depths, self._looked_s = depths, time.monotonic()
                if self._looked_s - began_s < PRECISE_S:
                    self._counters.clock_ahead_s = depths.now_s - time.time()
            except UnavailableError:
                pass  # the last count is returned, with its time
            finally:
                self._next_s = time.monotonic() + (time.monotonic() - began_s) / SHARE

    async def waiting(self) -> dict[str, object] | None:
        """What waits in all topics together; None: not known."""
        with anyio.move_on_after(WAIT_S):
            await self._look(ASKED_S)
        if self._depths is None:
            return None
        sums = {state: sum(getattr(one, state) for one in self._depths.topics) for state in WAITING}
        return {**sums, "exact": self._depths.is_exact}

    def full_limits(self) -> list[dict[str, object]]:
        """The limits that have no slot left, as of the last count."""
        return [_limit_row(one) for one in self._limits[0] if one.is_full]

    async def answer(self, body: protocol.StatsRequest) -> dict[str, object]:
        """The answer; *body*: how much of it."""
        gate: Mapping[str, object] = {}
        with anyio.move_on_after(WAIT_S), suppress(UnavailableError):
            await self._look(ASKED_S)
            gate = await self._gate.get()
        rates, rate = self._counters.rates()
        topics, others = self._topics(body.topics, rates, gate.get("topics"))
        depths, now_s = self._depths, time.monotonic()
        return {
            "at": time.time(),
            "since": self._since,
            "topics": topics,
            "others": others,
            "rates": dict(zip(KINDS, rate, strict=True)),
            "paused": gate.get("paused"),
            "exact": depths is not None and depths.is_exact,
            "depth_age_s": None if depths is None else now_s - self._looked_s,
            **{name: self._counters.percentiles(name) for name in CHARTED},
            "series": self._series(body.history_s),
            "workers": self._workers(),
            "counters": self._totals(),
            "histograms": {name: one.told() for name, one in self._counters.timed.items()},
            "limits": [_limit_row(one) for one in self._limits[0][: body.topics]],
            "outbox": None if depths is None else {"ends": depths.ends, "oldest_s": depths.ends_oldest_s},
            "limits_omitted": self._limits[1] + len(self._limits[0][body.topics :]),
            "database": self._database(),
            "dispatcher": _usage(),
        }

    def _topics(
        self, most: int, rates: Mapping[str, Sequence[float]], closed: object
    ) -> tuple[list[dict[str, object]], dict[str, object]]:
        """The largest topics, and the sums of all others."""
        depths = (
            {} if self._depths is None else {one.topic: one for one in self._depths.topics if one.topic is not None}
        )
        rest = [] if self._depths is None else [one for one in self._depths.topics if one.topic is None]
        serving = Counter(topic for worker in self._registry.workers() for topic in worker.facts.topics)
        names = {*depths, *serving, *self._counters.totals, *rates} - {""}

        def work(topic: str) -> tuple[float, float, bool, str]:
            one, rate = depths.get(topic), rates.get(topic)
            jobs = 0 if one is None else one.ready + one.running
            return (-jobs, -sum(rate or ()), topic not in serving, topic)

        ordered = sorted(names, key=work)
        paused = {*cast("Mapping[str, object]", closed)} if isinstance(closed, Mapping) else set[str]()
        held, limit_of = self._held(), self._limit_of()
        shown = [
            {
                **_depth_row(
                    depths.get(name)
                    or Depth(name, 1, 0, scheduled=0, retrying=0, unhandled=0, running=0, oldest_s=None)
                ),
                **({} if held is None else {"running": held[name]}),
                "paused": name in paused,
                "workers": serving[name],
                "rates": dict(zip(KINDS, rates.get(name) or [0.0] * len(KINDS), strict=True)),
                "counts": dict(zip(KINDS, self._counters.total(name), strict=True)),
                "limit": limit_of.get(name),
            }
            for name in ordered[:most]
        ]
        rest += [depths[name] for name in ordered[most:] if name in depths]
        return shown, _others(rest, len(ordered[most:]))

    def _limit_of(self) -> dict[str, str]:
        return {topic: one.name for one in self._limits[0] for topic in one.topics}

    def _held(self) -> Counter[str] | None:
        """What workers here hold by topic, if running jobs were not counted everywhere."""
        if self._depths is not None and self._depths.is_exact:
            return None
        return Counter(held.topic for worker in self._registry.workers() for held in worker.held.values())

    def _series(self, history_s: float) -> dict[str, object]:
        """The newest steps, the oldest first, one list for each chart."""
        history = self._counters.history
        steps = min(len(history), int(history_s / STEP_S))
        rows = list(history)[len(history) - steps :]
        charted = {name: [row[3][name] for row in rows] for name in (rows[0][3] if rows else ())}
        return {
            "step_s": STEP_S,
            "times": [row[0] for row in rows],
            **{KINDS[kind]: [row[1][kind] for row in rows] for kind in Counted},
            "depth": [row[2] for row in rows],
            **charted,
        }

    def _workers(self) -> dict[str, object]:
        """Connected handler processes, how many jobs they can run and hold, and how many they do."""
        workers = [one for one in self._registry.workers() if one.facts.topics or one.facts.names]
        taking = [one for one in workers if not one.is_draining]
        return {
            "connected": len(workers),
            "capacity": sum(one.capacity for one in workers),
            "held": sum(len(one.held) for one in workers),
            "ahead": sum(not held.started for one in workers for held in one.held.values()),
            "places": sum(one.places for one in taking),
            "started": sum(one.taken for one in workers),
        }

    def _totals(self) -> dict[str, object]:
        counters = self._counters
        return {
            **dict(zip(KINDS, counters.grand_total(), strict=True)),
            "dead_lettered": counters.dead_lettered,
            "outcomes": dict(counters.outcomes),
            "reaped": dict(counters.reaped),
            "worker_deaths": dict(counters.worker_deaths),
        }

    def _database(self) -> dict[str, object]:
        usages = {name: pool.usage for name, pool in self._store.pools.items()}
        away = away_s(usages.values(), time.monotonic())
        return {"away_s": away, "pools": {name: usage.told() for name, usage in usages.items()}}


def _depth_row(one: Depth) -> dict[str, object]:
    return {
        "topic": one.topic,
        "ready": one.ready,
        "scheduled": one.scheduled,
        "retrying": one.retrying,
        "unhandled": one.unhandled,
        "running": one.running,
        "oldest_s": one.oldest_s,
        "waiting_for_jobs": one.waiting_for_jobs,
    }


def _limit_row(one: LimitUsage) -> dict[str, object]:
    return {
        "name": one.name,
        "running": one.running,
        "concurrency": one.concurrency,
        "full": one.is_full,
        "retry_s": one.retry_s,
    }


def _others(rest: Iterable[Depth], count: int) -> dict[str, object]:
    """All topics together that are not listed by name."""
    some = list(rest)
    oldest = [one.oldest_s for one in some if one.oldest_s is not None]
    return {
        "topics": max(count, sum(one.topics for one in some)),
        "ready": sum(one.ready for one in some),
        "scheduled": sum(one.scheduled for one in some),
        "retrying": sum(one.retrying for one in some),
        "unhandled": sum(one.unhandled for one in some),
        "running": sum(one.running for one in some),
        "oldest_s": max(oldest, default=None),
        "waiting_for_jobs": sum(one.waiting_for_jobs for one in some),
    }


def _usage() -> dict[str, object]:
    """Resources of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {"pid": processes.own_pid(), "cpu_s": used.ru_utime + used.ru_stime, "rss_bytes": resident_bytes()}
