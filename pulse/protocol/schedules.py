"""Answers about schedules, as in ``pulse.protocol.answers``."""

from __future__ import annotations

from msgspec import Struct

from pulse.protocol.fields import Id


class ScheduleInfo(Struct, frozen=True):
    """A row of pulse.schedules; ``revision`` counts its changes."""

    id: Id
    name: str = ""
    kind: str = ""
    topic: str | None = None
    args: str | None = None
    concealed: bool = False  # args are hidden from the reader
    omitted: list[str] = []
    cron: str | None = None
    timezone: str | None = None
    every_s: float | None = None
    run_at: float | None = None
    next_run_at: float | None = None
    last_run_at: float | None = None
    created_at: float | None = None
    paused: bool = False
    priority: int = 0
    max_attempts: int | None = None
    timeout_s: float | None = None
    due_at: float | None = None
    following_run_at: float | None = None
    starts_at: float | None = None
    ends_at: float | None = None
    jitter_s: float = 0.0
    catch_up: str = "latest"
    overlap: str = "allow"
    key: str | None = None
    declared_by: str | None = None
    undeclared_at: float | None = None
    waiting: int = 0
    error: str | None = None
    revision: int = 0
    group_key: str | None = None
    unique_key: str | None = None
    unique_until: str | None = None
    on_conflict: str | None = None
    skipped_at: float | None = None
    skipped_for: Id | None = None


class PreviewAnswer(Struct, frozen=True):
    """When a schedule occurs next."""

    times: list[float]
    timezone: str = "UTC"


class SchedulePageAnswer(Struct, frozen=True):
    """Some schedules, and the cursor behind them."""

    schedules: list[ScheduleInfo]
    next: str | None = None
