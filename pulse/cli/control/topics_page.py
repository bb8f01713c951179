"""The list of topics: what is in each, whether it is paused, who serves it, and what is set for it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, TypeAlias
from uuid import UUID

from pulse.cli.output.render import STATUS_STYLES, Cell, Column, Line, Table, foreign
from pulse.common.text import count, duration, one_line
from pulse.protocol.answers import Gate
from pulse.protocol.stats import GroupStats, OtherTopics, Stats, TopicStats

Policy: TypeAlias = Mapping[str, int | float | str | bool | None]

WORDS: Final = {  # options by the names that the wire gives them
    "max_attempts": "max-attempts",
    "max_crashes": "max-crashes",
    "backoff": "backoff",
    "timeout_s": "timeout",
    "stall_s": "stall",
    "lease_s": "lease",
    "retention_s": "retention",
    "retention_dead_s": "retention-dead",
    "ageing_s": "ageing",
    "limit": "limit",
    "publish": "publish",
}
_GROUP_COLUMNS: Final = (
    Column("group", least=8),
    Column("waiting", right=True),
    Column("oldest", right=True, leave_out=1),
    Column("running", right=True),
    Column("of", right=True),
    Column("later", right=True, leave_out=2),
    Column("state", least=8),
)
_FIGURES: Final = ("ready", "oldest_s", "running", "scheduled", "retrying", "unhandled", "workers")
SERVER: Final = "(the server)"
_LIMIT: Final = "limit"
_COLUMNS: Final = (
    Column("topic", least=8),
    Column("waiting", right=True),
    Column("oldest", right=True, leave_out=1),
    Column("running", right=True, leave_out=2),
    Column("scheduled", right=True, leave_out=5),
    Column("retrying", right=True, leave_out=4),
    Column("unhandled", right=True, leave_out=2),
    Column("workers", right=True, leave_out=3),
    Column(_LIMIT, leave_out=7),
    Column("policy", least=8, leave_out=6),
)


def merged(policies: Sequence[Policy], stats: Stats, gate: Gate, *, most: int | None) -> list[dict[str, object]]:
    """
    A row for each topic, in the order of their names, each with the same keys.

    Args:
        policies: What is set; '' is the server.
        stats: What is in the topics.
        gate: What is paused.
        most: Topics with work, or paused, that have no policy are there, too, so many at most; None: not.
    """
    known = {one.topic: one for one in stats.topics}
    full = {one.name for one in stats.limits if one.full}
    found = {str(one.get("topic") or ""): one for one in policies}
    if most is not None:
        for name in [*[one.topic for one in stats.topics][:most], *list(gate.topics)[:most]]:
            found.setdefault(name, {})
    is_whole = stats.exact and not stats.others.topics  # then a topic that is not listed is empty
    return [
        _document(name, found[name], known.get(name) or (TopicStats(name) if name and is_whole else None), gate, full)
        for name in sorted(found)
    ]


def left_out(rows: Sequence[Mapping[str, object]], stats: Stats) -> OtherTopics:
    """All topics together that have no row."""
    listed = {row["topic"] for row in rows}
    some = [one for one in stats.topics if one.topic not in listed]
    ages = (stats.others.oldest_s, *(one.oldest_s for one in some))
    return OtherTopics(
        topics=stats.others.topics + len(some),
        ready=sum((one.ready for one in some), stats.others.ready),
        scheduled=sum((one.scheduled for one in some), stats.others.scheduled),
        retrying=sum((one.retrying for one in some), stats.others.retrying),
        unhandled=sum((one.unhandled for one in some), stats.others.unhandled),
        running=sum((one.running for one in some), stats.others.running),
        oldest_s=max((age_s for age_s in ages if age_s is not None), default=None),
    )


def _document(
    name: str, policy: Policy, stats: TopicStats | None, gate: Gate, full: Collection[str]
) -> dict[str, object]:
    """A row; figures that nobody told are None."""
    return {
        "topic": name,
        "paused": name in gate.topics if name else gate.paused,
        **{key: None if stats is None else getattr(stats, key) for key in _FIGURES},
        "counted_by": None if stats is None else stats.limit,
        "limit_full": None if stats is None or stats.limit is None else stats.limit in full,
        **{option: policy.get(option) for option in WORDS},
    }


def topics_table(rows: Sequence[Mapping[str, object]], *, is_exact: bool) -> Table:
    """The table of what `merged` has made."""
    has_limits = any(row["counted_by"] for row in rows)
    columns = [one for one in _COLUMNS if has_limits or one.title != _LIMIT]
    return Table(columns, [_row(row, "" if is_exact else "~", has_limits=has_limits) for row in rows])


def others_words(others: OtherTopics) -> str:
    """What is not listed, in words."""
    oldest = "" if others.oldest_s is None else f", the oldest for {duration(others.oldest_s)}"
    return f"and {count(others.topics, 'more topic')}, with {count(others.ready, 'waiting job')}{oldest}"


def policy_words(policy: Mapping[str, object]) -> str:
    """What is set, in words."""
    found = ((word, policy.get(option)) for option, word in WORDS.items())
    return ", ".join(f"{word} {shown(value)}" for word, value in found if value is not None)


def shown(value: object) -> str:
    """A value of a policy."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.15g}" if isinstance(value, int | float) else str(value)


def _row(row: Mapping[str, object], mark: str, *, has_limits: bool) -> Line:
    name, paused, oldest_s = str(row["topic"]), bool(row["paused"]), row["oldest_s"]
    is_unserved = bool(row["ready"]) and not row["workers"]
    words = one_line(name) + " (paused)" if paused else one_line(name)
    return [
        foreign(words or SERVER, "yellow" if paused else ""),
        Cell(_number(row["ready"], mark), "cyan" if row["ready"] else ""),
        Cell(duration(oldest_s) if isinstance(oldest_s, float) else ""),
        Cell(_number(row["running"]), STATUS_STYLES["RUNNING"] if row["running"] else ""),
        Cell(_number(row["scheduled"], mark)),
        Cell(_number(row["retrying"], mark)),
        Cell(_number(row["unhandled"], mark), "bold red" if row["unhandled"] else ""),
        Cell(_number(row["workers"]), "bold red" if is_unserved else ""),
        *([_limit(row)] if has_limits else []),
        foreign(policy_words(row)),
    ]


def _limit(row: Mapping[str, object]) -> Cell:
    """The limit that it goes by, and whether that is full."""
    words = "" if row["counted_by"] is None else str(row["counted_by"])
    return foreign(f"{words} (full)", "yellow") if row["limit_full"] else foreign(words)


def groups_table(groups: Sequence[GroupStats]) -> Table:
    """The groups of a topic, as the answer has them."""
    return Table(_GROUP_COLUMNS, [_group(one) for one in groups])


def _group(one: GroupStats) -> Line:
    state, style = ("full", "yellow") if one.full else ("", "")
    if one.halted_by is not None:
        state, style = f"halted by {UUID(bytes=one.halted_by)}", "bold red"
    elif one.concurrency == 0:
        state = "paused"
    return [
        foreign(one_line(one.group_key)),
        Cell(_number(one.ready), "cyan" if one.ready else ""),
        Cell("" if one.oldest_s is None else duration(one.oldest_s)),
        Cell(_number(one.running), STATUS_STYLES["RUNNING"] if one.running else ""),
        Cell(_number(one.concurrency)),
        Cell(_number(one.later)),
        Cell(state, style),
    ]


def _number(value: object, mark: str = "") -> str:
    return f"{mark if value else ''}{value:,}" if isinstance(value, int) else ""
