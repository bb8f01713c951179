"""Bodies of requests by clients and operators."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from pulse.protocol.fields import MAX_SECONDS, GroupKey, Id, Name, Seconds, TraceParent, UniqueKey, UnixTime


class SubmittedJob(Struct, frozen=True):
    """One job of a submit; None: the handler, the topic or the server decides."""

    name: Name
    args: str = "{}"
    topic: Name | None = None
    priority: Annotated[int, Meta(ge=-100, le=100)] = 0
    run_at: UnixTime | None = None
    delay_s: Seconds | None = None
    max_attempts: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    timeout_s: Annotated[float, Meta(gt=0, le=MAX_SECONDS)] | None = None
    id: Id | None = None
    expires_at: UnixTime | None = None
    expires_in_s: Annotated[float, Meta(gt=0, le=MAX_SECONDS)] | None = None
    traceparent: TraceParent | None = None
    group_key: GroupKey | None = None
    unique: UniqueKey | None = None
    unique_until: Literal["start", "end"] | None = None
    on_conflict: Literal["skip", "replace", "error"] | None = None
    after: Annotated[list[Id], Meta(max_length=10_000)] | None = None
    on_failure: Literal["cancel", "run"] | None = None


class Submit(Struct, frozen=True):
    """All of these jobs, or none."""

    jobs: Annotated[list[SubmittedJob], Meta(min_length=1, max_length=100_000)]


class JobsCount(Struct, frozen=True):
    """How many jobs match, in each state; each filter narrows it."""

    topic: Name | None = None
    name: Name | None = None
    schedule: Id | None = None
    error: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    worker: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    older_s: Seconds | None = None
    newer_s: Seconds | None = None
    prefix: Annotated[str, Meta(min_length=1, max_length=36)] | None = None


class JobsList(JobsCount, frozen=True):
    """A page of jobs, newest first; each filter narrows it."""

    status: Annotated[list[str], Meta(max_length=100)] | str | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 50
    after: str | None = None
    due: bool | None = None
    oldest: bool = False
    brief: bool = False


class JobsErrors(Struct, frozen=True):
    """The newest dead letters, by topic, handler and error; ``rows``: how many of them to look at."""

    topic: Name | None = None
    rows: Annotated[int, Meta(ge=1, le=10_000)] = 2000


class JobsFind(Struct, frozen=True):
    """The jobs whose ids begin with one of these, in hexadecimal digits."""

    prefixes: Annotated[list[Annotated[str, Meta(min_length=1, max_length=36)]], Meta(min_length=1, max_length=100)]


class ById(Struct, frozen=True):
    """A request about one thing."""

    id: Id


class JobsParents(ById, frozen=True):
    """A page of the jobs that a job waits for, or has waited for."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 1000
    after: str | None = None


class JobsSignal(ById, frozen=True):
    """A signal for a job; ``payload``: JSON text; the same name and ``key`` are the same signal, sent again."""

    name: Name
    payload: str = "null"
    key: Name | None = None


class HandlerSignal(ById, frozen=True):
    """What a handler that waits for a signal asks: the first one of that name that is not among those it ``had``."""

    name: Name
    had: Annotated[list[Annotated[int, Meta(ge=1, le=2**63 - 1)]], Meta(max_length=10_000)] = []


class ByIds(Struct, frozen=True):
    """A request about several jobs; ``matching`` is the filter that chose them, for the audit."""

    ids: Annotated[list[Id], Meta(min_length=1, max_length=10_000)]
    matching: Annotated[str, Meta(max_length=1000)] | None = None


class JobsWithDependents(ByIds, frozen=True, kw_only=True):
    """
    Jobs to be canceled or retried; ``with_dependents``: with those that depend on them.

    A cancel takes all that wait for them, directly or not; a retry those that were canceled because of them.
    """

    with_dependents: bool = False


class JobsChange(ByIds, frozen=True, kw_only=True):
    """Jobs that wait, to be moved to another topic or priority, or both."""

    topic: Name | None = None
    priority: Annotated[int, Meta(ge=-100, le=100)] | None = None


class AuditList(Struct, frozen=True):
    """A page of the audit, newest first."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 50
    after: str | None = None
    action: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    topic: Annotated[str, Meta(max_length=200)] | None = None
    since_s: Seconds | None = None


class WorkerRequest(Struct, frozen=True):
    """One handler process, by its identity."""

    worker: Annotated[str, Meta(min_length=1, max_length=300)]


class ScheduleCreate(Struct, frozen=True):
    """A new schedule: exactly one of cron, every, at. The server checks what the types do not."""

    name: Name
    cron: Annotated[str, Meta(max_length=200)] | None = None
    timezone: Annotated[str, Meta(max_length=100)] | None = None
    every: float | None = None
    at: UnixTime | None = None
    args: str = "{}"
    topic: Name | None = None
    priority: Annotated[int, Meta(ge=-100, le=100)] = 0
    max_attempts: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    timeout_s: Annotated[float, Meta(gt=0, le=MAX_SECONDS)] | None = None
    id: Id | None = None
    starts_at: UnixTime | None = None
    ends_at: UnixTime | None = None
    jitter_s: float = 0.0
    catch_up: str = "latest"
    overlap: str = "allow"
    group_key: GroupKey | None = None
    unique: UniqueKey | None = None
    unique_until: Literal["start", "end"] | None = None
    on_conflict: Literal["skip", "replace"] | None = None


class ScheduleDeclared(ScheduleCreate, frozen=True, kw_only=True):
    """A schedule that an application declares, by its stable key."""

    key: Name


class SchedulesDeclare(Struct, frozen=True):
    """All schedules that an application declares."""

    by: Name
    schedules: Annotated[list[ScheduleDeclared], Meta(max_length=10_000)]


class ScheduleUpdate(Struct, frozen=True):
    """
    The new values; missing ones stay, and nil unsets.

    One of cron, every and at replaces the one before.
    """

    id: Id
    name: Name | UnsetType = UNSET
    cron: Annotated[str, Meta(max_length=200)] | UnsetType = UNSET
    timezone: Annotated[str, Meta(max_length=100)] | UnsetType | None = UNSET
    every: float | UnsetType = UNSET
    at: UnixTime | UnsetType = UNSET
    args: str | UnsetType = UNSET
    topic: Name | UnsetType | None = UNSET
    priority: Annotated[int, Meta(ge=-100, le=100)] | UnsetType = UNSET
    max_attempts: Annotated[int, Meta(ge=1, le=10_000)] | UnsetType | None = UNSET
    timeout_s: Annotated[float, Meta(gt=0, le=MAX_SECONDS)] | UnsetType | None = UNSET
    starts_at: UnixTime | UnsetType | None = UNSET
    ends_at: UnixTime | UnsetType | None = UNSET
    jitter_s: float | UnsetType | None = UNSET
    catch_up: str | UnsetType = UNSET
    overlap: str | UnsetType = UNSET
    group_key: GroupKey | UnsetType | None = UNSET
    unique: UniqueKey | UnsetType | None = UNSET
    unique_until: Literal["start", "end"] | UnsetType | None = UNSET
    on_conflict: Literal["skip", "replace"] | UnsetType | None = UNSET


class ScheduleTrigger(Struct, frozen=True):
    """Submit a job of a schedule now; two requests with the same ``job_id`` make one job."""

    id: Id
    job_id: Id | None = None


class SchedulePreview(Struct, frozen=True):
    """When a schedule occurs next."""

    id: Id
    count: Annotated[int, Meta(ge=1, le=1000)] = 10


class SchedulesList(Struct, frozen=True):
    """A page of schedules, newest first."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    after: str | None = None


class SchedulesFind(Struct, frozen=True):
    """The schedules with one of these keys, or with ids that begin so."""

    words: Annotated[list[Name], Meta(min_length=1, max_length=100)]


class DispatchGate(Struct, frozen=True):
    """Pause or resume one topic, '' for everything; a pause ends by itself at ``until``, or after ``for_s``."""

    topic: Annotated[str, Meta(max_length=200)] = ""
    reason: Annotated[str, Meta(max_length=1000)] | None = None
    until: UnixTime | None = None
    for_s: Annotated[float, Meta(gt=0, le=MAX_SECONDS)] | None = None


class TopicsList(Struct, frozen=True):
    """A page of policies, in the order of the topics."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    after: Annotated[str, Meta(max_length=200)] | None = None


class TopicGet(Struct, frozen=True):
    """The policy of one topic, '' for the server."""

    topic: Annotated[str, Meta(max_length=200)]


class TopicGroups(Struct, frozen=True):
    """The groups of a topic that have waiting jobs, so many at most, those with the most due ones first."""

    topic: Name
    limit: Annotated[int, Meta(ge=1, le=100)] = 20


class TopicSet(Struct, frozen=True):
    """Options to set, by name; unknown ones are refused, and None unsets one."""

    topic: Annotated[str, Meta(max_length=200)]
    policy: Annotated[dict[str, str | float | int | bool | None], Meta(max_length=100)]


class TopicUnset(Struct, frozen=True):
    """Options to unset, by name; none: all."""

    topic: Annotated[str, Meta(max_length=200)]
    options: Annotated[list[str], Meta(max_length=100)] = []


class OutboxTake(Struct, frozen=True):
    """Take the oldest ends of the outbox in hand, for so long; without larger results than ``result_bytes``."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    lease_s: Annotated[float, Meta(gt=0, le=3600)] = 30.0
    result_bytes: Annotated[int, Meta(ge=0, le=2 * 1024 * 1024)] = 256 * 1024


class OutboxDone(Struct, frozen=True):
    """Ends that a broker has, by ``job`` and ``ended_at``: they leave the outbox."""

    ends: Annotated[list[tuple[Id, Annotated[int, Meta(ge=0, le=2**53)]]], Meta(max_length=1000)]


class LimitsList(Struct, frozen=True):
    """A page of limits and of groups that differ, in the order of names and groups; or one limit with its groups."""

    name: Name | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    after: Annotated[str, Meta(max_length=410)] | None = None


class LimitSet(Struct, frozen=True):
    """Options to set, by name; unknown ones are refused, and None unsets one."""

    name: Name
    policy: Annotated[dict[str, str | float | int | None], Meta(max_length=100)]
    group_key: Name | None = None


class LimitUnset(Struct, frozen=True):
    """A limit, or what differs for one of its groups."""

    name: Name
    group_key: Name | None = None


class LimitDeclared(Struct, frozen=True):
    """A limit that an application declares; options that are missing are unset."""

    name: Name
    policy: Annotated[dict[str, str | float | int | None], Meta(max_length=100)] = {}


class LimitsDeclare(Struct, frozen=True):
    """All limits that an application declares."""

    by: Name
    limits: Annotated[list[LimitDeclared], Meta(max_length=1000)]


class StatsRequest(Struct, frozen=True):
    """Depths, rates and latencies: how many topics to list by name, and where the history begins."""

    topics: Annotated[int, Meta(ge=0, le=1000)] = 100
    history_s: Annotated[float, Meta(ge=0, le=3600)] = 3600.0


class ActorRequest(Struct, frozen=True):
    """A request about an actor."""

    name: Annotated[str, Meta(max_length=64)]


class DrainRequest(Struct, frozen=True):
    """Operator's drain: of this supervisor's pools, or of all workers."""

    all: bool = False


class LogsRequest(Struct, frozen=True):
    """Log lines: the newest, or those ``after`` a number, for which it may wait."""

    lines: Annotated[int, Meta(ge=0, le=10_000)] = 100
    after: Annotated[int, Meta(ge=0)] | None = None
    level: Literal["debug", "info", "warning", "error", "critical"] | None = None
    actor: Annotated[str, Meta(max_length=64)] | None = None
    wait_s: Annotated[float, Meta(ge=0, le=30)] = 0.0


class NoBody(Struct, frozen=True):
    """A body without known keys."""
