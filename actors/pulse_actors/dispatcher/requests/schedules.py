"""Requests about schedules: one function per kind."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final, cast

import anyio.lowlevel
import msgspec
import structlog

from pulse import protocol
from pulse.common import json_text
from pulse.common.ids import uuid7
from pulse.errors import BadRequestError, ConflictError
from pulse.job import CATCH_UPS, OVERLAPS, unique_problem
from pulse.protocol.bus import HintEvent, hint
from pulse.store.operators.schedules import ScheduleStore
from pulse.store.rows import NewSchedule, from_us
from pulse_actors.dispatcher.context import Answer, RequestContext, no_such
from pulse_actors.dispatcher.writes.submit import args_problem
from pulse_actors.shared.recurrence import Recurrence, RecurrenceInput

DECLARED: Final = uuid.UUID("5c1a8d6e-0c1b-5e0a-9f5e-3d2f8f0f3b11")  # namespace of ids that are derived from keys
TRIES: Final = 5  # of a change that collides with others
_WHEN: Final = ("cron", "every", "at")
_AS_THEY_ARE: Final = (
    "name", "topic", "priority", "max_attempts", "timeout_s", "jitter_s", "catch_up", "overlap",
    "group_key", "unique_until", "on_conflict",
)  # fmt: skip

log = structlog.get_logger()


async def list_schedules(on: RequestContext, body: protocol.SchedulesList) -> Answer:
    """A page of schedules, newest first."""
    schedules, following = await on.services.store.schedules.page(body.limit, body.after)
    return {"schedules": schedules, "next": following}


async def find_schedules(on: RequestContext, body: protocol.SchedulesFind) -> Answer:
    """The schedules that each key or prefix of an id may mean, a few of each."""
    return {"schedules": await on.services.store.prefixes.schedules(body.words)}


async def get_schedule(on: RequestContext, body: protocol.ById) -> Answer:
    """One schedule."""
    return {"schedule": await _row(on, body.id)}


async def create_schedule(on: RequestContext, body: protocol.ScheduleCreate) -> Answer:
    """Check a schedule, compute its first occurrences by the database's clock, store it."""
    _check_args(body.args)
    identity = body.id or uuid7().bytes
    new = _new(identity, body, await on.services.store.reads.now_us())
    async with on.acting() as store:
        created = await store.schedules.create(new)
        if created:
            await store.note("schedules.create", topic=body.topic, schedule=identity, detail=_note_detail(body))
    schedule = await on.services.store.schedules.get(identity)
    if schedule is None or (not created and not _is_the_same_request(schedule, body)):
        raise ConflictError(f"schedule {uuid.UUID(bytes=identity)} exists already")
    await _tell(on)
    return {"schedule": schedule}


async def update_schedule(on: RequestContext, body: protocol.ScheduleUpdate) -> Answer:
    """Set the given options, unset those that are nil; the cursor stays unless the times change."""
    changes = {name: value for name in body.__struct_fields__ if (value := getattr(body, name)) is not msgspec.UNSET}
    del changes["id"]
    _check_args(changes.get("args", ""))
    if changes.get("jitter_s", 0.0) is None:
        changes["jitter_s"] = 0.0  # all others are None when never given
    if changes.get("unique", "") is None:  # what says more about the key goes with it
        changes = {"unique_until": None, "on_conflict": None, **changes}
    for _ in range(TRIES):
        row = await _row(on, body.id)
        if changes.get("name", row["name"]) != row["name"] and "args" not in changes:
            _check_hidden(on, row)
        old = _request_of(row)
        if any(name in changes for name in _WHEN):
            cleared: dict[str, None] = dict.fromkeys(_WHEN)
            old = msgspec.structs.replace(old, **cleared, timezone=old.timezone if "cron" in changes else None)
        # Before the transaction: one that waits for a second connection could wait for itself.
        now_us = await on.services.store.reads.now_us()
        async with on.acting() as store:
            changed = await _change(store.schedules, row, msgspec.structs.replace(old, **changes), now_us)
            if changed:
                detail = {name: value for name, value in changes.items() if name != "args"}
                await store.note("schedules.update", schedule=body.id, detail={**detail, "options": sorted(changes)})
        if changed:
            await _tell(on)
            return {"schedule": await _row(on, body.id)}
    raise ConflictError(f"schedule {uuid.UUID(bytes=body.id)} is being changed by others; ask again")


async def delete_schedule(on: RequestContext, body: protocol.ById) -> Answer:
    """Remove a schedule; its jobs stay."""
    async with on.acting() as store:  # the SQL function writes the audit entry
        if not await store.schedules.delete(body.id):
            raise no_such("schedule", body.id)
    await _tell(on)
    return {"id": body.id}


async def pause_schedule(on: RequestContext, body: protocol.ById) -> Answer:
    """Pause it; pausing a paused one is no error."""
    return await _set_paused(on, body.id, paused=True)


async def resume_schedule(on: RequestContext, body: protocol.ById) -> Answer:
    """Resume it; catch_up decides about missed occurrences."""
    return await _set_paused(on, body.id, paused=False)


async def trigger_schedule(on: RequestContext, body: protocol.ScheduleTrigger) -> Answer:
    """Submit a job of it now, beside its occurrences; the answer is the job that has its unique key, if one has."""
    async with on.acting() as store:  # the SQL function writes the audit entry
        made = await store.schedules.trigger(body.id, body.job_id or uuid7().bytes)
        if made is None:
            raise no_such("schedule", body.id)
    on.services.signal.wake()
    return {"id": made}


async def preview_schedule(on: RequestContext, body: protocol.SchedulePreview) -> Answer:
    """Its next occurrences by its rule, from its cursor on."""
    row = await _row(on, body.id)
    request = _request_of(row)
    rule = Recurrence.checked(_when(request))
    cursor_s = cast("float | None", row["next_run_at"])
    times_us = [] if cursor_s is None else [round(cursor_s * 1e6)]
    if times_us:
        times_us += islice(rule.following(times_us[0]), body.count - 1)
    return {"times": [one / 1e6 for one in times_us], "timezone": rule.timezone or "UTC"}


async def declare_schedules(on: RequestContext, body: protocol.SchedulesDeclare) -> Answer:
    """
    Create and change the schedules of an application as its code declares them.

    An existing one keeps its cursor, unless its times were changed. One that the code no longer declares goes on and is
    listed in the answer: a person decides about deleting it.
    """
    keys = [schedule.key for schedule in body.schedules]
    if len({*keys}) < len(keys):
        raise BadRequestError(f"key {max(keys, key=keys.count)!r:.100} is there twice; each key is allowed once")
    now_us = await on.services.store.reads.now_us()
    wanted: list[tuple[NewSchedule, protocol.ScheduleDeclared]] = []
    for schedule in body.schedules:  # all are valid, or none is changed
        try:
            _check_args(schedule.args)
            new = _new(uuid.uuid5(DECLARED, schedule.key).bytes, schedule, now_us)
        except BadRequestError as error:
            raise BadRequestError(f"schedule {schedule.key!r:.100}: {error.message}") from None
        wanted.append((dataclasses.replace(new, key=schedule.key, declared_by=body.by), schedule))
        await anyio.lowlevel.checkpoint()  # others must not wait for thousands of schedules
    changed = [one.key for new, one in wanted if await _declare(on, new, one, body.by)]
    gone = [key for _, key in await on.services.store.schedules.undeclare(body.by, keys)]
    if changed:
        async with on.acting() as store:
            await store.note("schedules.declare", detail={"by": body.by, "keys": changed[:20], "count": len(changed)})
        log.info("schedules_declared", by=body.by, keys=changed[:20], count=len(changed))
        await _tell(on)
    if gone:
        log.warning("schedules_not_declared", by=body.by, keys=gone[:20], count=len(gone))
    return {"ids": [new.id for new, _ in wanted], "changed": changed, "not_declared": gone}


async def _declare(on: RequestContext, new: NewSchedule, schedule: protocol.ScheduleDeclared, by: str) -> bool:
    for _ in range(TRIES):
        row = await on.services.store.schedules.get(new.id)
        if row is None:
            if await on.services.store.schedules.create(new):
                return True
        elif (row["declared_by"], row["undeclared_at"], row["error"]) == (by, None, None) and _is_same(row, schedule):
            return False
        elif await _change(
            on.services.store.schedules,
            row,
            schedule,
            await on.services.store.reads.now_us(),
            key=schedule.key,
            declared_by=by,
        ):
            return True
    raise ConflictError(f"schedule {schedule.key!r:.100} is being changed by others, or its key is taken; ask again")


async def _change(
    schedules: ScheduleStore, row: Mapping[str, Any], wanted: protocol.ScheduleCreate, now_us: int, **more: str
) -> bool:
    """Replace what was read by *wanted*; False: another change came first."""
    new = _new(row["id"], wanted, now_us, is_new=False)
    moved = not _occurs_alike(_request_of(row), wanted)
    if moved:
        new = _new(row["id"], wanted, now_us)
    kept = {"key": row["key"], "declared_by": row["declared_by"], **more}
    return await schedules.update(dataclasses.replace(new, **kept), row["revision"], moved=moved)


async def _set_paused(on: RequestContext, identity: bytes, *, paused: bool) -> Answer:
    async with on.acting() as store:
        if not await store.schedules.pause(identity, paused=paused):
            raise no_such("schedule", identity)
        await store.note("schedules.pause" if paused else "schedules.resume", schedule=identity)
    await _tell(on)
    return {"schedule": await _row(on, identity)}


def _check_args(args: str) -> None:
    """Refuse *args* with which no job could be submitted: each occurrence submits one."""
    problem = args_problem(args)
    if problem is not None:
        raise BadRequestError(problem)


def _check_hidden(on: RequestContext, row: Mapping[str, object]) -> None:
    """Refuse to give redacted args of *row* to another handler, for which they might not be redacted."""
    if on.services.redaction.answer(row) != row:
        message = f"the args of schedule {row['name']!r:.80} are redacted: another name is allowed together with args"
        raise BadRequestError(message)


def _note_detail(body: protocol.ScheduleCreate) -> dict[str, object]:
    """The audit details of a new schedule, without its args."""
    given = {"name": body.name, "cron": body.cron, "timezone": body.timezone, "every_s": body.every, "run_at": body.at}
    return {key: value for key, value in given.items() if value is not None}


async def _row(on: RequestContext, identity: bytes) -> dict[str, Any]:
    schedule = await on.services.store.schedules.get(identity)
    if schedule is None:
        raise no_such("schedule", identity)
    return schedule


async def _tell(on: RequestContext) -> None:
    await on.services.bus.hint(hint("scheduler", HintEvent.SCHEDULES_CHANGED))


def _when(body: protocol.ScheduleCreate) -> RecurrenceInput:
    return RecurrenceInput(
        cron=body.cron,
        timezone=body.timezone,
        every_s=body.every,
        at_s=body.at,
        starts_s=body.starts_at,
        ends_s=body.ends_at,
        jitter_s=body.jitter_s,
    )


def _new(identity: bytes, body: protocol.ScheduleCreate, now_us: int, *, is_new: bool = True) -> NewSchedule:
    """
    The schedule of a request, with its first occurrences if it begins now.

    Raises:
        BadRequestError: Its times cannot be computed, or a word is unknown.
    """
    for name, value, allowed in (("catch_up", body.catch_up, CATCH_UPS), ("overlap", body.overlap, OVERLAPS)):
        if value not in allowed:
            raise BadRequestError(f"{name} is {value!r:.100}; allowed are {', '.join(allowed)}")
    problem = unique_problem(body.unique, body.unique_until, body.on_conflict, body.overlap)
    if problem is not None:
        raise BadRequestError(problem)
    rule = Recurrence.checked(_when(body))
    first_us = rule.first(now_us) if is_new else None
    following_us = None if first_us is None else rule.after(first_us)
    return NewSchedule(
        identity,
        body.name,
        rule.kind,
        args=body.args,
        next_run_at=None if first_us is None else from_us(first_us),
        topic=body.topic,
        cron=rule.cron,
        timezone=rule.timezone,
        every_s=rule.every_s,
        run_at=None if rule.at_us is None else from_us(rule.at_us),
        priority=body.priority,
        max_attempts=body.max_attempts,
        timeout_s=body.timeout_s,
        following_run_at=None if following_us is None else from_us(following_us),
        starts_at=None if rule.starts_us is None else from_us(rule.starts_us),
        ends_at=None if rule.ends_us is None else from_us(rule.ends_us),
        jitter_s=body.jitter_s,
        catch_up=body.catch_up,
        overlap=body.overlap,
        unique_key=body.unique,
        unique_until=body.unique_until,
        on_conflict=body.on_conflict,
        group_key=body.group_key,
    )


def _request_of(row: Mapping[str, Any]) -> protocol.ScheduleCreate:
    """
    The request that would create a stored schedule.

    Raises:
        BadRequestError: Its args are longer than a frame, and would be lost.
    """
    if row["args"] is None:
        raise BadRequestError("the schedule's args are longer than a frame; only SQL can change it")
    same = {name: row[name] for name in (*_AS_THEY_ARE, "cron", "timezone", "args", "starts_at", "ends_at")}
    return protocol.ScheduleCreate(every=row["every_s"], at=row["run_at"], unique=row["unique_key"], **same)


def _is_the_same_request(row: Mapping[str, Any], body: protocol.ScheduleCreate) -> bool:
    """Whether *body* created this one: then the request is a repeated one."""
    return (row["name"], row["cron"], row["every_s"], row["run_at"]) == (body.name, body.cron, body.every, body.at)


def _is_same(row: Mapping[str, Any], body: protocol.ScheduleCreate) -> bool:
    """Whether nothing changes."""
    old = _request_of(row)
    return (
        _occurs_alike(old, body)
        and all(getattr(old, name) == getattr(body, name) for name in (*_AS_THEY_ARE, "unique"))
        and _same_json(old.args, body.args)
    )


def _same_json(stored: str, given: str) -> bool:
    try:
        return json_text.loads(stored) == json_text.loads(given)
    except ValueError:
        return False  # the database's message is better


def _occurs_alike(old: protocol.ScheduleCreate, new: protocol.ScheduleCreate) -> bool:
    """Whether both have the same occurrences; jitter does not change these, only when they fire."""
    try:
        before = Recurrence.checked(dataclasses.replace(_when(old), jitter_s=0.0))
    except BadRequestError:
        return False  # SQL wrote it so, or its time zone is gone
    return before == Recurrence.checked(dataclasses.replace(_when(new), jitter_s=0.0))
