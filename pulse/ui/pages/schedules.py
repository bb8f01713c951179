"""Schedules: when each fires next, in its own time zone; creating, editing, pausing, triggering and deleting."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final
from urllib.parse import urlencode
from uuid import UUID
from zoneinfo import available_timezones

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pulse.common.ids import uuid7
from pulse.errors import BadRequestError, NotFoundError, PulseError
from pulse.job import CATCH_UPS, OVERLAPS
from pulse.protocol import answers
from pulse.protocol.schedules import PreviewAnswer, ScheduleInfo, SchedulePageAnswer
from pulse.ui.auth.sessions import Flash, Undo, UndoStep
from pulse.ui.pages.common import ask, ask_now, back, change, do, id_of, say_next, session_of, site_of, trouble
from pulse.ui.pages.schedule_form import body_of, values_from, values_of
from pulse.ui.rendering import page
from pulse.ui.view.formatting import foreign, zone_of

PREVIEW: Final = 10


async def listing(request: Request) -> Response:
    """A page of schedules, newest first."""
    after = request.query_params.get("after")
    place = {} if after is None else {"after": after}
    try:
        answer = await ask(request, "schedules.list", {"limit": 100, **place})
        found = answers.read(SchedulePageAnswer, answer)
    except PulseError as error:
        return await trouble(request, error, "schedules.html", schedules=[], next=None)
    follow = None if found.next is None else f"/schedules?{urlencode({'after': found.next})}"
    return await page(request, "schedules.html", {"schedules": found.schedules, "next": follow})


async def show(request: Request) -> Response:
    """One schedule, with its next times and its newest jobs."""
    try:
        key = id_of(request.path_params["id"])
        found = answers.read(ScheduleInfo, answers.part(await ask(request, "schedules.get", {"id": key}), "schedule"))
        jobs, preview = await asyncio.gather(
            ask(request, "jobs.list", {"schedule": key, "limit": 10}),
            ask(request, "schedules.preview", {"id": key, "count": PREVIEW}),
        )
        times = answers.read(PreviewAnswer, preview)
        newest = answers.read(answers.JobPageAnswer, jobs).jobs
    except PulseError as error:
        return await trouble(request, error)
    context = {"schedule": found, "times": times.times, "zone": zone_of(times.timezone), "jobs": newest}
    return await page(request, "schedule.html", context)


async def form(request: Request) -> Response:
    """The empty form."""
    return await _form(request, {"kind": "cron", "args": "{}", "catch_up": "latest", "overlap": "allow"}, None)


async def create(request: Request) -> Response:
    """Make it; what is wrong is shown above the form, which keeps what was typed."""
    given = values_of(request)
    site = site_of(request)
    try:
        key = uuid7().bytes
        body = body_of(given)
        site.options.check_topic(body)
        await do(request, "schedules.create", {**body, "id": key})
    except PulseError as error:
        return await _form(request, given, error)
    site.changed()
    flash = Flash(f"Schedule of “{foreign(given['name'], 80)}” created.")
    session_of(request).show_next(flash, Undo("Undo: delete it", [UndoStep("schedules.delete", {"id": key})]))
    return RedirectResponse(f"/schedules/{UUID(bytes=key)}", HTTPStatus.SEE_OTHER)


async def edit(request: Request) -> Response:
    """The form with what the schedule has."""
    try:
        found = await _get(request)
    except PulseError as error:
        return await trouble(request, error)
    return await _form(request, values_from(found), None, found)


async def save(request: Request) -> Response:
    """Change it; where it occurs stays unless when it occurs is changed."""
    given = values_of(request)
    found: ScheduleInfo | None = None
    try:
        found = await _get(request)
        before = values_from(found)
        body = body_of(given, before)
        site_of(request).options.check_topic(body)
        if not body:
            say_next(request, "Nothing was changed: all values are the same.")
        else:
            await do(request, "schedules.update", {**body, "id": found.id})
            back_again = body_of(before, given)
            undo = Undo("Undo", [UndoStep("schedules.update", {**back_again, "id": found.id})])
            session_of(request).show_next(Flash(f"Changed: {', '.join(body)}."), undo)
    except PulseError as error:
        return await _form(request, given, error, found)
    return RedirectResponse(f"/schedules/{request.path_params['id']}", HTTPStatus.SEE_OTHER)


async def confirm_delete(request: Request) -> Response:
    """What is deleted, and what is not."""
    try:
        found = await _get(request)
    except PulseError as error:
        return await trouble(request, error)
    return await page(request, "schedule_delete.html", {"schedule": found})


async def act(request: Request) -> Response:
    """Pause, resume, trigger or delete."""
    text, verb = request.path_params["id"], request.path_params["verb"]
    try:
        key = id_of(text)
        if verb not in {"pause", "resume", "trigger", "delete"}:
            raise NotFoundError(f"there is no action {verb!r:.40}")
    except PulseError as error:
        return await trouble(request, error)
    if verb == "trigger":
        await _trigger(request, key)
        return back(request, f"/schedules/{text}")
    if verb == "delete":
        done = await change(request, "schedules.delete", {"id": key}, "Schedule deleted; jobs that it fired stay.")
        return RedirectResponse("/schedules" if done is not None else f"/schedules/{text}", HTTPStatus.SEE_OTHER)
    reverse = "resume" if verb == "pause" else "pause"
    undo = (f"Undo: {reverse}", [UndoStep(f"schedules.{reverse}", {"id": key})])
    await change(request, f"schedules.{verb}", {"id": key}, f"Schedule {verb}d.", undo)
    return back(request, f"/schedules/{text}")


async def _trigger(request: Request, key: bytes) -> None:
    site = site_of(request)
    try:
        answer = await do(request, "schedules.trigger", {"id": key, "job_id": uuid7().bytes})
        made = answers.read(answers.Identity, answer).id
    except PulseError as error:
        say_next(request, error.message, is_error=True)
    else:
        session_of(request).show_next(Flash("A job was made.", link=f"/jobs/{UUID(bytes=made)}", link_label="Show it"))
    site.changed()


async def _get(request: Request) -> ScheduleInfo:
    answer = await ask_now(request, "schedules.get", {"id": id_of(request.path_params["id"])})
    return answers.read(ScheduleInfo, answers.part(answer, "schedule"))


@functools.cache
def _zones() -> list[str]:
    """Names of time zones; they are files, and the same as long as this process lives."""
    return sorted(available_timezones())


async def _form(
    request: Request, given: Mapping[str, str], error: PulseError | None, schedule: ScheduleInfo | None = None
) -> Response:
    context = {
        "given": given,
        "wrong": None if error is None else error.message,
        "schedule": schedule,
        "catch_ups": CATCH_UPS,
        "overlaps": OVERLAPS,
        "zones": _zones(),
    }
    is_wrong = isinstance(error, BadRequestError)
    status = HTTPStatus.OK if error is None else HTTPStatus.UNPROCESSABLE_ENTITY if is_wrong else HTTPStatus.BAD_GATEWAY
    return await page(request, "schedule_form.html", context, status=status)
