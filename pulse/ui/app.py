"""The application: its routes, and what starts and stops with it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from http import HTTPStatus
from typing import Final

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from pulse.ui.guard import Guard
from pulse.ui.pages import (
    audit,
    bulk,
    dead,
    gate,
    job,
    jobs,
    limits,
    live,
    login,
    overview,
    schedules,
    signals,
    system,
    topics,
)
from pulse.ui.rendering import FOLDER, page, plain_page
from pulse.ui.site import SESSION, Site

_log = structlog.get_logger()

_READING: Final = (
    ("/", overview.show),
    ("/live", live.stream),
    ("/login", login.ask),
    ("/jobs", jobs.listing),
    ("/jobs/{id}", job.show),
    ("/jobs/{id}/stack", job.stack),
    ("/jobs/{id}/graph", job.graph),
    ("/jobs/{id}/signal", signals.form),
    ("/jobs/{id}/text/{part}", job.document),
    ("/bulk/{key}", bulk.question),
    ("/tasks", bulk.tasks),
    ("/tasks/{key}", bulk.task),
    ("/dead", dead.listing),
    ("/topics", topics.listing),
    ("/topics/view", topics.show),
    ("/limits", limits.listing),
    ("/limits/view", limits.show),
    ("/schedules", schedules.listing),
    ("/schedules/new", schedules.form),
    ("/schedules/{id}", schedules.show),
    ("/schedules/{id}/edit", schedules.edit),
    ("/schedules/{id}/delete", schedules.confirm_delete),
    ("/workers", system.workers),
    ("/workers/drain", system.confirm_drain),
    ("/actors", system.actors),
    ("/actors/{name}/restart", system.confirm_restart),
    ("/gate", gate.show),
    ("/audit", audit.listing),
)
_CHANGING: Final = (
    ("/login", login.check),
    ("/logout", login.leave),
    ("/theme", system.set_theme),
    ("/undo/{key}", system.undo),
    ("/bulk/preview", bulk.preview),
    ("/bulk/start", bulk.start),
    ("/tasks/{key}/stop", bulk.stop),
    ("/tasks/{key}/undo", bulk.undo),
    ("/jobs/{id}/signal", signals.send),
    ("/jobs/{id}/signals/{name:path}", signals.hook),
    ("/jobs/{id}/{verb}", bulk.act),
    ("/topics/save", topics.save),
    ("/limits/save", limits.save),
    ("/limits/unset", limits.unset),
    ("/gate/pause", gate.pause),
    ("/gate/resume", gate.resume),
    ("/schedules/new", schedules.create),
    ("/schedules/{id}/edit", schedules.save),
    ("/schedules/{id}/{verb}", schedules.act),
    ("/actors/{name}/restart", system.restart),
    ("/workers/drain", system.drain),
)


def make_app(site: Site) -> Starlette:
    """The dashboard as an ASGI application."""

    @contextlib.asynccontextmanager
    async def life(_app: Starlette) -> AsyncGenerator[None]:
        poller = asyncio.ensure_future(site.poller.run())
        site.new_link()
        try:
            yield
        finally:
            poller.cancel()
            await asyncio.gather(poller, return_exceptions=True)
            await site.tasks.aclose()
            await site.questions.aclose()

    routes = [
        *(Route(path, page, methods=["GET"]) for path, page in _READING),
        *(Route(path, page, methods=["POST"]) for path, page in _CHANGING),
        Mount("/static", StaticFiles(directory=FOLDER / "static")),
    ]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(Guard, site=site)],
        exception_handlers={HTTPException: _no_page, Exception: _failed},
        lifespan=life,
    )
    app.state.site = site
    return app


async def _no_page(request: Request, error: Exception) -> Response:
    """With the menu, for who has come in."""
    code = error.status_code if isinstance(error, HTTPException) else HTTPStatus.INTERNAL_SERVER_ERROR
    status = HTTPStatus(code)
    if request.scope.get(SESSION) is None:
        return plain_page(status, status.phrase, "There is no such page here.")
    return await page(request, "missing.html", {"title": status.phrase}, status=status)


async def _failed(request: Request, error: Exception) -> Response:
    _log.error("ui_page_failed", path=request.url.path, method=request.method, exc_info=error)
    text = "The page failed; the log of pulse ui says why. The queue does not depend on it."
    return plain_page(HTTPStatus.INTERNAL_SERVER_ERROR, "Internal error", text)
