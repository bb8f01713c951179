"""Logging in and out of the dashboard: guesses are slow, and after a logout nothing more is shown."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
import uvicorn
from starlette.requests import Request

from pulse.errors import ForbiddenError, UnauthorizedError
from pulse.protocol.roles import EVERYTHING, Access, Rights, rights_of
from pulse.security import credentials
from pulse.security.credentials import Throttle, hash_password, parse_users
from pulse.security.password_login import Logins, TooManyGuessesError
from pulse.ui import server
from pulse.ui.app import make_app
from pulse.ui.auth.address import bind, file_of, parse_listen, remove
from pulse.ui.auth.sessions import MOST_OF_ONE, BrowserSession, BrowserSessions
from pulse.ui.pages import common, live
from pulse.ui.server import PeerProtocol
from pulse.ui.site import SESSION
from tests.support.confidential import confidential
from tests.support.servers.dashboard import Browser, site_of

pytestmark = pytest.mark.anyio
WAIT_S = 5.0
RIGHT = confidential("r1ght-word", "password of ann and bob")


def browser(address: str = "127.0.0.1", of: Browser | None = None, **options: Any) -> Browser:
    """Before the whole application; *of* another one's site."""
    site = site_of(credentials=parse_users(f"ann:{RIGHT},bob:{RIGHT}"), **options) if of is None else of.site
    return Browser(make_app(site) if of is None else of.app, site, address)


async def guess(at: Browser, password: str, user: str = "ann") -> int:
    return (await at.ask("POST", "/login", {"user": user, "password": password})).status


async def test_many_guesses_at_once_are_one() -> None:
    """A guess counts as wrong while it is checked: parallel guesses gain nothing."""
    at = browser()
    codes = await asyncio.gather(*(guess(at, f"wrong {number}", f"user{number}") for number in range(20)))
    assert sorted(codes) == [403, *[429] * 19]


async def test_one_name_from_many_addresses() -> None:
    """They share its waits, which are short, so that its owner gets in; other names do not wait."""
    first = browser("10.0.0.1")
    assert await guess(first, "wrong") == 403
    others = [browser(f"10.0.1.{number}", first) for number in range(3)]
    assert [await guess(other, "wrong") for other in others] == [429, 429, 429]
    assert await guess(others[0], RIGHT, "bob") == 303
    moment = [0.0]
    logins = Logins(parse_users(f"ann:{RIGHT}"), lambda: moment[0])
    for number in range(20):
        moment[0] = 10.0 * number
        with pytest.raises(UnauthorizedError, match="do not fit"):
            await logins.check(f"10.0.2.{number}", "ann", "wrong")
    with pytest.raises(TooManyGuessesError) as caught:
        await logins.check("10.0.3.1", "ann", RIGHT)
    assert caught.value.wait_s == 4.0


async def test_one_network_of_ipv6_is_one_source() -> None:
    first = browser("2001:db8::1")
    assert await guess(first, "wrong") == 403
    assert await guess(browser("2001:db8::ffff:2", first), RIGHT, "bob") == 429
    assert await guess(browser("2001:db8:0:1::1", first), RIGHT, "bob") == 303


async def test_who_is_right_does_not_wipe_out_wrong_guesses() -> None:
    """A user with a password gets no free guess at others' after each login."""
    throttle = Throttle()
    for moment in (0.0, 10.0, 20.0):
        throttle.tries("a", moment)
    throttle.tries("a", 30.0)
    throttle.was_right("a")
    assert throttle.wait_s("a", 21.0) == 1.0
    assert throttle.wait_s("a", 30.0) == 0.0
    throttle.tries("a", 31.0)
    assert throttle.wait_s("a", 31.0) == 4.0
    throttle.forget("a")
    assert throttle.wait_s("a", 30.0) == 0.0
    throttle.tries("b", 0.0)
    throttle.was_right("b")
    assert throttle.wait_s("b", 0.0) == 0.0


async def test_links_that_are_wrong_lock_nobody_out() -> None:
    """Any page in the browser could send them."""
    site = site_of()
    at = Browser(make_app(site), site)
    site.new_link()
    for _ in range(20):
        assert (await at.ask("GET", "/login?token=x")).status == 403
    token = site.link_token
    got = await at.ask("GET", f"/login?token={token}")
    assert (got.status, "set-cookie" in got.headers, site.link_token == token) == (200, True, False)
    assert (await at.ask("GET", f"/login?token={token}")).status == 403
    assert await guess(at, RIGHT) == 403, "there is nobody who has a password"


async def test_a_new_login_ends_the_session_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pulse.ui.guard.time.time", lambda: 2_000_000_001.0)
    at = browser()
    at.enter("eve")
    got = await at.ask("POST", "/login", {"user": "ann", "password": RIGHT, "next": "//evil.example"})
    assert (got.status, got.headers["location"]) == (303, "/")
    assert (await at.ask("GET", "/gate")).headers["location"] == "/login?next=%2Fgate"
    assert len(at.site.sessions) == 1


async def test_news_end_with_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in another tab, at the next one; and in a tab that stopped reading, after a while."""
    monkeypatch.setattr(live, "SEND_S", 0.05)
    at = browser()
    at.enter()
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)
        if len(sent) > 2 and is_stuck:
            await asyncio.Event().wait()

    async def stay() -> Any:
        await asyncio.Event().wait()

    async def stream() -> None:
        scope: Any = {
            "type": "http", "http_version": "1.1", "method": "GET", "scheme": "http", "path": "/live", "root_path": "",
            "raw_path": b"/live", "query_string": b"", "client": None, "server": None,
            "headers": [(b"host", b"localhost"), (b"cookie", at.cookie.encode())],
        }  # fmt: skip
        try:
            await at.app(scope, stay, send)
        except Exception:  # noqa: BLE001 -- how it ends is the server's matter; that it does is looked at
            return

    for is_stuck in (True, False):
        sent.clear()
        reading = asyncio.ensure_future(stream())
        with anyio.fail_after(WAIT_S):
            while len(sent) < 2:
                await at.site.poller.latest(0.0)
                await asyncio.sleep(0)
            if not is_stuck:
                at.site.sessions.end(at.cookie.partition("=")[2])
            while not reading.done():
                at.site.poller.forget()
                await at.site.poller.latest(0.0)
                await asyncio.sleep(0.01)
        assert at.site.poller._watchers == 0


async def test_time_does_not_tell_who_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    """For any name one comparison with a hash of each kind is made."""
    monkeypatch.setattr(credentials, "BCRYPT_COST", 4)
    hashed = hash_password(RIGHT)
    monkeypatch.setattr(credentials, "BCRYPT_COST", 5)
    dearer = hash_password(RIGHT)
    older = hashed.replace("$2b$", "$2a$")
    users = parse_users(f"plain:{RIGHT},hashed:{hashed},dearer:{dearer},older:{older}")
    compared: list[bytes] = []
    inner = credentials._matches

    def matches(entry: Any, given: bytes) -> bool:
        compared.append(entry.secret)
        return inner(entry, given)

    monkeypatch.setattr(credentials, "_matches", matches)
    for user in ("plain", "hashed", "dearer", "older", "nobody"):
        compared.clear()
        assert not users.verify(user, "wrong")
        assert sorted(one[:7] for one in compared if one.startswith(b"$2")) == [b"$2a$04$", b"$2b$04$", b"$2b$05$"], (
            user
        )
    assert [users.verify(user, RIGHT) for user in ("plain", "hashed", "dearer", "older", "nobody")] == [True] * 4 + [
        False
    ]
    assert not users.verify("nobody", "\0")
    compared.clear()
    assert users.verify("dearer", RIGHT)
    assert not compared, "what was right once costs no hash again"


async def test_guesses_from_elsewhere_keep_nobody_out_who_is_known_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address of an earlier login may go on, even while guesses take all hashing; others may not."""
    monkeypatch.setattr(credentials, "BCRYPT_COST", 4)
    moment = [0.0]
    logins = Logins(parse_users(f"ann:{hash_password('right')},bob:right"), lambda: moment[0])
    await logins.check("10.0.0.1", "ann", "right")
    with pytest.raises(UnauthorizedError, match="do not fit"):
        await logins.check("10.9.9.9", "ann", "wrong")
    with pytest.raises(TooManyGuessesError, match="too many"):
        await logins.check("10.0.0.2", "ann", "right")
    async with logins._turn("name ann"), logins._hashing, logins._hashing:
        with anyio.fail_after(WAIT_S):
            await logins.check("10.0.0.1", "ann", "right")
    with pytest.raises(TooManyGuessesError, match="too many"):  # nor does that forgive those who guess
        await logins.check("10.9.9.8", "ann", "wrong")
    with pytest.raises(UnauthorizedError, match="do not fit"):
        await logins.check("10.0.0.1", "bob", "wrong")
    with pytest.raises(TooManyGuessesError, match="too many"):  # its own guesses count
        await logins.check("10.0.0.1", "ann", "right")


async def test_one_user_does_not_end_the_sessions_of_others() -> None:
    """A script that sends no cookie begins a session each time; only its user's end."""
    sessions = BrowserSessions()
    cookie, session = sessions.begin("ann", 0.0)
    first, _ = sessions.begin("uid 0", 0.0)
    for _ in range(1000):
        sessions.begin("uid 0", 0.0)
    assert len(sessions) == MOST_OF_ONE + 1
    assert sessions.find(cookie, 1.0) is session
    assert sessions.find(first, 1.0) is None


async def test_who_connects_and_says_nothing_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Places for connections are few: a silent one is ended, one that asks in time is not."""
    monkeypatch.setattr(server, "HEAD_S", 0.1)
    listening, address = bind(parse_listen("127.0.0.1:0"))
    at = uvicorn.Server(uvicorn.Config(make_app(site_of()), http=PeerProtocol, log_config=None, lifespan="off"))
    thread = threading.Thread(target=at.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        with (
            socket.create_connection((address.host, address.port), WAIT_S) as silent,
            socket.create_connection((address.host, address.port), WAIT_S) as half,
            socket.create_connection((address.host, address.port), WAIT_S) as asks,
        ):
            half.sendall(b"GET / HTTP/1.1\r\nHost: ")
            asks.sendall(b"GET /login HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert asks.recv(12) == b"HTTP/1.1 200"
            assert (silent.recv(1), half.recv(1)) == (b"", b"")
            asks.sendall(b"GET /login HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert asks.recv(1)
    finally:
        at.should_exit = True
        thread.join(WAIT_S)
        listening.close()
    assert not thread.is_alive()


async def test_the_socket_of_the_next_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "s"
    first, _ = bind(parse_listen(f"unix:{path}"))
    made = file_of(path)
    first.close()
    second, _ = bind(parse_listen(f"unix:{path}"))
    mine = file_of(path)
    if mine != made:  # some file systems give the number of a file that is gone to the next one at once
        remove(path, made)
        assert path.exists()
    remove(path, mine)
    assert not path.exists()
    remove(path, mine)
    second.close()


async def test_what_a_user_may_do_and_see() -> None:
    users = parse_users(f"ann:{RIGHT},vic:{RIGHT}:viewer")
    at = browser(of=None)
    at.site.logins = Logins(users)
    for user, rights in (("ann", EVERYTHING), ("vic", rights_of({Access.VIEWER}))):
        answer = await at.ask("POST", "/login", {"user": user, "password": RIGHT})
        cookie = answer.headers["set-cookie"].partition("=")[2].partition(";")[0]
        session = at.site.sessions.find(cookie, 0.0)
        assert session is not None
        assert session.rights == rights
    told: dict[str, object] = {"job": {"id": b"1", "args": "{}"}}
    viewer, owner = (
        request_of(user, rights, told) for user, rights in (("vic", rights_of({Access.VIEWER})), ("ann", EVERYTHING))
    )
    assert await common.ask(owner, "jobs.get") == told
    assert await common.ask(viewer, "jobs.get") == {"job": {"id": b"1", "concealed": True}}
    for kind in ("jobs.retry", "jobs.cancel", "dispatch.pause", "schedules.create"):
        with pytest.raises(ForbiddenError, match=f"^{kind} needs the role "):
            await common.do(viewer, kind, {})
    with pytest.raises(ForbiddenError, match=r"^audit.list needs the role"):
        await common.ask(viewer, "audit.list")


def request_of(user: str, rights: Rights, told: dict[str, object]) -> Request:
    """A request in the session of *user*, where every question is answered so."""

    class Questions:
        async def ask(self, *_words: object, **_more: object) -> dict[str, object]:
            return told

    site = SimpleNamespace(questions=Questions())
    scope = {SESSION: BrowserSession(user, 0.0, rights)}
    return cast("Request", SimpleNamespace(scope=scope, app=SimpleNamespace(state=SimpleNamespace(site=site))))
