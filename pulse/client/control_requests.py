"""Requests about the running system: pauses, topics, workers, counts and the audit; as in ``pulse.client.requests``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypedDict

from pulse.client import records
from pulse.client.records import LimitPage
from pulse.client.requests import Request, given
from pulse.common.json_text import JsonValue
from pulse.common.wire_values import TimeLike, unix_time
from pulse.errors import BadRequestError
from pulse.limit import Limit, LimitOptions, problem_of
from pulse.protocol.stats import Stats

__all__ = ["AuditFilters", "TopicOptions"]


def simple(kind: str) -> Request[dict[str, JsonValue]]:
    """A request without arguments: status, ping, workers.list, dispatch.status."""
    return Request(kind, {}, records.plain)


def drain_worker(identity: str) -> Request[None]:
    """Let a handler process end when it has finished."""
    return Request("workers.drain", {"worker": identity}, records.nothing, repeatable=False)


def stats(topics: int = 100, history_s: float = 3600.0) -> Request[Stats]:
    """Counts and rates: of the *topics* with the most work, and so much of the history."""
    return Request("stats", {"topics": topics, "history_s": history_s}, records.stats)


def pause(
    topic: str = "", reason: str | None = None, *, for_s: float | None = None, until: TimeLike | None = None
) -> Request[dict[str, JsonValue]]:
    """Pause one topic, '' for everything."""
    if for_s is not None and until is not None:
        raise BadRequestError("pause: give for_s or until, not both")
    moment_s = None if until is None else unix_time(until, "until")
    body = {"topic": topic, "reason": reason, "for_s": for_s, "until": moment_s}
    return Request("dispatch.pause", body, records.plain)


def resume(topic: str = "") -> Request[dict[str, JsonValue]]:
    """Resume."""
    return Request("dispatch.resume", {"topic": topic}, records.plain)


class TopicOptions(TypedDict, total=False):
    """
    The policy of a topic; None unsets an option, and the server decides.

    Keys:
        max_attempts: Charged tries before the dead letter.
        max_crashes: Deaths of its worker before the dead letter.
        backoff: Wait after a failed try: quadratic, exponential:FIRST:LONGEST, fixed:SECONDS or list:SECONDS,...
        timeout_s: Longest run of one attempt, seconds.
        stall_s: Longest time without progress, seconds.
        lease_s: How long a worker may be silent, seconds; used if it is longer than the server's.
        retention_s: How long completed and canceled jobs are kept, seconds.
        retention_dead_s: How long dead letters are kept, seconds.
        ageing_s: Seconds of waiting that are worth one priority; 0: strict order.
        limit: Name of the limit that its jobs go by; without it the one with the name of the topic, if there is one.
        publish: Whether the ends of its jobs go to the outbox, for `pulse bridge nats-outbox`.
    """

    max_attempts: int | None
    max_crashes: int | None
    backoff: str | None
    timeout_s: float | None
    stall_s: float | None
    lease_s: float | None
    retention_s: float | None
    retention_dead_s: float | None
    ageing_s: float | None
    limit: str | None
    publish: bool | None


TOPIC_OPTIONS: Final = tuple(TopicOptions.__annotations__)


def list_topics(limit: int = 100, after: str | None = None) -> Request[dict[str, JsonValue]]:
    """A page of policies, by topic."""
    return Request("topics.list", {"limit": limit, "after": after}, records.plain)


def get_topic(topic: str) -> Request[dict[str, JsonValue]]:
    """The policy of one topic, '' for the server."""
    return Request("topics.get", {"topic": topic}, records.topic)


def topic_groups(topic: str, limit: int) -> Request[dict[str, JsonValue]]:
    """The groups of a topic with jobs that wait."""
    return Request("topics.groups", {"topic": topic, "limit": limit}, records.plain)


def set_topic(topic: str, options: TopicOptions) -> Request[dict[str, JsonValue]]:
    """Set options of a topic."""
    _check_options(topic, options)
    if not options:
        raise BadRequestError(f"topics: nothing to set for {topic!r:.60}; allowed are {', '.join(TOPIC_OPTIONS)}")
    return Request("topics.set", {"topic": topic, "policy": dict(options)}, records.topic)


def unset_topic(topic: str, options: Sequence[str]) -> Request[dict[str, JsonValue]]:
    """Unset options of a topic; without any named, all."""
    _check_options(topic, options)
    return Request("topics.unset", {"topic": topic, "options": list(options)}, records.topic)


def _check_options(topic: str, options: Iterable[str]) -> None:
    unknown = next((option for option in options if option not in TOPIC_OPTIONS), None)
    if unknown is not None:
        allowed = ", ".join(TOPIC_OPTIONS)
        raise BadRequestError(f"unknown option {unknown!r:.60} of topic {topic!r:.60}; allowed are {allowed}")


def set_limit(name: str, group_key: str | None, options: LimitOptions) -> Request[Limit]:
    """Set options of a limit, or of one of its groups."""
    problem = problem_of(name, options, group_key)
    if problem is not None:
        raise BadRequestError(problem)
    body = {"name": name, "group_key": group_key, "policy": dict(options)}
    return Request("limits.set", body, records.limit)


def unset_limit(name: str, group_key: str | None) -> Request[None]:
    """Remove a limit, or what differs for one of its groups."""
    return Request("limits.unset", {"name": name, "group_key": group_key}, records.nothing, repeatable=False)


def list_limits(limit: int, after: str | None, name: str | None) -> Request[LimitPage]:
    """A page of limits and of groups that differ."""
    return Request("limits.list", given({"limit": limit, "after": after, "name": name}), records.limit_page)


class AuditFilters(TypedDict, total=False):
    """Filters of the audit: ``action`` (``jobs.``: all with this prefix), ``topic``, ``since_s``: no longer ago."""

    action: str
    topic: str
    since_s: float


def list_actions(limit: int, after: str | None, filters: AuditFilters) -> Request[dict[str, JsonValue]]:
    """What operators did, newest first."""
    return Request("audit.list", given({"limit": limit, "after": after, **filters}), records.plain)
