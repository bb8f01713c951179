"""Requests about schedules, as in ``pulse.client.requests``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Final, cast
from uuid import UUID

from pulse.app.call import HandlerRef, is_call, resolve_call
from pulse.app.handler import name_of
from pulse.app.schedule import ScheduleRules, to_wire
from pulse.client import records
from pulse.client.records import SchedulePage
from pulse.client.requests import Request, given
from pulse.common.ids import uuid7
from pulse.common.wire_values import IdLike, args_text, as_id
from pulse.errors import BadRequestError
from pulse.job import Schedule

__all__ = ["ScheduleChanges", "ScheduleOptions"]

UNSETTABLE: Final = (
    "topic", "timezone", "max_attempts", "timeout_s", "starts_at", "ends_at", "jitter_s",
    "group_key", "unique", "unique_until", "on_conflict",
)  # fmt: skip


class ScheduleOptions(ScheduleRules, total=False):
    """When a schedule fires and what its jobs are like, as in ``ScheduleRules``; and the UUID to make it under."""

    id: IdLike | None


class ScheduleChanges(ScheduleRules, total=False):
    """
    The new values; one of cron, every_s and run_at replaces the one before. None: unchanged.

    Keys:
        unset: Names of options to unset: any of ``UNSETTABLE``.
    """

    name: HandlerRef
    args: Mapping[str, object] | None
    unset: Iterable[str]


def create_schedule(name: HandlerRef, args: Mapping[str, object] | None, options: ScheduleOptions) -> Request[Schedule]:
    """A new schedule."""
    body = given(options)
    when = [key for key in ("cron", "every_s", "run_at") if key in body]
    if len(when) != 1:
        raise BadRequestError(f"schedule: give exactly one of cron, every_s and run_at, not {when or 'none'}")
    to_wire(body)
    call = resolve_call(name, args)
    body |= {"name": call.name, "args": call.args, "id": as_id(options.get("id") or uuid7())}
    return Request("schedules.create", body, records.schedule, repeatable=False)


def update_schedule(schedule_id: IdLike, changes: ScheduleChanges) -> Request[Schedule]:
    """Change a schedule; its cursor stays unless its times change."""
    body = given(changes)
    unset = _unset(body)
    when = [key for key in ("cron", "every_s", "run_at") if key in body]
    if len(when) > 1:
        raise BadRequestError(f"schedule: give at most one of cron, every_s and run_at, not {when}")
    to_wire(body)
    handler, args = changes.get("name"), changes.get("args")
    has_args = args is not None or is_call(handler)
    if handler is None:
        body |= {"args": args_text(args)} if has_args else {}
    elif has_args:
        call = resolve_call(handler, args)
        body |= {"name": call.name, "args": call.args}
    else:
        body["name"] = name_of(cast("str | Callable[..., object]", handler))
    body |= {**dict.fromkeys(unset), "id": as_id(schedule_id)}
    return Request("schedules.update", body, records.schedule, repeatable=False)


def _unset(body: dict[str, object]) -> list[str]:
    """Remove and return the options that *body* unsets."""
    unset = body.pop("unset", ())
    if isinstance(unset, str) or not isinstance(unset, Iterable):
        raise BadRequestError(f"schedule: unset is {unset!r:.100}; a collection of names is allowed")
    names = [str(name) for name in cast("Iterable[object]", unset)]
    for name in names:
        if name not in UNSETTABLE:
            raise BadRequestError(f"schedule: unset names {name!r:.100}; allowed are {', '.join(UNSETTABLE)}")
        if name in body:
            raise BadRequestError(f"schedule: {name} is given, and to be unset; one of them is allowed")
    return names


def pause_schedule(schedule_id: IdLike) -> Request[Schedule]:
    """Pause a schedule."""
    return Request("schedules.pause", {"id": as_id(schedule_id)}, records.schedule)


def resume_schedule(schedule_id: IdLike) -> Request[Schedule]:
    """Resume a schedule."""
    return Request("schedules.resume", {"id": as_id(schedule_id)}, records.schedule)


def trigger_schedule(schedule_id: IdLike) -> Request[UUID]:
    """A job of a schedule now; it has an id before it is sent, so that the request can be repeated."""
    body = {"id": as_id(schedule_id), "job_id": uuid7().bytes}
    return Request("schedules.trigger", body, records.one_id)


def preview_schedule(schedule_id: IdLike, count: int = 10) -> Request[list[datetime]]:
    """When a schedule occurs next."""
    return Request("schedules.preview", {"id": as_id(schedule_id), "count": count}, records.times)


def get_schedule(schedule_id: IdLike) -> Request[Schedule]:
    """One schedule."""
    return Request("schedules.get", {"id": as_id(schedule_id)}, records.schedule)


def list_schedules(limit: int = 100, after: str | None = None) -> Request[SchedulePage]:
    """A page of schedules, newest first."""
    body: dict[str, object] = {"limit": limit}
    if after is not None:
        body["after"] = after
    return Request("schedules.list", body, records.schedule_page)


def delete_schedule(schedule_id: IdLike) -> Request[None]:
    """Delete a schedule; jobs that it fired stay."""
    return Request("schedules.delete", {"id": as_id(schedule_id)}, records.nothing, repeatable=False)
