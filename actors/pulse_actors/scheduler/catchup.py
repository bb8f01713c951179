"""
The next step of a schedule's cursor: which occurrence fires, also after some were missed. Pure.

An occurrence is due when its time, with jitter, has come. It is missed if it has not fired and the next one is due as
well, or, for ``skip``, if it is late by more than ``GRACE_S``. Time during which a schedule was paused counts like time
during which everything was down.

- ``latest``: the newest of them fires, the others are skipped.
- ``skip``: the same, but one that is late by more than the grace does not fire.
- ``all``: each fires, oldest first, but at most the newest ``MAX_CATCH_UP``.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from pulse.errors import BadRequestError
from pulse.store.rows import Firing, NextOccurrences
from pulse_actors.shared.recurrence import Recurrence, jittered_us

if TYPE_CHECKING:
    from pulse.store.rows import Due

GRACE_S: Final = 5.0  # a restart of the scheduler or a short stall of the database misses nothing
# A week of a schedule that occurs once a minute. Some hundred fire in a second; nobody wants the millions of a schedule
# that was paused for a year.
MAX_CATCH_UP: Final = 10_000
_UNDUE: Final = 2  # occurrences before now whose jitter is not over: one, since it is at most the interval, or two
# where the clock was set forward


def rule_of(due: Due) -> Recurrence:
    """
    The rule of a stored schedule; only SQL can have stored an invalid one.

    Raises:
        BadRequestError: Its jitter is longer than its interval, or its cron expression is invalid.
    """
    rule = Recurrence(
        due.kind,
        cron=due.cron,
        timezone=due.timezone,
        every_s=due.every_s,
        at_us=due.at_us,
        starts_us=due.starts_us,
        ends_us=due.ends_us,
        jitter_s=due.jitter_s,
    )
    rule.check_jitter()
    return rule


def firings_of(dues: Iterable[Due]) -> tuple[list[Firing], list[NextOccurrences]]:
    """The next steps of due schedules, and those whose times cannot be computed: the others must go on."""
    firings, stuck = list[Firing](), list[NextOccurrences]()
    for due in dues:
        try:
            firings.append(firing_of(due))
        except BadRequestError as error:  # a row made by hand, a zone that tzdata lost
            stuck.append(
                NextOccurrences(
                    due.id,
                    due.cursor_us,
                    due.revision,
                    next_us=due.cursor_us,
                    following_us=due.following_us,
                    error=error.message,
                )
            )
    return firings, stuck


def firing_of(due: Due) -> Firing:
    """
    The next step of the cursor of a due schedule.

    Raises:
        BadRequestError: Its times cannot be computed.
    """
    rule, cursor_us = rule_of(due), _cursor(due)
    following_us = due.following_us if _is_known(due, _late_us(due, cursor_us)) else rule.after(cursor_us)
    fires_us, next_us = cursor_us, following_us
    if following_us is not None and _is_due(due, following_us):
        fires_us = _of_missed(due, rule, cursor_us)
        next_us = rule.after(fires_us)
    if due.catch_up == "skip" and _late_us(due, fires_us) > GRACE_S * 1e6:
        return _step(due, rule, None, next_us, passed=1)
    return _step(due, rule, fires_us, next_us, passed=int(fires_us > cursor_us))


def reckoned_of(due: Due) -> NextOccurrences:
    """The computed times to store for a schedule, or why they cannot be computed."""
    try:
        rule = rule_of(due)
        next_us = rule.first(due.now_us) if due.cursor_us is None else due.cursor_us
        following_us = None if next_us is None else rule.after(next_us)
    except BadRequestError as error:
        return NextOccurrences(
            due.id, due.cursor_us, due.revision, next_us=due.cursor_us, following_us=None, error=error.message
        )
    return NextOccurrences(due.id, due.cursor_us, due.revision, next_us=next_us, following_us=following_us)


def _of_missed(due: Due, rule: Recurrence, cursor_us: int) -> int:
    """The occurrence to fire of several that are due, if one is."""
    limit = MAX_CATCH_UP if due.catch_up == "all" else 1
    if rule.at_most(cursor_us, due.now_us) <= limit:  # avoids going through all of them for each
        return cursor_us
    near = rule.newest(cursor_us, due.now_us, limit + _UNDUE)
    missed = list(takewhile(lambda one: _is_due(due, one), near))[-limit:]
    return missed[0] if missed else cursor_us


def _cursor(due: Due) -> int:
    if due.cursor_us is None:
        raise BadRequestError("the schedule has no cursor yet")
    return due.cursor_us


def _is_known(due: Due, late_us: int) -> bool:
    """
    Whether what follows the cursor was computed before.

    For an old cursor it is computed again: it may have been set back by hand, and the stored time follows another one.
    """
    return due.cron is not None and due.is_reckoned and late_us <= GRACE_S * 1e6


def _is_due(due: Due, occurrence_us: int) -> bool:
    return _late_us(due, occurrence_us) >= 0


def _late_us(due: Due, occurrence_us: int) -> int:
    return due.now_us - jittered_us(due.id, occurrence_us, due.jitter_s)


def _step(due: Due, rule: Recurrence, occurrence_us: int | None, next_us: int | None, *, passed: int = 0) -> Firing:
    """Fire one occurrence, or none; if computing the time after the next one is slow, that is left for later."""
    following_us = rule.after(next_us) if next_us is not None and rule.cron is None else None
    return Firing(
        due.id,
        _cursor(due),
        next_us,
        occurrence_us=occurrence_us,
        following_us=following_us,
        revision=due.revision,
        passed=passed,
    )
