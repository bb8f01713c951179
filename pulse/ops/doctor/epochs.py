"""The verdict on a database that has gone back, or has an older timeline than was seen. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pulse.ops.doctor.finding import Finding, Row, State, shown_s, verdict_of

NEW_S: Final = 86_400.0  # after a restore or failover an operator has a day to look what is missing
_OLD: Final = (
    "Stop the old primary, or take it out of PULSE_DSN: whatever it is given is lost.",
    "Was it restored on purpose? docs/recovery.md, When the database goes back, says how to have it used.",
)


_GONE: Final = {"running": "its workers were running", "finished": "they had finished"}
_LISTED: Final = "docs/high-availability.md, What is gone, says how to list those that it does not have."


def epochs(rows: Sequence[Row], _grace_s: float) -> Finding:
    """Whether the database has gone back."""
    told = [_told(row) for row in rows]
    is_news = bool(rows) and rows[0]["age_s"] < NEW_S
    return verdict_of(
        "epochs",
        [],
        told if is_news else [],
        f"{told[0]}: listed for a day" if told else "the database has not gone back in the last week",
        *(["Submit the jobs of the missing time again."] if is_news else []),
        *([_LISTED] if is_news and any(rows[0][name] for name in _GONE) else []),
        *(["pulse ctl jobs get " + str(job) for job in rows[0]["jobs"][:3]] if is_news else []),
    )


def _told(row: Row) -> str:
    to = f" to {row['back_to']}" if row["back_to"] else ""
    lost = f", which is {shown_s(row['lost_s'])} less than host {row['host']} knew" if row["lost_s"] is not None else ""
    jobs = row["reopened"]
    again = f"; {jobs:,} jobs that were finished are open again" if jobs else ""
    gone = [f"{row[name]:,} that {what}" for name, what in _GONE.items() if row[name]]
    missing = f"; it does not have {' and '.join(gone)}" if gone else ""
    return f"{shown_s(row['age_s'])} ago the database went back{to}{lost}: epoch {row['epoch']} began{again}{missing}"


def timeline(rows: Sequence[Row], _grace_s: float, *, newest: Mapping[str, int]) -> Finding:
    """Whether this host has seen a newer timeline of that cluster than the one that answers."""
    row = rows[0]
    seen, now = newest.get(row["system_id"], 0), row["timeline"]
    if now is None or now >= seen:
        shown = "a standby, which takes no writes" if now is None else f"timeline {now}"
        return Finding("timeline", State.OK, f"it is {shown}, and this host has seen no newer one")
    text = f"it is timeline {now}, and this host has seen timeline {seen}: an old primary, or an old copy"
    return Finding("timeline", State.WRONG, text, details=(), advice=_OLD)


def refused(message: str) -> Finding:
    """A server was refused, as *message* says."""
    return Finding("timeline", State.WRONG, message, details=(), advice=_OLD)


def memory(problem: str) -> Finding:
    """What a dispatcher knows of the database cannot be kept beside it."""
    text = f"the dispatcher keeps its knowledge of the database in memory only: {problem}"
    advice = (
        "A restore while it does not run would not be noticed: PULSE_STATE_DIR names a directory that it may write to."
    )
    return Finding("memory", State.WARNING, text, details=(), advice=(advice,))
