"""Which verdict belongs to which statement, in the order of the report."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from pulse.ops.doctor import blockers, database, epochs, queue, refusals
from pulse.ops.doctor.finding import Finding, Row, State, Verdict

if TYPE_CHECKING:
    from pulse.store.admin.doctor import DatabaseAnswers

# Check -> the statement that it is about, in pulse/store/admin/doctor.sql.
QUESTIONS: Final[Mapping[str, str]] = {
    "database": "identity",
    "clock": "identity",
    "timeline": "identity",
    "pooler": "pooler",
    "settings": "settings",
    "connections": "connections",
    "role": "role",
    "rights": "rights",
    "schema": "schema",
    "indexes": "indexes",
    "additions": "additions",
    "xmin": "xmin",
    "transactions": "transactions",
    "locks": "locks",
    "tables": "tables",
    "wraparound": "wraparound",
    "notifications": "notifications",
    "watchdog": "queue_watchdog",
    "leases": "queue_leases",
    "topics": "queue_topics",
    "unhandled": "queue_unhandled",
    "gate": "queue_gate",
    "schedules": "queue_schedules",
    "crashes": "queue_attempts",
    "hung": "queue_attempts",
    "running": "queue_running",
    "dead-letters": "queue_dead_letters",
    "hosts": "queue_hosts",
    "epochs": "queue_epochs",
    "set-aside": "queue_set_aside",
}
_NONE_SEEN: Final[Mapping[str, int]] = MappingProxyType({})
_AWAY: Final = (
    "Look whether the server runs and lets you in: psql with the same DSN; PULSE_DSN is what counts.",
    "pulse goes on by itself when it is back; running jobs are not lost.",
)
_PREFIXES: Final = ("unsupported startup parameter",)  # what a pooler says to settings of a session


def judge(
    seen: DatabaseAnswers,
    *,
    grace_s: float,
    expected: Iterable[str],
    served: Collection[str] | None,
    newest: Mapping[str, int] = _NONE_SEEN,
) -> Iterator[Finding]:
    """
    The verdict on each answer.

    Args:
        seen: The answers of the database.
        grace_s: The age from which something is listed, seconds.
        expected: Names of indexes.
        served: Topics that connected workers serve; None: not known.
        newest: Cluster -> the newest timeline that this host has seen of it.
    """
    if seen.away is not None:
        hint = (
            ("That is what PgBouncer says: let pulse connect directly.",)
            if any(map(seen.away.__contains__, _PREFIXES))
            else ()
        )
        yield Finding("database", State.WRONG, seen.away, details=(), advice=(*hint, *_AWAY))
        return
    verdicts = _verdicts(seen.shown, expected, served) | {
        "timeline": functools.partial(epochs.timeline, newest=newest),
    }
    for check, question in QUESTIONS.items():
        yield _judged(check, verdicts[check], seen.rows.get(question), seen.failed.get(question), grace_s)


def _judged(check: str, verdict: Verdict, rows: Sequence[Row] | None, failed: str | None, grace_s: float) -> Finding:
    if rows is None:
        return Finding(check, State.SKIPPED, failed or "not asked")
    return verdict(rows, grace_s)


def _verdicts(shown: str, expected: Iterable[str], served: Collection[str] | None) -> dict[str, Verdict]:
    return {
        "database": functools.partial(database.server, shown=shown),
        "clock": database.clock,
        "pooler": database.pooler,
        "settings": database.settings,
        "connections": database.connections,
        "role": database.role,
        "rights": database.rights,
        "schema": database.schema,
        "indexes": functools.partial(database.indexes, expected=list(expected)),
        "additions": database.additions,
        "xmin": blockers.xmin,
        "transactions": blockers.transactions,
        "locks": blockers.locks,
        "tables": blockers.tables,
        "wraparound": blockers.wraparound,
        "notifications": blockers.notifications,
        "watchdog": queue.watchdog,
        "leases": queue.leases,
        "topics": functools.partial(queue.topics, served=served),
        "unhandled": queue.unhandled,
        "gate": queue.gate,
        "schedules": queue.schedules,
        "crashes": queue.crashes,
        "hung": queue.hung,
        "running": queue.running,
        "dead-letters": queue.dead_letters,
        "hosts": queue.hosts,
        "epochs": epochs.epochs,
        "set-aside": refusals.set_aside,
    }
