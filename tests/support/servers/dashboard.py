"""The dashboard without a server: requests go to its application as ASGI, and a table answers what it asks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias
from urllib.parse import urlencode

from starlette.types import ASGIApp, Message

from pulse.errors import NobodyAnswersError
from pulse.ui.app import make_app
from pulse.ui.auth.address import ListenAddress
from pulse.ui.auth.sessions import BrowserSession
from pulse.ui.data.queries import Questions
from pulse.ui.guard import cookie_header
from pulse.ui.site import Site, SiteOptions

Reply: TypeAlias = "Mapping[str, object] | Callable[[Mapping[str, Any]], Mapping[str, object]]"

HOST: Final = "127.0.0.1:8470"
NOW_S: Final = 2_000_000_000.0  # sessions of tests are of another time than the clock's; they last


class Told(Questions):
    """
    Answers from a table, by the kind of the question; other questions get none. Keeps the changes.

    ``known`` is the last answer to each question that was answered before.
    """

    def __init__(self, **replies: Reply) -> None:
        super().__init__(None)
        self.replies: dict[str, Reply] = {kind.replace("_", "."): reply for kind, reply in replies.items()}
        self.changed: list[tuple[str, Mapping[str, Any], str]] = []
        self.known: tuple[float, dict[str, object]] | None = None

    async def ask(
        self, kind: str, body: Mapping[str, Any] | None = None, *, within_s: float = 1.0
    ) -> dict[str, object]:
        del within_s
        return self._reply(kind, body or {})

    def last(self, kind: str, body: Mapping[str, Any] | None = None) -> tuple[float, dict[str, object]] | None:
        del kind, body
        return self.known

    async def ask_fresh(
        self, kind: str, body: Mapping[str, Any] | None = None, *, within_s: float
    ) -> dict[str, object]:
        return await self.ask(kind, body, within_s=within_s)

    async def ask_supervisor(self) -> dict[str, object]:
        return self._reply("supervisor", {})

    async def change(
        self, kind: str, body: Mapping[str, Any], *, behalf: str, within_s: float = 1.0
    ) -> dict[str, object]:
        del within_s
        self.changed.append((kind, body, behalf))
        return self._reply(kind, body)

    def _reply(self, kind: str, body: Mapping[str, Any]) -> dict[str, object]:
        reply = self.replies.get(kind)
        if reply is None:
            raise NobodyAnswersError("no answer")
        return dict(reply(body) if callable(reply) else reply)


@dataclass(frozen=True, slots=True)
class Got:
    status: int
    headers: Mapping[str, str]
    text: str


@dataclass(slots=True)
class Browser:
    """Sends requests to *app*, with the cookie of its session, once it has one."""

    app: ASGIApp
    site: Site
    address: str = "127.0.0.1"
    cookie: str = ""
    session: BrowserSession | None = None
    uid: int | None = None
    read: int = 0  # pieces of bodies that were asked for
    scopes: list[Any] = field(default_factory=list[Any])

    def enter(self, user: str = "ann") -> None:
        cookie, self.session = self.site.sessions.begin(user, NOW_S)
        self.cookie = cookie_header(self.site.options.cookie, cookie).partition(";")[0]

    async def ask(
        self,
        method: str,
        path: str,
        form: Mapping[str, str] | bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        token: bool = True,
        receive: Callable[[], Any] | None = None,
    ) -> Got:
        """One request; a form has the token of the session, unless told otherwise."""
        more = (
            {"csrf": self.session.token} if self.session is not None and token and not isinstance(form, bytes) else {}
        )
        body = form if isinstance(form, bytes) else urlencode({**(form or {}), **more}).encode()
        given = {"host": HOST, **({"cookie": self.cookie} if self.cookie else {}), **(headers or {})}
        route, _, query = path.partition("?")
        scope: dict[str, Any] = {
            "type": "http", "http_version": "1.1", "method": method, "scheme": "http", "path": route, "root_path": "",
            "raw_path": route.encode(), "query_string": query.encode(), "client": (self.address, 5), "server": None,
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in given.items()],
        }  # fmt: skip
        if self.uid is not None:
            scope["pulse.uid"] = self.uid
        sent: list[Message] = []
        told = False

        async def take() -> Message:
            nonlocal told
            self.read += 1
            if told:
                await asyncio.Event().wait()  # a browser that stays
            told = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Message) -> None:
            sent.append(message)

        try:
            await self.app(scope, receive or take, send)
        except RuntimeError:  # of the page: after the answer it goes on to the server, which logs it
            assert sent
        self.scopes.append(scope)
        start, *rest = sent
        found = {name.decode(): value.decode("latin-1") for name, value in start["headers"]}
        return Got(start["status"], found, b"".join(one.get("body", b"") for one in rest).decode())


async def ask_about(at: Browser, path: str, form: Mapping[str, str]) -> Got:
    """What a form leads to: the page that asks whether it is meant."""
    got = await at.ask("POST", path, form)
    return got if got.status >= 400 else await at.ask("GET", got.headers["location"])


def site_of(questions: Questions | None = None, *, path: Any = None, said: Sequence[str] = (), **options: Any) -> Site:
    where = ListenAddress(path=path) if path is not None else ListenAddress("127.0.0.1", 8470)
    return Site(SiteOptions(where, **options), questions or Told(), list(said).append)


def browser(questions: Told) -> Browser:
    """A browser that has come in, and its dashboard."""
    site = site_of(questions)
    made = Browser(make_app(site), site)
    made.enter()
    return made
