"""One job: what it is, the line of its attempts, and why it does not run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from pulse.errors import NotFoundError, PulseError
from pulse.ops.bulk import ACTIONS, WAITING
from pulse.ops.job_text import outcome_of, where
from pulse.protocol import answers
from pulse.protocol.answers import AttemptInfo, JobInfo
from pulse.protocol.workflows import JobGraph
from pulse.ui.pages.common import ask, id_of, permit, site_of, trouble
from pulse.ui.rendering import page
from pulse.ui.view.graph import draw
from pulse.ui.view.job_line import progress_of, took_s

_TONES = {"released": "calm", "snoozed": "calm", "canceled": "calm", "completed": "good"}
_PARTS = ("args", "result", "progress", "last_error")


@dataclass(frozen=True, slots=True)
class TimelineMoment:
    """A point on the line of a job: when, what happened, how long that was waited for, and how long it took."""

    at_s: float | None
    title: str
    tone: str = ""
    attempt: AttemptInfo | None = None
    note: str = ""
    waited_s: float | None = None
    took_s: float | None = None


async def show(request: Request) -> Response:
    """The page of a job; why it does not run is asked where it waits or runs."""
    try:
        key = id_of(request.path_params["id"])
        job, why = await asyncio.gather(ask(request, "jobs.get", {"id": key}), _why(request, key))
        found = answers.read(JobInfo, answers.part(job, "job"))
    except PulseError as error:
        return await trouble(request, error)
    reasons = [] if isinstance(why, PulseError) or found.status not in {*WAITING, "RUNNING", "DEAD_LETTERED"} else why
    omitted: Any = answers.part(job, "job").get("omitted") or []
    verbs = [verb for verb in ("cancel", "retry") if found.status in ACTIONS[verb].statuses]
    asks = [verb for verb in ("change", "delete") if found.status in ACTIONS[verb].statuses]
    far = None if found.concealed or found.status != "RUNNING" else progress_of(found.progress)
    shown = [name for name in _PARTS[:3] if name != "progress" or far is None]
    context = {
        "job": found,
        "moments": list(timeline(found)),
        "reasons": reasons,
        "why_error": why.message if isinstance(why, PulseError) else None,
        "omitted": [str(one) for one in omitted],
        "verbs": verbs,
        "asks": asks,
        "far": far,
        "may_signal": found.status not in {"COMPLETED", "CANCELED"},
        "parts_of": [] if found.concealed else [(name, text) for name in shown if (text := getattr(found, name))],
    }
    return await page(request, "job.html", context)


async def graph(request: Request) -> Response:
    """All jobs that dependencies link with it."""
    text = request.path_params["id"]
    try:
        answer = await ask(request, "jobs.graph", {"id": id_of(text)})
        drawing = await asyncio.to_thread(draw, answers.read(JobGraph, answer))
    except PulseError as error:
        return await trouble(request, error)
    return await page(request, "graph.html", {"drawing": drawing, "id": text})


async def stack(request: Request) -> Response:
    """What the process that runs it is doing now."""
    site = site_of(request)
    text = request.path_params["id"]
    try:
        permit(request, "jobs.stack")
        answer = await site.questions.ask_fresh("jobs.stack", {"id": id_of(text)}, within_s=1.7)
        found = answers.read(answers.Stack, answer)
    except PulseError as error:
        return await trouble(request, error)
    return await page(request, "stack.html", {"stack": found, "id": text})


async def document(request: Request) -> Response:
    """Args, result, progress or error as they are, whole: as plain text, which no browser acts on."""
    name = request.path_params["part"]
    try:
        if name not in _PARTS:
            raise NotFoundError(f"a job has no {name!r:.40}: {', '.join(_PARTS)} are allowed")
        key = id_of(request.path_params["id"])
        answer = await ask(request, "jobs.get", {"id": key})
        found = answers.read(JobInfo, answers.part(answer, "job"))
        text: str | None = getattr(found, name)
        if text is None or (found.concealed and name != "last_error"):
            raise NotFoundError(f"the job has no {name}, or it is too long for one answer")
    except PulseError as error:
        return await trouble(request, error)
    headers = {"content-disposition": f'attachment; filename="{name}.txt"'}
    return PlainTextResponse(text.encode("utf-8", "backslashreplace"), headers=headers)


def timeline(job: JobInfo) -> Iterator[TimelineMoment]:
    """What happened to a job, oldest first: each attempt with how long it was waited for, and how long it ran."""
    yield TimelineMoment(job.submitted_at, "submitted", note=_origin(job))
    free_s = job.submitted_at
    for attempt in job.history:
        tone = _TONES.get(attempt.outcome, "bad")
        title = f"attempt {attempt.attempt}: {outcome_of(attempt)}" if attempt.attempt else outcome_of(attempt)
        waited_s, ran_s = took_s(free_s, attempt.started_at), took_s(attempt.started_at, attempt.ended_at)
        yield TimelineMoment(attempt.ended_at, title, tone, attempt=attempt, waited_s=waited_s, took_s=ran_s)
        free_s = attempt.ended_at
    waited_s = took_s(free_s, job.started_at)
    if job.status == "RUNNING":
        yield TimelineMoment(job.started_at, f"attempt {job.attempts} is running", "now", waited_s=waited_s)
    elif job.held_back is not None:
        yield TimelineMoment(None, job.held_back, "now")
    elif job.status in WAITING:
        yield TimelineMoment(job.next_run_at, "due", "now", note=f"attempt {job.attempts + 1} comes next")
    elif job.status == "COMPLETED":
        by = "" if job.ran_by is None else f"by {where(job.ran_by, job.hosts)}"
        ran_s = took_s(job.started_at, job.completed_at)
        title = f"attempt {job.attempts}: completed"
        yield TimelineMoment(job.completed_at, title, "good", note=by, waited_s=waited_s, took_s=ran_s)
    else:
        yield TimelineMoment(
            job.completed_at, job.status.lower().replace("_", " "), "bad" if job.status != "CANCELED" else "calm"
        )


def _origin(job: JobInfo) -> str:
    if job.schedule_id is not None:
        return "by its schedule"
    if job.waiting_on is not None:
        return "to run after other jobs"
    late = job.next_run_at is not None and job.submitted_at is not None and not job.attempts
    return "to run later" if late and (job.next_run_at or 0) - (job.submitted_at or 0) > 1 else ""


async def _why(request: Request, key: bytes) -> list[answers.ReasonInfo] | PulseError:
    try:
        return answers.read(answers.WhyAnswer, await ask(request, "jobs.why", {"id": key})).reasons
    except PulseError as error:
        return error
