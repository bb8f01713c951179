"""Templates, and the frame around every page."""

from __future__ import annotations

import time
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from pulse.common import duration
from pulse.common.version import VERSION
from pulse.errors import NobodyAnswersError, PulseError, UnavailableError
from pulse.job import is_endless
from pulse.ops import worker_text
from pulse.ops.doctor.checks import CHECKS
from pulse.ops.job_text import key_words, unique_text, where
from pulse.protocol.roles import Access
from pulse.ui.auth.rules import HEADERS, own_path
from pulse.ui.data.poller import SystemSnapshot
from pulse.ui.site import BEGAN, OLD, SESSION, Site
from pulse.ui.view import command_link, formatting, job_line

FOLDER: Final = Path(__file__).parent
# path, name, the key behind `g`
NAVIGATION: Final = (
    ("/", "Overview", "o"),
    ("/jobs", "Jobs", "j"),
    ("/dead", "Dead letters", "d"),
    ("/topics", "Topics", "t"),
    ("/limits", "Limits", "l"),
    ("/schedules", "Schedules", "s"),
    ("/workers", "Workers", "w"),
    ("/actors", "Actors", "a"),
    ("/gate", "Gate", "p"),
    ("/audit", "Audit", "u"),
)
_THEMES: Final = frozenset({"light", "dark"})


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    filters: dict[str, Any] = {
        "advice": command_link.linked,
        "block": formatting.block,
        "clock": formatting.clock,
        "count": formatting.count,
        "dur": formatting.duration,
        "endless": is_endless,
        "exact": duration.exact,
        "exactly": formatting.exactly,
        "first_line": formatting.first_line,
        "trace": formatting.trace,
        "where": where,
        "held_key": unique_text,
        "key_words": key_words,
        "foreign": formatting.foreign,
        "isotime": formatting.iso,
        "json_block": formatting.json_block,
        "json_line": formatting.json_line,
        "lasting": formatting.lasting,
        "load": worker_text.load_of,
        "kin": formatting.kin,
        "localtime": formatting.local_time,
        "num": formatting.number,
        "pill": formatting.pill,
        "progress": job_line.progress_of,
        "room": worker_text.room_of,
        "ownpath": own_path,
        "size": formatting.size,
        "stamp": formatting.stamp,
        "state": worker_text.state_of,
        "uuid": formatting.uuid,
        "when": job_line.when,
        "whole": formatting.whole,
        "zone": formatting.zone_of,
    }
    made.filters.update(filters)  # pyright: ignore[reportUnknownMemberType] -- jinja2 leaves it open
    words: dict[str, Any] = {
        "checks": CHECKS,
        "navigation": NAVIGATION,
        "version": VERSION,
    }
    made.globals.update(words)  # pyright: ignore[reportUnknownMemberType]
    return made


_ENVIRONMENT: Final = _environment()


def render(template: str, context: Mapping[str, Any]) -> str:
    """The text of a template; times in it are relative to now."""
    return _ENVIRONMENT.get_template(template).render({"now": time.time(), **context})


def plain_page(status: HTTPStatus, title: str, text: str) -> Response:
    """A page that says one thing, without menu: for who may not see more, also where the door itself has failed."""
    text = render("plain.html", {"title": title, "text": text, "theme": ""})
    return HTMLResponse(text, status, {**HEADERS, "cache-control": "no-store"})


def hop(to: str, chosen: str = "") -> Response:
    """A page that leads to another one of this site at once: from here the browser sends the cookie along."""
    return HTMLResponse(render("hop.html", {"to": to, "theme": chosen}))


async def page(
    request: Request,
    template: str,
    context: Mapping[str, Any] | None = None,
    *,
    error: PulseError | None = None,
    status: int = HTTPStatus.OK,
) -> Response:
    """
    A whole page: menu, how everything stands, what was just done, and the page's own part.

    Args:
        request: What is answered.
        template: Of the page's own part.
        context: Its values.
        error: Why the page's own question has no answer; it is shown instead.
        status: The code.
    """
    site: Site = request.app.state.site
    session = request.scope.get(SESSION)
    is_live = request.headers.get("hx-trigger") == "live"
    standing = await site.standing(request.scope[BEGAN])
    whole: dict[str, Any] = {
        "path": request.url.path,
        "here": request.url.path + (f"?{request.url.query}" if request.url.query else ""),
        "theme": theme(request),
        "read_only": site.options.read_only or (session is not None and Access.CLIENT not in session.rights),
        "user": None if session is None else session.user,
        "csrf": "" if session is None else session.token,
        "flashes": [] if session is None or is_live else session.told(),
        "standing": standing,
        "tasks_running": site.tasks.running,
        "queue": site.options.queue,
        "other_queues": site.options.others,
        "error": None if error is None else unknown(error, standing),
        "old_s": request.scope.get(OLD),
        **(context or {}),
    }
    return HTMLResponse(render(template, whole), status)


def unknown(error: PulseError, standing: SystemSnapshot) -> str:
    """What a page says where its question has no answer: the cause that is known, not who would have answered."""
    if standing.cause is None or not isinstance(error, NobodyAnswersError | UnavailableError):
        return error.message
    return f"Unknown: {standing.cause}."


def theme(request: Request) -> str:
    """Light or dark as the user chose it; '' follows the system."""
    chosen = request.cookies.get("pulse_theme", "")
    return chosen if chosen in _THEMES else ""
