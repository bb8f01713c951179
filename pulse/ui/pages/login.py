"""Logging in, by password or by the link that was printed, and out."""

from __future__ import annotations

import asyncio
import time
from http import HTTPStatus
from math import ceil

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from pulse.ui import rules
from pulse.ui.guard import FORM, cookie_header
from pulse.ui.pages.common import site_of
from pulse.ui.rendering import render, theme
from pulse.ui.site import Site

__all__ = ["ask", "check", "leave"]

_WRONG = "User and password do not fit together."
_USED = "That link has been used, or is of another start. The newest one stands where pulse ui runs."


async def ask(request: Request) -> Response:
    """The form; or, with a token in the link, in at once."""
    site = site_of(request)
    token = request.query_params.get("token")
    if token is None or site.options.credentials is not None:
        return _form(request, "")
    now_s = time.monotonic()
    source = _source(request)
    if site.throttle.wait_s(source, now_s) > 0 or not site.link_token or not rules.is_same(site.link_token, token):
        site.throttle.failed(source, now_s)
        return _form(request, _USED, HTTPStatus.FORBIDDEN)
    site.new_link()
    # Not a redirect: a link in another site's page would lose the cookie on its way, as SameSite=Strict wants it.
    return _enter(site, "operator", HTMLResponse(render("entered.html", {"theme": theme(request), "to": "/"})))


async def check(request: Request) -> Response:
    """User and password."""
    site = site_of(request)
    form = request.scope[FORM]
    user, password = (form.get(name, [""])[0] for name in ("user", "password"))
    source = _source(request)
    wait_s = site.throttle.wait_s(source, time.monotonic())
    if wait_s > 0:
        text = f"Too many wrong passwords. Try again in {ceil(wait_s)} s."
        return _form(request, text, HTTPStatus.TOO_MANY_REQUESTS, {"retry-after": str(ceil(wait_s))})
    if site.options.credentials is None:
        return _form(request, _USED, HTTPStatus.FORBIDDEN)
    async with site.hashing:
        is_right = await asyncio.to_thread(site.options.credentials.verify, user, password)
    if not is_right:
        site.throttle.failed(source, time.monotonic())
        return _form(request, _WRONG, HTTPStatus.FORBIDDEN)
    site.throttle.succeeded(source)
    to = rules.own_path(form.get("next", ["/"])[0])
    return _enter(site, user, RedirectResponse(to, HTTPStatus.SEE_OTHER))


async def leave(request: Request) -> Response:
    """Out; the session is gone at once."""
    site = site_of(request)
    name = site.options.cookie
    site.sessions.end(request.cookies.get(name))
    response = RedirectResponse("/login", HTTPStatus.SEE_OTHER)
    response.headers.append("set-cookie", cookie_header(name, ""))
    return response


def _enter(site: Site, user: str, response: Response) -> Response:
    cookie, _ = site.sessions.begin(user, time.time())
    response.headers.append("set-cookie", cookie_header(site.options.cookie, cookie))
    return response


def _form(request: Request, error: str, status: int = HTTPStatus.OK, headers: dict[str, str] | None = None) -> Response:
    context = {
        "theme": theme(request),
        "error": error,
        "by_link": site_of(request).options.credentials is None,
        "to": rules.own_path(request.query_params.get("next")),
    }
    return HTMLResponse(render("login.html", context), status, headers)


def _source(request: Request) -> str:
    return "" if request.client is None else request.client.host
