"""Verdicts on statements and jobs that the database refuses. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from pulse.ops.doctor.finding import Finding, Row, list_some, shown_s, verdict_of

_TRIED: Final = "It is tried again by itself, each second; all other jobs go on."


class StatementFailure(NamedTuple):
    """
    A statement that the database refuses now.

    Attributes:
        actor: The actor that runs it.
        statement: Its name in pulse/store/sql.
        sqlstate: SQLSTATE of the last refusal, with ``error``.
        times: Refusals in a row.
        for_s: Since the first of them, seconds.
    """

    actor: str
    statement: str
    sqlstate: str
    error: str
    times: int
    for_s: float


def statements(refusals: Iterable[StatementFailure]) -> Finding:
    """Statements of a running server that fail again and again, for another reason than an absent database."""
    wrong = [
        f"the database refuses {one.statement} of the {one.actor}, {one.times} times in {shown_s(one.for_s)}: "
        f"{one.error} (SQLSTATE {one.sqlstate})"
        for one in refusals
    ]
    return verdict_of(
        "statements",
        list(list_some(wrong)),
        [],
        "the database carries out what the server asks for",
        "Look for what was changed in the database: a constraint, an index or a right that is gone, a trigger, "
        "a full disk; its own log says more.",
        "pulse tries on, and goes on by itself as soon as it can; nothing is lost meanwhile.",
    )


def set_aside(rows: Sequence[Row], _grace_s: float) -> Finding:
    """Jobs that the database refuses one by one."""
    refused = [row for row in rows if not row["by_operator"]]
    first = str(UUID(bytes=rows[0]["id"])) if rows else ""
    return verdict_of(
        "set-aside",
        list(list_some([_job(row) for row in refused])),
        list(list_some([_job(row) for row in rows if row["by_operator"]])),
        "no job is set aside",
        f"pulse ctl jobs why {first}",
        *([_TRIED] if refused else []),
        f"If it is not wanted any more: pulse ctl jobs delete {first}",
    )


def _job(row: Row) -> str:
    who = "an operator set aside" if row["by_operator"] else "the database refuses"
    name = "" if row["name"] is None else f" ({row['name']}, topic {row['topic']})"
    reason = f"{row['statement']}: {row['error']} (SQLSTATE {row['sqlstate']})"
    return f"{who} job {UUID(bytes=row['id'])}{name} {shown_s(row['age_s'])} ago: {reason}"
