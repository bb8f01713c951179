"""Which verdict belongs to which check of the database."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pulse.ops.doctor import blockers, database, epochs, limits, queue, refusals
from pulse.ops.doctor.checks import CHECKS
from pulse.ops.doctor.finding import Finding, State, Verdict
from pulse.ops.doctor.running import AWAY
from pulse.security.schema_name import DEFAULT

if TYPE_CHECKING:
    from pulse.store.admin.doctor import DatabaseAnswers

_PREFIXES: Final = ("unsupported startup parameter",)  # what a pooler says to settings of a session


@dataclass(frozen=True, slots=True)
class CheckContext:
    """
    What the database cannot say.

    Attributes:
        shown: Its DSN without the password.
        expected: Names of indexes.
        served: Topics that connected workers serve; None: not known.
        newest: Cluster -> the newest timeline that this host has seen of it.
        told: What the dispatcher has found.
        schema: Its schema, as SQL has it.
    """

    shown: str = ""
    expected: Sequence[str] = ()
    served: Collection[str] | None = None
    newest: Mapping[str, int] = field(default_factory=dict[str, int])
    told: Sequence[Finding] = ()
    schema: str = DEFAULT


def judge(seen: DatabaseAnswers, known: CheckContext, *, grace_s: float) -> Iterator[Finding]:
    """
    The verdict on each answer.

    Args:
        seen: The answers of the database.
        known: What it cannot say.
        grace_s: The age from which something is listed, seconds.
    """
    if seen.away is not None:
        is_pooler = any(map(seen.away.__contains__, _PREFIXES))
        hint = ("That is what PgBouncer says: let pulse connect directly.",) if is_pooler else ()
        yield Finding("database", State.WRONG, seen.away, details=(), advice=(*hint, *AWAY))
        yield from without_answers(known.told, "the database does not answer")
        return
    for check, verdict in verdicts(known).items():
        question = CHECKS[check].question
        rows = seen.rows.get(question)
        if rows is None:
            yield Finding(check, State.SKIPPED, seen.failed.get(question) or "not asked")
        else:
            yield verdict(rows, grace_s)


def without_answers(told: Sequence[Finding], why: str) -> Iterator[Finding]:
    """The checks after ``database``, of one that is not asked: as the dispatcher *told*, as in `status`, or skipped."""
    known = {one.check: one for one in told}
    for check in list(verdicts(CheckContext()))[1:]:
        yield known.get(check) or Finding(check, State.SKIPPED, why)


def verdicts(known: CheckContext) -> dict[str, Verdict]:
    """The verdict of each check that is about the database, in the order of the report."""
    found: dict[str, Verdict] = {
        "database": functools.partial(database.server, shown=known.shown),
        "clock": database.clock,
        "timeline": functools.partial(epochs.timeline, newest=known.newest),
        "clusters": database.clusters,
        "pooler": database.pooler,
        "settings": database.settings,
        "commits": database.commits,
        "standbys": database.standbys,
        "connections": database.connections,
        "role": database.role,
        "rights": database.rights,
        "schema": functools.partial(database.schema, name=known.schema),
        "indexes": functools.partial(database.indexes, expected=known.expected, home=known.schema),
        "additions": functools.partial(database.additions, home=known.schema),
        "xmin": blockers.xmin,
        "transactions": blockers.transactions,
        "locks": blockers.locks,
        "tables": functools.partial(blockers.tables, home=known.schema),
        "wraparound": blockers.wraparound,
        "notifications": blockers.notifications,
        "watchdog": queue.watchdog,
        "leases": queue.leases,
        "topics": functools.partial(queue.topics, served=known.served),
        "full-limits": limits.full_limits,
        "groups": limits.groups,
        "unused-limits": limits.unused_limits,
        "unhandled": queue.unhandled,
        "waits": queue.waits,
        "gate": queue.gate,
        "schedules": queue.schedules,
        "crashes": queue.crashes,
        "hung": queue.hung,
        "running": queue.running,
        "dead-letters": queue.dead_letters,
        "outbox": functools.partial(queue.outbox, home=known.schema),
        "hosts": queue.hosts,
        "epochs": epochs.epochs,
        "set-aside": refusals.set_aside,
    }
    return {check: found[check] for check in CHECKS if check in found}
