"""The answer to ``stats``: waiting jobs, rates and durations, as the server counts them."""

from __future__ import annotations

from msgspec import Struct


class Rates(Struct, frozen=True):
    """
    How many jobs, or attempts, a second; or how many at all.

    Attributes:
        submitted: Jobs that clients of this server submitted; not by SQL, schedules or other hosts.
        started: Attempts that were handed to workers.
        completed: Attempts that succeeded.
        failed: Attempts that ended otherwise, and were charged.
        retried: How many of these are tried again.
    """

    submitted: float = 0
    started: float = 0
    completed: float = 0
    failed: float = 0
    retried: float = 0


class TopicStats(Struct, frozen=True):
    """
    One topic.

    Attributes:
        ready: Due jobs that wait.
        scheduled: Jobs that are due later, for the first time.
        retrying: Jobs that are due later, after a failure.
        unhandled: Jobs that no worker has a handler for.
        running: Jobs that workers hold.
        oldest_s: How long the first ready job has been due, seconds; None: there is none.
        waiting_for_jobs: How many of the scheduled jobs wait for others.
        paused: Whether it is paused.
        workers: Handler processes of this server that serve it.
        rates: Rates per second, within the last minute.
        counts: Counts since the dispatcher started.
        limit: The limit that it goes by; None: there is none.
    """

    topic: str
    ready: int = 0
    scheduled: int = 0
    retrying: int = 0
    unhandled: int = 0
    running: int = 0
    oldest_s: float | None = None
    waiting_for_jobs: int = 0
    paused: bool = False
    workers: int = 0
    rates: Rates = Rates()
    counts: Rates = Rates()
    limit: str | None = None


class LimitStats(Struct, frozen=True):
    """
    One limit.

    Attributes:
        running: Jobs that run under it.
        concurrency: Most that run at once; None: any number.
        full: Whether so many run.
        retry_s: Seconds until its next token; None: there is one, or it has no rate.
    """

    name: str
    running: int = 0
    concurrency: int | None = None
    full: bool = False
    retry_s: float | None = None


class GroupStats(Struct, frozen=True):
    """
    One group of a topic.

    Attributes:
        ready: Due jobs that wait; counted up to 1000, as the next two.
        later: Jobs that are due later.
        running: Jobs that run.
        oldest_s: How long the first due job has been due, seconds; None: there is none.
        concurrency: Most jobs that run at once; None: any number.
        full: Whether so many run.
        halted_by: The dead letter that halts its sequence; None: it goes on.
    """

    group_key: str
    ready: int = 0
    later: int = 0
    running: int = 0
    oldest_s: float | None = None
    concurrency: int | None = None
    full: bool = False
    halted_by: bytes | None = None


class GroupsAnswer(Struct, frozen=True):
    """Groups with jobs that wait, those with the most due ones first; ``is_all``: all of these were looked at."""

    groups: list[GroupStats]
    is_all: bool = True


class JobCounts(Struct, frozen=True):
    """What waits in all topics together, as in ``TopicStats``; ``exact``: counted, not estimated."""

    ready: int = 0
    scheduled: int = 0
    retrying: int = 0
    unhandled: int = 0
    exact: bool = True


class FoundCounts(Struct, frozen=True):
    """How many jobs match a filter, by state; in the states of ``least`` there may be more."""

    ready: int = 0
    scheduled: int = 0
    retrying: int = 0
    unhandled: int = 0
    running: int = 0
    completed: int = 0
    dead_lettered: int = 0
    canceled: int = 0
    least: list[str] = []


class ErrorGroup(Struct, frozen=True):
    """
    Dead letters of one topic and handler that died of the same error.

    Attributes:
        number: How many.
        newest: When the last one ended, Unix seconds.
        oldest: When the first one ended.
        id: Of the newest job.
        error: Of the newest job; its begin, if it is long.
    """

    topic: str
    name: str
    number: int
    newest: float
    oldest: float
    id: bytes
    error: str | None = None


class ErrorsAnswer(Struct, frozen=True):
    """Dead letters in groups, the largest first; ``is_all``: there are no older ones than were looked at."""

    groups: list[ErrorGroup]
    is_all: bool = True


class OtherTopics(Struct, frozen=True):
    """All topics together that are not listed by name; ``topics``: how many they are."""

    topics: int = 0
    ready: int = 0
    scheduled: int = 0
    retrying: int = 0
    unhandled: int = 0
    running: int = 0
    oldest_s: float | None = None
    waiting_for_jobs: int = 0


class OutboxStats(Struct, frozen=True):
    """
    Ends of jobs that wait for a broker.

    Attributes:
        ends: How many; above 20,000 an estimate.
        oldest_s: For how long the first of them, seconds; None: there is none.
    """

    ends: int = 0
    oldest_s: float | None = None


class Percentiles(Struct, frozen=True):
    """Percentiles of durations, seconds; None: there were none within the last minute."""

    p50: float | None = None
    p90: float | None = None
    p99: float | None = None


class Series(Struct, frozen=True):
    """
    The last hour in steps, the oldest first: lists of equal length.

    Attributes:
        step_s: Length of a step, seconds.
        times: When each ended, Unix seconds; the other lists count what happened within it.
        depth: Due jobs that waited; None: not known.
    """

    step_s: float
    times: list[float]
    submitted: list[int] = []
    started: list[int] = []
    completed: list[int] = []
    failed: list[int] = []
    retried: list[int] = []
    depth: list[int | None] = []
    wait_p50_s: list[float | None] = []
    wait_p99_s: list[float | None] = []
    run_p50_s: list[float | None] = []
    run_p99_s: list[float | None] = []


class Buckets(Struct, frozen=True):
    """A histogram: ``counts`` has how many were not above each of ``bounds``, and, last, all."""

    bounds: list[float]
    counts: list[float]
    sum: float


class Counters(Rates, frozen=True):
    """Since the dispatcher's start: how attempts ended, which of them were ended by the server, why workers died."""

    dead_lettered: int = 0
    outcomes: dict[str, int] = {}
    reaped: dict[str, int] = {}
    worker_deaths: dict[str, int] = {}


class PoolUsage(Struct, frozen=True):
    """Connections of one kind to the database."""

    size: int
    in_use: int
    failures: int
    took_s: Buckets


class DatabaseUsage(Struct, frozen=True):
    """How the database answers the dispatcher; ``away_s``: for how long it has not, 0: it does."""

    away_s: float
    pools: dict[str, PoolUsage]


class Connected(Struct, frozen=True):
    """
    Handler processes that are connected here.

    ``capacity``: how many jobs they can hold, ``held``: how many they do, ``ahead``: how many of them have not started;
    ``places``: how many those that do not drain can run at once, ``started``: how many run.
    """

    connected: int = 0
    capacity: int = 0
    held: int = 0
    places: int = 0
    started: int = 0
    ahead: int = 0


class ProcessUsage(Struct, frozen=True):
    """What the dispatcher uses."""

    pid: int
    cpu_s: float
    rss_bytes: int


class Stats(Struct, frozen=True):
    """
    Counts, rates and durations.

    Attributes:
        at: When this was sent, Unix seconds.
        since: When the dispatcher began to count.
        topics: Topics, those with the most work first.
        others: All other topics together.
        rates: Rates of all topics.
        exact: Whether waiting jobs were counted; else they are estimated.
        depth_age_s: How long ago that was; None: not yet.
        wait_s: From due to handed out.
        run_s: From the call of the handler to its result.
        histograms: Of durations since ``since``, by name.
        paused: Whether everything is paused; None: not known.
        findings: What is wrong now: check of the doctor -> ``wrong`` or ``warning``.
        limits: Limits, those that are full first, then by how many jobs run.
        limits_omitted: How many more limits there are.
        outbox: What waits there; None: not known.
    """

    at: float
    since: float
    topics: list[TopicStats]
    others: OtherTopics
    rates: Rates
    exact: bool
    wait_s: Percentiles
    run_s: Percentiles
    series: Series
    counters: Counters
    histograms: dict[str, Buckets]
    database: DatabaseUsage
    dispatcher: ProcessUsage
    workers: Connected = Connected()
    depth_age_s: float | None = None
    paused: bool | None = None
    findings: dict[str, str] = {}
    limits: list[LimitStats] = []
    limits_omitted: int = 0
    outbox: OutboxStats | None = None
