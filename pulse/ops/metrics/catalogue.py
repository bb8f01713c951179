"""Every metric there is: its name, its labels, what it tells, and where that is found in a snapshot."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, cast

from pulse.ops.metrics.snapshot import MetricsSnapshot
from pulse.protocol.stats import Buckets, LimitStats, Stats, TopicStats

LONGEST_LABEL: Final = 80
STATES: Final = ("ready", "scheduled", "retrying", "unhandled", "running")  # of TopicStats
_UNFIT: Final = re.compile(
    "[^\\x20-\\x7e\u00a0-\u200a\u2010-\u2027\u2030-\u205f\u2070-\ud7ff\uf900-\ufefe\uff00-\uffef]"
)
Value = tuple[tuple[str, ...], float]
Samples = Iterable[Value]
Read = Callable[[MetricsSnapshot], Samples]


@dataclass(frozen=True, slots=True)
class Metric:
    """
    A gauge or a counter.

    Attributes:
        name: As it is exported, a counter's with ``_total``.
        help: One sentence.
        read: The values by labels.
        labels: Their names, in the order in which ``read`` has their values.
    """

    name: str
    help: str
    read: Read
    labels: tuple[str, ...] = ()
    kind: Literal["gauge", "counter"] = "gauge"


@dataclass(frozen=True, slots=True)
class Durations:
    """A histogram of seconds; as above, with buckets in the place of values."""

    name: str
    help: str
    read: Callable[[MetricsSnapshot], Iterable[tuple[tuple[str, ...], Buckets]]]
    labels: tuple[str, ...] = ()


def _of(read: Callable[[Stats], float | None]) -> Read:
    """One value of the dispatcher's."""

    def values(snapshot: MetricsSnapshot) -> Iterator[Value]:
        value = None if snapshot.stats is None else read(snapshot.stats)
        if value is not None:
            yield (), value

    return values


def _each(read: Callable[[Stats], Mapping[str, float]]) -> Read:
    """Values by one label."""

    def values(snapshot: MetricsSnapshot) -> Iterator[Value]:
        if snapshot.stats is not None:
            for label, value in sorted(read(snapshot.stats).items()):
                yield (clean(label),), value

    return values


def _topics(read: Callable[[TopicStats], Mapping[str, float | None]]) -> Read:
    """Values by topic and, where it has a name, one label more."""

    def values(snapshot: MetricsSnapshot) -> Iterator[Value]:
        for topic in () if snapshot.stats is None else snapshot.stats.topics:
            for label, value in read(topic).items():
                if value is not None:
                    yield ((clean(topic.topic), label) if label else (clean(topic.topic),)), value

    return values


def _limits(read: Callable[[LimitStats], float | None]) -> Read:
    """Values by limit; never by group, of which there may be any number."""

    def values(snapshot: MetricsSnapshot) -> Iterator[Value]:
        for limit in () if snapshot.stats is None else snapshot.stats.limits:
            value = read(limit)
            if value is not None:
                yield (clean(limit.name),), value

    return values


def _rows(part: str, read: Callable[[Mapping[str, object]], object]) -> Read:
    """Values by the name of what the supervisor looks after."""

    def values(snapshot: MetricsSnapshot) -> Iterator[Value]:
        for row in snapshot.rows(part):
            value = read(row)
            if isinstance(value, int | float):
                yield (clean(str(row.get("name"))),), value

    return values


def _histogram(name: str) -> Callable[[MetricsSnapshot], Iterator[tuple[tuple[str, ...], Buckets]]]:
    def values(snapshot: MetricsSnapshot) -> Iterator[tuple[tuple[str, ...], Buckets]]:
        if snapshot.stats is not None and name in snapshot.stats.histograms:
            yield (), snapshot.stats.histograms[name]

    return values


def _statements(snapshot: MetricsSnapshot) -> Iterator[tuple[tuple[str, ...], Buckets]]:
    for name, pool in () if snapshot.stats is None else sorted(snapshot.stats.database.pools.items()):
        yield (name,), pool.took_s


def _up(snapshot: MetricsSnapshot) -> Iterator[Value]:
    yield ("dispatcher",), float(snapshot.stats is not None)
    yield ("supervisor",), float(snapshot.status is not None)
    yield ("database",), float(snapshot.is_database_there)


def _jobs(stats: Stats) -> dict[str, float]:
    parts = [*stats.topics, stats.others]
    return {state: sum(getattr(one, state) for one in parts) for state in STATES}


def _oldest_s(stats: Stats) -> float:
    return max(stats.others.oldest_s or 0.0, *(one.oldest_s or 0.0 for one in stats.topics), 0.0)


def _is_running(row: Mapping[str, object]) -> bool:
    return row.get("state") == "running"


def _findings(snapshot: MetricsSnapshot) -> Iterator[Value]:
    for check, severity in sorted(snapshot.findings.items()):
        yield (clean(check), clean(severity)), 1.0


METRICS: Final = (
    Metric("pulse_up", "Whether dispatcher, supervisor and database answer.", _up, labels=("part",)),
    Metric(
        "pulse_jobs",
        "Jobs that wait (ready: due; scheduled, retrying: due later; unhandled: no worker has their handler) or run.",
        _each(_jobs),
        labels=("state",),
    ),
    Metric(
        "pulse_jobs_waiting_for_jobs",
        "How many of the scheduled jobs wait until others have ended.",
        _of(lambda s: s.others.waiting_for_jobs + sum(one.waiting_for_jobs for one in s.topics)),
    ),
    Metric("pulse_oldest_job_seconds", "How long the longest waiting due job has been due.", _of(_oldest_s)),
    Metric(
        "pulse_outbox_ends",
        "Ends of jobs that wait in the outbox for a broker; above 20,000 an estimate.",
        _of(lambda s: None if s.outbox is None else s.outbox.ends),
    ),
    Metric(
        "pulse_outbox_oldest_end_seconds",
        "How long the first of them has waited; 0: there is none.",
        _of(lambda s: None if s.outbox is None else s.outbox.oldest_s or 0.0),
    ),
    Metric("pulse_topics", "Topics that are known.", _of(lambda s: len(s.topics) + s.others.topics)),
    Metric("pulse_depth_exact", "Whether jobs that wait are counted (1) or estimated.", _of(lambda s: s.exact)),
    Metric("pulse_depth_age_seconds", "How old the figures of what waits are.", _of(lambda s: s.depth_age_s)),
    Metric(
        "pulse_finding",
        "What is wrong now, as the doctor says it: 1 for each of its checks that is not well.",
        _findings,
        labels=("check", "severity"),
    ),
    Metric("pulse_paused", "Whether everything is paused.", _of(lambda s: s.paused)),
    Metric(
        "pulse_topic_jobs",
        "The same by topic, of the largest.",
        _topics(lambda one: {state: getattr(one, state) for state in STATES}),
        labels=("topic", "state"),
    ),
    Metric(
        "pulse_topic_oldest_job_seconds",
        "How long the first due job of a topic has been due.",
        _topics(lambda one: {"": one.oldest_s or 0.0}),
        labels=("topic",),
    ),
    Metric(
        "pulse_topic_workers",
        "Handler processes that serve a topic here.",
        _topics(lambda one: {"": one.workers}),
        labels=("topic",),
    ),
    Metric(
        "pulse_topic_paused", "Whether a topic is paused.", _topics(lambda one: {"": one.paused}), labels=("topic",)
    ),
    Metric(
        "pulse_topic_attempts_total",
        "Attempts by topic: started, completed, failed, retried.",
        _topics(
            lambda one: {
                "started": one.counts.started,
                "completed": one.counts.completed,
                "failed": one.counts.failed,
                "retried": one.counts.retried,
            }
        ),
        labels=("topic", "event"),
        kind="counter",
    ),
    Metric(
        "pulse_topic_jobs_submitted_total",
        "Jobs submitted by clients of this server (not by SQL, schedules), by topic.",
        _topics(lambda one: {"": one.counts.submitted}),
        labels=("topic",),
        kind="counter",
    ),
    Metric(
        "pulse_limit_running",
        "Jobs that run under a limit, of those with the most.",
        _limits(lambda one: one.running),
        labels=("limit",),
    ),
    Metric(
        "pulse_limit_concurrency",
        "Most jobs that may run under it at once; not of a limit that has a rate alone.",
        _limits(lambda one: one.concurrency),
        labels=("limit",),
    ),
    Metric("pulse_limit_full", "Whether so many run.", _limits(lambda one: one.full), labels=("limit",)),
    Metric(
        "pulse_jobs_submitted_total",
        "Jobs submitted by clients of this server; not by SQL, nor by schedules.",
        _of(lambda s: s.counters.submitted),
        kind="counter",
    ),
    Metric(
        "pulse_attempts_started_total", "Jobs handed to workers.", _of(lambda s: s.counters.started), kind="counter"
    ),
    Metric(
        "pulse_attempts_ended_total",
        "Attempts by their outcome.",
        _each(lambda s: s.counters.outcomes),
        labels=("outcome",),
        kind="counter",
    ),
    Metric(
        "pulse_attempts_failed_total",
        "Attempts that failed, and were charged.",
        _of(lambda s: s.counters.failed),
        kind="counter",
    ),
    Metric(
        "pulse_retries_total",
        "Failed attempts that are tried again.",
        _of(lambda s: s.counters.retried),
        kind="counter",
    ),
    Metric(
        "pulse_jobs_dead_lettered_total",
        "Jobs that became dead letters.",
        _of(lambda s: s.counters.dead_lettered),
        kind="counter",
    ),
    Metric(
        "pulse_attempts_reaped_total",
        "Attempts that the server ended for their workers, by why.",
        _each(lambda s: s.counters.reaped),
        labels=("reason",),
        kind="counter",
    ),
    Metric(
        "pulse_worker_deaths_total",
        "Ends of worker processes of this host, by cause.",
        _each(lambda s: s.counters.worker_deaths),
        labels=("cause",),
        kind="counter",
    ),
    Metric("pulse_workers", "Handler processes that are connected.", _of(lambda s: s.workers.connected)),
    Metric(
        "pulse_worker_capacity",
        "Places: jobs that they run at once; those that drain have none.",
        _of(lambda s: s.workers.places),
    ),
    Metric("pulse_worker_jobs", "Jobs that they run.", _of(lambda s: s.workers.started)),
    Metric(
        "pulse_worker_jobs_ahead",
        "Jobs that were sent to them ahead, and have not started.",
        _of(lambda s: s.workers.ahead),
    ),
    Metric("pulse_actor_up", "Whether an actor runs.", _rows("actors", _is_running), labels=("actor",)),
    Metric(
        "pulse_actor_restarts_total",
        "Restarts of an actor.",
        _rows("actors", lambda row: row["restarts"]),
        labels=("actor",),
        kind="counter",
    ),
    Metric("pulse_pool_up", "Whether a pool of the supervisor runs.", _rows("pools", _is_running), labels=("pool",)),
    Metric(
        "pulse_pool_restarts_total",
        "Restarts of a pool.",
        _rows("pools", lambda row: row["restarts"]),
        labels=("pool",),
        kind="counter",
    ),
    Metric(
        "pulse_supervisor_uptime_seconds",
        "Since the start of the supervisor.",
        lambda snapshot: _uptime(snapshot.status),
    ),
    Metric(
        "pulse_database_away_seconds",
        "How long the database has not answered the dispatcher; 0: it does.",
        _of(lambda s: s.database.away_s),
    ),
    Metric(
        "pulse_database_connections",
        "Connections of the dispatcher in use, by kind.",
        _each(lambda s: {name: pool.in_use for name, pool in s.database.pools.items()}),
        labels=("pool",),
    ),
    Metric(
        "pulse_database_connections_max",
        "Most connections of the dispatcher, by kind.",
        _each(lambda s: {name: pool.size for name, pool in s.database.pools.items()}),
        labels=("pool",),
    ),
    Metric(
        "pulse_database_failures_total",
        "Statements that failed because the database was away.",
        _each(lambda s: {name: pool.failures for name, pool in s.database.pools.items()}),
        labels=("pool",),
        kind="counter",
    ),
    Metric(
        "pulse_dispatcher_resident_memory_bytes", "Memory of the dispatcher.", _of(lambda s: s.dispatcher.rss_bytes)
    ),
    Metric(
        "pulse_dispatcher_cpu_seconds_total",
        "Processor time of the dispatcher.",
        _of(lambda s: s.dispatcher.cpu_s),
        kind="counter",
    ),
    Metric("pulse_dispatcher_start_time_seconds", "Unix time at which it began to count.", _of(lambda s: s.since)),
)
DURATIONS: Final = (
    Durations("pulse_wait_seconds", "From due to handed to a worker.", _histogram("wait_s")),
    Durations(
        "pulse_start_seconds", "From the submit to the handler's call, of jobs due at once.", _histogram("start_s")
    ),
    Durations("pulse_run_seconds", "From the handler's call to its result.", _histogram("run_s")),
    Durations("pulse_recovery_seconds", "From a worker's death to its job's next claim.", _histogram("recovery_s")),
    Durations(
        "pulse_lease_margin_seconds", "What was left of leases when they were extended.", _histogram("lease_margin_s")
    ),
    Durations(
        "pulse_statement_seconds", "Uses of connections to the database, by kind.", _statements, labels=("pool",)
    ),
)


def _uptime(status: Mapping[str, object] | None) -> Iterator[Value]:
    told = None if status is None else status.get("supervisor")
    uptime_s = cast("Mapping[str, object]", told).get("uptime_s") if isinstance(told, Mapping) else None
    if isinstance(uptime_s, int | float):
        yield (), uptime_s


def clean(text: str) -> str:
    """*text*, which anybody may have named, as a label's value: short, in one line; what is changed keeps a mark."""
    fit = _UNFIT.sub("?", text)[:LONGEST_LABEL]
    return fit if fit == text else f"{fit}#{zlib.crc32(text.encode('utf-8', 'surrogatepass')):08x}"
