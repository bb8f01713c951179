"""
Checks every request before a page handles it.

In this order: the Host header is a known name; a reading request has a session, or goes to the login; one that changes
something is refused in read-only mode, comes from a page of this server, has a session, and its token. A program has no
session: it sends a user's password with each request, and no cookie counts. Nothing of a form or body is read before
that; the login's form is short.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from http import HTTPStatus
from math import ceil
from typing import Final
from urllib.parse import parse_qs, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pulse.errors import UnauthorizedError
from pulse.security.password_login import TooManyGuessesError, source_of
from pulse.ui.auth import rules
from pulse.ui.auth.sessions import BrowserSession
from pulse.ui.rendering import hop, plain_page
from pulse.ui.site import BEGAN, BODY, FORM, SESSION, Site

TOKEN_FIELD: Final = "csrf"  # noqa: S105 -- a name
MAX_FORM_BYTES: Final = 2 * 1024 * 1024  # args of a schedule may have 1 MiB
MAX_LOGIN_BYTES: Final = 16 * 1024
MAX_HOOK_BYTES: Final = 64 * 1024  # the payload of a signal
MAX_FIELDS: Final = 2500  # a page of 1000 ids, twice
FORM_S: Final = 30.0  # a form that takes longer is not being sent
LOGIN: Final = "/login"
_STATIC: Final = "/static/"
_HARMLESS: Final = frozenset({LOGIN, "/logout", "/theme"})  # they change nothing of the queue
_READING: Final = frozenset({"GET", "HEAD"})
_ROOT: Final = 0
_NOT_LOGGED_IN: Final = (
    HTTPStatus.FORBIDDEN,
    "Not logged in",
    "You are not logged in any more. Nothing was changed.",
)


class RequestRefused(Exception):
    """The answer that is given instead of the page; ``text``: what it says."""

    def __init__(self, response: Response, text: str = "") -> None:
        super().__init__(response.status_code)
        self.response = response
        self.text = text


class Guard:
    """
    Passes on what may pass.

    Args:
        app: The pages.
        site: Sessions and options.
    """

    def __init__(self, app: ASGIApp, site: Site) -> None:
        self._app = app
        self._site = site
        self._options = site.options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, as ASGI wants it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        new_cookie: list[str] = []
        scope[BEGAN] = time.monotonic()

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                _harden(MutableHeaders(scope=message), new_cookie, is_static=scope["path"].startswith(_STATIC))
            await send(message)

        try:
            receive = await self._checked(scope, receive, headers, new_cookie)
        except RequestRefused as refused:
            if refused.text and rules.is_hook(scope["method"], scope["path"]):
                refused.response = _to_program(refused.response.status_code, refused.text)
            await refused.response(scope, receive, send_guarded)
        else:
            await self._app(scope, receive, send_guarded)

    async def _checked(self, scope: Scope, receive: Receive, headers: Headers, new_cookie: list[str]) -> Receive:
        self._check_host(headers)
        path, is_reading = scope["path"], scope["method"] in _READING
        if not is_reading and path not in _HARMLESS and self._options.read_only:
            raise _refusal(
                HTTPStatus.FORBIDDEN,
                "This dashboard only reads",
                "It was started with --read-only: nothing can be changed here.",
            )
        if not is_reading and not rules.is_own_page(
            headers.get("host", ""), headers.get("origin"), headers.get("sec-fetch-site")
        ):
            raise _refusal(
                HTTPStatus.FORBIDDEN,
                "RequestRefused",
                "The request came from a page of another site. Nothing was changed.",
            )
        if rules.is_hook(scope["method"], path):
            scope[SESSION] = await self._program(scope, headers)
            scope[BODY] = await _read_body(receive, MAX_HOOK_BYTES)
            return receive
        session = self._session(scope, headers, new_cookie)
        scope[SESSION] = session
        if path == LOGIN or (is_reading and path.startswith(_STATIC)):
            scope[FORM] = {} if is_reading else await _read_form(receive, MAX_LOGIN_BYTES)
        elif session is None:
            raise RequestRefused(_to_login(scope, headers)) if is_reading else _refusal(*_NOT_LOGGED_IN)
        elif is_reading:
            poller = self._site.poller
            poller.touch()
        else:
            scope[FORM] = form = await _read_form(receive, MAX_FORM_BYTES)
            _check_token(session, form)
        return receive

    def _check_host(self, headers: Headers) -> None:
        if rules.host_name(headers.get("host", "")) not in self._options.known_hosts:
            text = "This dashboard is not known by that name. --allow-host NAME at its start adds one."
            raise _refusal(HTTPStatus.MISDIRECTED_REQUEST, "Unknown host", text)

    async def _program(self, scope: Scope, headers: Headers) -> BrowserSession:
        """What a user may do whose password is in the request: for this request only."""
        logins = self._site.logins
        if logins is None:
            text = "No user has a password here: set PULSE_AUTH_USERS, and listen on a port."
            raise _refusal(HTTPStatus.FORBIDDEN, "No users", text)
        source = source_of(scope["client"][0]) if scope.get("client") else ""
        try:
            user, password = rules.basic_login(headers.get("authorization", ""))
            return BrowserSession(user, time.time(), await logins.check(source, user, password))
        except TooManyGuessesError as error:
            wait = {"retry-after": str(ceil(error.wait_s))}
            raise RequestRefused(_to_program(HTTPStatus.TOO_MANY_REQUESTS, error.message, wait)) from None
        except UnauthorizedError as error:
            challenge = {"www-authenticate": 'Basic realm="pulse", charset="UTF-8"'}
            raise RequestRefused(_to_program(HTTPStatus.UNAUTHORIZED, error.message, challenge)) from None

    def _session(self, scope: Scope, headers: Headers, new_cookie: list[str]) -> BrowserSession | None:
        sessions, now_s = self._site.sessions, time.time()
        name = self._options.cookie
        session = sessions.find(_cookie(headers, name), now_s)
        address = self._options.address
        if address.path is None:
            return session
        uid = scope.get("pulse.uid")
        if uid not in {_ROOT, self._site.uid}:
            text = f"The socket is for uid {self._site.uid} and root; the kernel says that this is uid {uid}."
            raise _refusal(HTTPStatus.FORBIDDEN, "Not for this user", text)
        if session is not None:
            return session
        cookie, session = sessions.begin(f"uid {uid}", now_s)
        new_cookie.append(cookie_header(name, cookie))
        return session


def cookie_header(name: str, value: str) -> str:
    """The Set-Cookie header of a session; an empty value ends it."""
    ends = "" if value else "; Max-Age=0"
    return f"{name}={value}; Path=/; HttpOnly; SameSite=Strict{ends}"


def _harden(headers: MutableHeaders, new_cookie: list[str], *, is_static: bool) -> None:
    for name, value in rules.HEADERS.items():
        headers.setdefault(name, value)
    headers.setdefault("cache-control", "public, max-age=3600" if is_static else "no-store")
    for cookie in new_cookie:
        headers.append("set-cookie", cookie)


def _cookie(headers: Headers, name: str) -> str | None:
    """As browsers mean it: what other servers of this host have set beside it may have any form."""
    return cookie_parser(headers.get("cookie", "")).get(name)


def _to_login(scope: Scope, headers: Headers) -> Response:
    """To the login, and from there to the page that was asked for; live parts make the whole page go there."""
    query = scope["query_string"].decode("latin-1")
    wanted = quote(scope["path"]) + (f"?{query}" if query else "")
    login = "/login" if wanted == "/" else f"/login?{urlencode({'next': wanted})}"
    if "hx-request" in headers:
        return Response(status_code=HTTPStatus.UNAUTHORIZED, headers={"hx-redirect": login})
    if headers.get("accept") == "text/event-stream":
        return Response(status_code=HTTPStatus.UNAUTHORIZED)
    if headers.get("sec-fetch-site") == "cross-site":
        # A link of an alert, say: SameSite=Strict has left the cookie out, though there may be one. Now it comes along.
        return hop(rules.own_path(wanted))
    return RedirectResponse(login, HTTPStatus.SEE_OTHER)


async def _read_form(receive: Receive, most_bytes: int) -> Mapping[str, list[str]]:
    """The fields of an urlencoded form."""
    body = await _read_body(receive, most_bytes)
    try:
        return parse_qs(body.decode("ascii"), keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError:
        raise _refusal(
            HTTPStatus.BAD_REQUEST, "RequestRefused", "The form is not understood. Nothing was changed."
        ) from None


async def _read_body(receive: Receive, most_bytes: int) -> bytes:
    """The whole, of a bounded size, in a bounded time."""
    try:
        async with asyncio.timeout(FORM_S):
            return await _read_parts(receive, most_bytes)
    except TimeoutError:
        text = f"The request took longer than {FORM_S:g} s. Nothing was changed."
        raise _refusal(HTTPStatus.REQUEST_TIMEOUT, "RequestRefused", text) from None


async def _read_parts(receive: Receive, most_bytes: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _refusal(HTTPStatus.BAD_REQUEST, "RequestRefused", "The request ended too early.")
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > most_bytes:
            text = f"The request may have {most_bytes} bytes. Nothing was changed."
            raise _refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "Too large", text)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _check_token(session: BrowserSession, form: Mapping[str, list[str]]) -> None:
    if not rules.is_same(session.token, form.get(TOKEN_FIELD, [""])[0]):
        text = "The form has not the token of this session. Go back, reload, and try again. Nothing was changed."
        raise _refusal(HTTPStatus.FORBIDDEN, "RequestRefused", text)


def _refusal(status: HTTPStatus, title: str, text: str) -> RequestRefused:
    return RequestRefused(plain_page(status, title, text), text)


def _to_program(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse({"error": text}, status, headers)
