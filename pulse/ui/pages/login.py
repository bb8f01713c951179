"""Logging in, by password or by the link that was printed, and out."""

from __future__ import annotations

import time
from http import HTTPStatus
from math import ceil

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from pulse.errors import UnauthorizedError
from pulse.protocol.roles import EVERYTHING, Rights
from pulse.security.password_login import TooManyGuessesError, source_of
from pulse.ui.auth import rules
from pulse.ui.guard import cookie_header
from pulse.ui.pages.common import site_of
from pulse.ui.rendering import hop, render, theme
from pulse.ui.site import FORM

_WRONG = "User and password do not fit together."
_USED = "That link has been used, or is of another start. The newest one stands where pulse ui runs."


async def ask(request: Request) -> Response:
    """The form; or, with a token in the link, in at once."""
    site = site_of(request)
    token = request.query_params.get("token")
    if token is None or site.options.credentials is not None:
        return _form(request, "")
    # A wrong one costs no delay: 192 bits are not guessed, and any page in the browser could send some.
    if not site.link_token or not rules.is_same(site.link_token, token):
        return _form(request, _USED, HTTPStatus.FORBIDDEN)
    site.new_link()
    # Not a redirect: a link in another site's page would lose the cookie on its way, as SameSite=Strict wants it.
    return _enter(request, "operator", hop("/", theme(request)))


async def check(request: Request) -> Response:
    """User and password."""
    site = site_of(request)
    form = request.scope[FORM]
    user, password = (form.get(name, [""])[0] for name in ("user", "password"))
    if site.logins is None:
        return _form(request, _USED, HTTPStatus.FORBIDDEN)
    source = "" if request.client is None else source_of(request.client.host)
    try:
        rights = await site.logins.check(source, user, password)
    except TooManyGuessesError as error:
        text = f"Too many wrong passwords. Try again in {ceil(error.wait_s)} s."
        return _form(request, text, HTTPStatus.TOO_MANY_REQUESTS, {"retry-after": str(ceil(error.wait_s))})
    except UnauthorizedError:
        return _form(request, _WRONG, HTTPStatus.FORBIDDEN)
    to = rules.own_path(form.get("next", ["/"])[0])
    return _enter(request, user, RedirectResponse(to, HTTPStatus.SEE_OTHER), rights)


async def leave(request: Request) -> Response:
    """Out; the session is gone at once."""
    site = site_of(request)
    name = site.options.cookie
    site.sessions.end(request.cookies.get(name))
    response = RedirectResponse("/login", HTTPStatus.SEE_OTHER)
    response.headers.append("set-cookie", cookie_header(name, ""))
    return response


def _enter(request: Request, user: str, response: Response, rights: Rights = EVERYTHING) -> Response:
    site = site_of(request)
    site.sessions.end(request.cookies.get(site.options.cookie))  # who logs in again leaves no open session behind
    cookie, _ = site.sessions.begin(user, time.time(), rights)
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
