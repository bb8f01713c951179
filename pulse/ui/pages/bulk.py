"""Changes of many jobs: first what would be done, then the task that does it, and how far it is."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Final
from uuid import UUID

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pulse.common.text import count
from pulse.errors import BadRequestError, NotFoundError, PulseError
from pulse.ops.bulk import jobs_with_ids
from pulse.protocol import answers
from pulse.ui.auth.sessions import Flash
from pulse.ui.data.bulk_orders import WITH_DEPENDENTS, BulkOrder, ordered, past_of, undo_of
from pulse.ui.pages.common import ask_now, back, do, field, found_pages, permit, say_next, session_of, site_of, trouble
from pulse.ui.rendering import page
from pulse.ui.site import FORM

PREVIEW: Final = 1000  # jobs that are looked at before; beyond that the count is a least one
_EXAMPLES: Final = 5
_MOST_CHARACTERS: Final = 200_000  # of a form that is kept: 2500 ids, and the filter
_NOW_S: Final = 5.0  # for ticked jobs, a page at most


async def preview(request: Request) -> Response:
    """Keep what was chosen, and lead to the page that asks: one can go back to that, and load it again."""
    try:
        ordered(request.scope[FORM], time.time(), is_final=False)
        return _ask_about(request, request.scope[FORM])
    except PulseError as error:
        return await trouble(request, error)


def _ask_about(request: Request, form: Mapping[str, list[str]]) -> Response:
    if sum(len(value) for values in form.values() for value in values) > _MOST_CHARACTERS:
        raise BadRequestError(f"this form may have {_MOST_CHARACTERS:,} characters: tick fewer jobs")
    key = session_of(request).ask_about(form)
    return RedirectResponse(f"/bulk/{key}", HTTPStatus.SEE_OTHER)


async def question(request: Request) -> Response:
    """What would be done: to how many, of which statuses and topics, and some of them by id."""
    form = session_of(request).asked.get(request.path_params["key"])
    try:
        if form is None:
            raise NotFoundError("this question was long ago: choose the jobs again")
        order = ordered(form, time.time(), is_final=False)
        found, is_all = await _look(request, order)
    except PulseError as error:
        return await trouble(request, error)
    return await _confirm(request, order, found, is_all=is_all, back=next(iter(form.get("next", [])), "/jobs"))


async def _confirm(
    request: Request, order: BulkOrder, found: Sequence[answers.JobInfo], *, is_all: bool, back: str
) -> Response:
    """The page that asks before *order* is carried out; *found*: the jobs that it would change, as far as is known."""
    action = order.action
    context = {
        "order": order,
        "action": action,
        "past": past_of(action),
        "by_status": Counter(job.status for job in found).most_common(),
        "by_topic": Counter(job.topic for job in found).most_common(8),
        "number": len(found),
        "changeable": sum(job.status in action.statuses for job in found),
        "is_all": is_all,
        "found": [str(UUID(bytes=job.id)) for job in found] if is_all and order.filters is not None else [],
        "examples": found[:_EXAMPLES],
        "back": back,
    }
    return await page(request, "confirm.html", context)


async def start(request: Request) -> Response:
    """Begin; few jobs are changed at once, many by a task."""
    try:
        order = ordered(request.scope[FORM], time.time(), is_final=True)
        site_of(request).options.check_topic(order.more)
        if order.filters is None:
            return await _do_now(request, order)
        permit(request, order.action.request)
        begun = site_of(request).tasks.begin(order, session_of(request).user)
    except PulseError as error:
        say_next(request, error.message, is_error=True)
        return back(request, "/jobs")
    return RedirectResponse(f"/tasks/{begun.key}", HTTPStatus.SEE_OTHER)


async def act(request: Request) -> Response:
    """One job, from its own page; before a completed one runs again, there is a question."""
    verb, text = request.path_params["verb"], request.path_params["id"]
    try:
        if verb not in {"cancel", "retry"}:
            raise NotFoundError(f"there is no action {verb!r:.40}")
        form = {"verb": [verb], "id": [text], **({WITH_DEPENDENTS: ["1"]} if field(request, WITH_DEPENDENTS) else {})}
        order = ordered(form, time.time(), is_final=True)
        found = await _of_ids(request, order)
        if any(job.status == "COMPLETED" for job in found):
            return _ask_about(request, {**form, "next": [f"/jobs/{text}"]})
        await _do_now(request, order)
    except PulseError as error:
        return await trouble(request, error)
    return back(request, f"/jobs/{text}")


async def task(request: Request) -> Response:
    """How far a task is."""
    found = site_of(request).tasks.find(request.path_params["key"])
    if found is None:
        return await trouble(request, NotFoundError("there is no such task: pulse ui was restarted, or it is long ago"))
    action = found.order.action
    return await page(request, "task.html", {"task": found, "past": past_of(action), "reverse": action.reverse})


async def tasks(request: Request) -> Response:
    """All that this dashboard has begun."""
    return await page(request, "tasks.html", {"tasks": site_of(request).tasks.all()})


async def stop(request: Request) -> Response:
    """Let a task end where it is."""
    site = site_of(request)
    found = site.tasks.find(request.path_params["key"])
    try:
        if found is not None:
            permit(request, found.order.action.request)
            found.stop()
    except PulseError as error:
        say_next(request, error.message, is_error=True)
    return back(request, f"/tasks/{request.path_params['key']}")


async def undo(request: Request) -> Response:
    """Take back what a task has done, by another one."""
    tasks_of = site_of(request).tasks
    key = request.path_params["key"]
    try:
        found = tasks_of.find(key)
        if found is None:
            raise NotFoundError("there is no such task")
        permit(request, found.undo().action.request)
        key = tasks_of.undo(found, session_of(request).user).key
    except PulseError as error:
        say_next(request, error.message, is_error=True)
    return RedirectResponse(f"/tasks/{key}", HTTPStatus.SEE_OTHER)


async def _do_now(request: Request, order: BulkOrder) -> Response:
    site = site_of(request)
    try:
        answer = await do(request, order.action.request, {"ids": list(order.ids), **order.more}, within_s=_NOW_S)
        changed = answers.read(answers.ChangedAnswer, answer)
    except PulseError as error:
        say_next(request, error.message, is_error=True)
        return back(request, "/jobs")
    finally:
        site.changed()
    said = Flash(_said(order, changed), is_error=not changed.done)
    session_of(request).show_next(said, undo_of(order, changed))
    return back(request, "/jobs")


def _said(order: BulkOrder, changed: answers.ChangedAnswer) -> str:
    codes = Counter(code.replace("_", " ") for _, code in changed.refused)
    refused = ", ".join(f"{number} refused ({code})" for code, number in codes.items())
    done = f"{count(len(changed.done), 'job')} {past_of(order.action)}" if changed.done or not refused else ""
    return "; ".join(filter(None, (done, refused))) + "."


async def _of_ids(request: Request, order: BulkOrder) -> list[answers.JobInfo]:
    """The jobs that are to be retried; of other changes it does not matter which have completed."""
    return [] if order.action.verb != "retry" else await jobs_with_ids(partial(ask_now, request), order.ids)


async def _look(request: Request, order: BulkOrder) -> tuple[list[answers.JobInfo], bool]:
    """The jobs that are meant, the newest of them; whether those are all."""
    if order.filters is None:
        return await _of_ids(request, order), True
    matches = order.matches
    jobs, is_all = list[answers.JobInfo](), False
    async for page_of in found_pages(request, {**order.filters, "limit": PREVIEW}):
        jobs += [job for job in page_of.jobs if matches is None or matches(job)]
        is_all = page_of.next is None
        if len(jobs) >= PREVIEW:
            break
    return jobs[:PREVIEW], is_all and len(jobs) <= PREVIEW
