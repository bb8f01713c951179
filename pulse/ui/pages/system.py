"""Workers and actors: the processes of the system, and restarting one of them."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pulse.common.text import count
from pulse.errors import NotFoundError, PulseError
from pulse.ops.worker_text import places_of, state_of
from pulse.protocol import answers
from pulse.ui.pages.common import (
    ask,
    back,
    change,
    do,
    field,
    last_counted,
    permit,
    say_next,
    session_of,
    site_of,
    standing_of,
    trouble,
)
from pulse.ui.rendering import page, theme

_SHOWN: Final = 20  # jobs that run, beside the workers


async def workers(request: Request) -> Response:
    """The handler processes that are connected, those in trouble first."""
    standing = await standing_of(request)
    found = standing.status.workers
    if found is None:
        found = last_counted(request, standing).status.workers
    shown = None if found is None else sorted(found, key=lambda one: (not state_of(one), one.host or "", one.name))
    context = {
        "running": await _running(request) if shown and any(one.running for one in shown) else [],
        "workers": shown,
        "load": places_of(shown or ()),
        "memory": sum(one.rss_bytes or 0 for one in shown or ()),
        "cores": sum(standing.cpu.values()) if standing.cpu else None,
    }
    return await page(request, "workers.html", context)


async def _running(request: Request) -> list[answers.JobInfo]:
    """What runs for longest; none where nobody tells: the page is about workers."""
    try:
        found = await ask(request, "jobs.list", {"status": ["RUNNING"], "oldest": True, "limit": _SHOWN})
        return sorted(answers.read(answers.JobPageAnswer, found).jobs, key=lambda job: job.started_at or 0)
    except PulseError:
        return []


async def confirm_drain(request: Request) -> Response:
    """What the end of a worker means, before it begins."""
    identity = request.query_params.get("worker", "")
    standing = await standing_of(request)
    found = next((one for one in standing.status.workers or () if one.identity == identity), None)
    if found is None:
        return await trouble(request, NotFoundError(f"no worker {identity!r:.200} is connected"))
    return await page(request, "drain.html", {"worker": found})


async def drain(request: Request) -> Response:
    """Let a worker finish what it runs, and end."""
    body = {"worker": field(request, "worker") or ""}
    await change(
        request,
        "workers.drain",
        body,
        "It drains: it gets no more jobs, and ends when it has finished; a new process follows.",
    )
    return RedirectResponse("/workers", HTTPStatus.SEE_OTHER)


async def actors(request: Request) -> Response:
    """Supervisor, actors, pools and database."""
    return await page(request, "actors.html", {})


async def confirm_restart(request: Request) -> Response:
    """What a restart means, before it is done."""
    name = request.path_params["name"]
    standing = await standing_of(request)
    known = [*(standing.status.actors or ()), *(standing.status.pools or ())]
    found = next((process for process in known if process.name == name), None)
    if found is None:
        return await trouble(
            request, NotFoundError(f"there is no process {name!r:.60}, or the supervisor does not answer")
        )
    return await page(request, "restart.html", {"process": found, "is_pool": found in (standing.status.pools or ())})


async def restart(request: Request) -> Response:
    """Let the supervisor end a process and start it again."""
    site = site_of(request)
    name = request.path_params["name"]
    try:
        permit(request, "actors.restart")
        answer = await site.questions.restart(name, behalf=session_of(request).user)
    except PulseError as error:
        say_next(request, error.message, is_error=True)
    else:
        say_next(request, f"{name} was restarted; its pid is {answer.get('pid')} now.")
    site.changed()
    return RedirectResponse("/actors", HTTPStatus.SEE_OTHER)


async def undo(request: Request) -> Response:
    """Take back what was done last, step by step."""
    site = site_of(request)
    found = session_of(request).undos.pop(request.path_params["key"], None)
    if found is None:
        say_next(request, "That cannot be undone any more.", is_error=True)
        return back(request, "/")
    refused = 0
    try:
        for step in found.steps:
            nothing: dict[str, object] = {"done": [], "refused": []}  # not every step changes jobs
            answer = {**nothing, **await do(request, step.kind, step.body)}
            refused += len(answers.read(answers.ChangedAnswer, answer).refused)
    except PulseError as error:
        say_next(request, f"Not undone: {error.message}", is_error=True)
    else:
        left = "Undone" if not refused else f"{count(refused, 'job')} could not be taken back"
        say_next(request, f"{left}.", is_error=bool(refused))
    site.changed()
    return back(request, "/")


async def set_theme(request: Request) -> Response:
    """Light, dark, or as the system has it: the next of the three."""
    following = {"": "dark", "dark": "light", "light": ""}[theme(request)]
    response = back(request, "/")
    age = 365 * 86400 if following else 0
    response.headers.append("set-cookie", f"pulse_theme={following}; Path=/; SameSite=Strict; Max-Age={age}")
    return response
