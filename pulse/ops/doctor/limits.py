"""Verdicts on limits and groups: what is full for long, halted, waits for long, or limits nothing. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pulse.common.text import shell_word
from pulse.ops.doctor.finding import Finding, Row, list_some, shown_s, verdict_of

LIMITED_S: Final = 3600.0  # jobs wait because of a limit, which is what it is for: only so long is worth a word


def is_full(row: Row) -> bool:
    """Whether the limit of a topic has no slot."""
    return row["concurrency"] is not None and row["running"] >= row["concurrency"]


def full_limits(rows: Sequence[Row], _grace_s: float) -> Finding:
    """Limits without a slot while jobs have been due for an hour."""
    full = [row for row in rows if is_full(row) and row["due_s"] >= LIMITED_S and not row["is_paused"]]
    name = shell_word(full[0]["limit"]) if full else "NAME"
    return verdict_of(
        "full-limits",
        [],
        list(list_some([_full(row) for row in full])),
        "no job has waited for an hour for a limit that is full",
        f"pulse ctl limits set {name}, if more may run at once",
        "pulse ctl jobs why ID, of a job that waits, says which jobs hold the slots.",
    )


def groups(rows: Sequence[Row], _grace_s: float) -> Finding:
    """Sequences that a dead letter halts, and groups whose first job has been due for an hour."""
    halted = [row for row in rows if row["dead_letter"] is not None]
    late = [row for row in rows if row["dead_letter"] is None and row["due_s"] >= LIMITED_S]
    dead = halted[0]["dead_letter"] if halted else "ID"
    job = next((row["job"] for row in late), "ID")
    advice = [f"pulse ctl jobs get {dead}; then pulse ctl jobs retry {dead}, or pulse ctl jobs delete {dead}"] * bool(
        halted
    )
    return verdict_of(
        "groups",
        [],
        [*list_some([_halted(row) for row in halted]), *list_some([_late(row) for row in late])],
        "no sequence is halted, and no group has waited for an hour",
        *advice,
        *([f"pulse ctl jobs why {job}"] if late else []),
    )


def unused_limits(rows: Sequence[Row], _grace_s: float) -> Finding:
    """Limits that no topic goes by, and sequences of jobs without groups."""
    unused = [f"no topic goes by limit {row['name']!r}" for row in rows if not row["is_used"]]
    ungrouped = [
        f"limit {row['name']!r} asks for sequences, but the jobs of topic {row['ungrouped']!r} have no group_key"
        for row in rows
        if row["ungrouped"] is not None
    ]
    return verdict_of(
        "unused-limits",
        [],
        [*list_some(unused), *list_some(ungrouped)],
        f"limits that topics go by: {len(rows)}",
        "pulse ctl topics set TOPIC --limit NAME; a topic also goes by the limit that has its name",
        "Jobs of a sequence need a group_key; those without one run side by side.",
    )


def _full(row: Row) -> str:
    return (
        f"limit {row['limit']!r} is full, {row['running']:,} of {row['concurrency']:,} run, and the first job of topic "
        f"{row['topic']!r} has been due for {shown_s(row['due_s'])}"
    )


def _halted(row: Row) -> str:
    return f"group {row['group_key']!r} of topic {row['topic']!r} is halted by a dead letter, {row['dead_letter']}"


def _late(row: Row) -> str:
    under = "" if row["limit"] is None else f", under limit {row['limit']!r}"
    return (
        f"group {row['group_key']!r} of topic {row['topic']!r}{under}: its first job has been due for "
        f"{shown_s(row['due_s'])}"
    )
