"""How a job stands, as the database knows it: what `why_job` returns. Times are Unix seconds of its clock."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

BEFORE_MAX: Final = 1000  # jobs before one are counted up to so many: more tell a person nothing, and cost


class Standing(Struct, frozen=True, kw_only=True):
    """
    A job, and what of the database can be in its way.

    Attributes:
        last_error: Its beginning.
        now: When it was read.
        held: It waits until the last job of its schedule has ended.
        outcome: Of its newest attempt; None: there was none, it succeeded, or no worker ever saw it.
        ended_at: When that attempt ended; ``attempt_error`` is the beginning of its error, ``worker`` who had it.
        all_paused_at: Since when everything is paused; None: it is not.
        paused_at: Since when its topic is.
        last_job_id: Of its schedule, where this one is held.
        held_before: Jobs that are held and go before it.
        aside_since: When it was set aside, since the database had refused ``aside_statement``; None: it is not.
        aside_for_good: An operator did that: it is not tried again.
        handler_topic: Where its handler wants its jobs.
        handler_seen_at: When a worker last said that it has its handler, on whichever host.
        host_seen_at: When the host that holds it, or had its newest attempt, was last seen.
        other_hosts: How many others than the asking one were seen within the last minute.
        before: Jobs of its topic that are due and come first; ``BEFORE_MAX``: so many, or more.
    """

    id: bytes
    topic: str
    name: str
    status: str
    priority: int
    attempts: int
    uncharged: int
    max_attempts: int
    crashes: int
    submitted_at: float
    next_run_at: float
    now: float
    held: bool = False
    started_at: float | None = None
    completed_at: float | None = None
    expires_at: float | None = None
    lease_until: float | None = None
    locked_by: str | None = None
    last_error: str | None = None
    outcome: str | None = None
    attempt_error: str | None = None
    ended_at: float | None = None
    worker: str | None = None
    all_paused_at: float | None = None
    all_paused_by: str | None = None
    all_paused_until: float | None = None
    all_reason: str | None = None
    paused_at: float | None = None
    paused_by: str | None = None
    paused_until: float | None = None
    reason: str | None = None
    last_job_id: bytes | None = None
    last_job_status: str | None = None
    held_before: int = 0
    aside_since: float | None = None
    aside_for_good: bool | None = None
    aside_sqlstate: str | None = None
    aside_statement: str | None = None
    aside_error: str | None = None
    handler_topic: str | None = None
    handler_seen_at: float | None = None
    host_seen_at: float | None = None
    other_hosts: int = 0
    before: int = 0

    @property
    def is_due(self) -> bool:
        """Whether its time has come."""
        return self.next_run_at <= self.now

    @property
    def was_given_back(self) -> bool:
        """Whether it was claimed last for a worker that then could not take it: such an attempt leaves no row."""
        return self.attempts > 0 and self.outcome is None
