"""The door of the dashboard, request by request: what passes it, and that nothing else does."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from pulse.security.credentials import parse_users
from pulse.ui import guard
from pulse.ui.guard import MAX_FIELDS, MAX_FORM_BYTES, MAX_HOOK_BYTES, MAX_LOGIN_BYTES, Guard
from pulse.ui.site import BODY, FORM, SESSION
from tests.support.confidential import confidential
from tests.support.servers.dashboard import Browser, Got, site_of

pytestmark = pytest.mark.anyio
INSIDE = 299  # the code of what has passed
HOOK = "/jobs/1/signals/paid"
RIGHT = confidential("r1ght-words", "password of ann and vic")


async def inside(scope: Scope, receive: Receive, send: Send) -> None:
    await Response(status_code=INSIDE)(scope, receive, send)


def browser(*, enter: bool = True, **options: Any) -> Browser:
    site = site_of(**options)
    made = Browser(Guard(inside, site), site)
    if enter:
        made.enter()
    return made


@pytest.fixture(autouse=True)
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions of tests begin at a time of their own."""
    monkeypatch.setattr("pulse.ui.guard.time.time", lambda: 2_000_000_001.0)


async def test_names_that_it_may_be_called_by() -> None:
    """This machine's, and allowed ones: another name was rebound to this address."""
    at = browser(names=frozenset({"Queue.Example"}))
    for host in ("127.0.0.1:8470", "localhost", "[::1]:1", "queue.example:443"):
        assert (await at.ask("GET", "/gate", headers={"host": host})).status == INSIDE, host
    for host in ("evil.example", "", "127.0.0.1@evil.example", "evil.example:8470"):
        assert (await at.ask("GET", "/gate", headers={"host": host})).status == 421, host
        assert (await at.ask("POST", "/gate/pause", headers={"host": host})).status == 421, host


async def test_pages_need_a_session() -> None:
    at = browser(enter=False)
    got = await at.ask("GET", "/jobs?topic=a%20b")
    assert (got.status, got.headers["location"]) == (303, "/login?next=%2Fjobs%3Ftopic%3Da%2520b")
    assert (await at.ask("GET", "/")).headers["location"] == "/login"
    got = await at.ask("GET", "/jobs", headers={"hx-request": "true"})
    assert (got.status, got.headers["hx-redirect"]) == (401, "/login?next=%2Fjobs")
    assert (await at.ask("GET", "/live", headers={"accept": "text/event-stream"})).status == 401
    for path in ("/login", "/static/pulse.css"):
        assert (await at.ask("GET", path)).status == INSIDE, path
    for path in ("/loginx", "/login/x", "/static", "/tasks/static/"):
        assert (await at.ask("GET", path)).status == 303, path
    assert (await at.ask("HEAD", "/gate")).status == 303
    at.cookie = f"{at.site.options.cookie}=guessed"
    assert (await at.ask("GET", "/gate")).status == 303
    at.enter()
    assert (await at.ask("GET", "/gate")).status == INSIDE
    assert at.scopes[-1][SESSION] is at.session


async def test_a_link_on_another_site_leads_to_the_page() -> None:
    """Browsers leave out the same-site cookie there: one step more, and it comes along."""
    at = browser(enter=False)
    got = await at.ask("GET", "/jobs?q=a", headers={"sec-fetch-site": "cross-site"})
    assert (got.status, 'content="0;url=/jobs?q=a"' in got.text) == (200, True)
    got = await at.ask("GET", "//evil.example/", headers={"sec-fetch-site": "cross-site"})
    assert 'content="0;url=/"' in got.text


async def test_changes_need_the_token() -> None:
    at = browser()
    passed = await at.ask("POST", "/gate/pause", {"topic": "a"}, {"origin": "http://127.0.0.1:8470"})
    assert passed.status == INSIDE
    assert at.scopes[-1][FORM]["topic"] == ["a"]
    other = browser()
    assert other.session is not None
    for form in ({}, {"csrf": ""}, {"csrf": "x" * 43}, {"csrf": other.session.token}):
        assert (await at.ask("POST", "/gate/pause", form, token=False)).status == 403, form
    for headers in (
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://["},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ):
        for path in ("/gate/pause", "/login", "/logout"):
            assert (await at.ask("POST", path, headers=headers)).status == 403, headers
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert (await at.ask(method, "/gate/pause", token=False)).status == 403, method


async def test_nothing_is_read_of_strangers() -> None:
    at = browser(enter=False)
    got = await at.ask("POST", "/gate/pause", b"x=" + b"y" * 100)
    assert (got.status, "not logged in" in got.text, at.read) == (403, True, 0)
    assert (await at.ask("POST", "/login", b"user=" + b"a" * (MAX_LOGIN_BYTES - 5))).status == INSIDE
    assert (await at.ask("POST", "/login", b"user=" + b"a" * (MAX_LOGIN_BYTES - 4))).status == 413


async def test_forms_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    at = browser()
    assert at.session is not None
    token = b"csrf=" + at.session.token.encode() + b"&"
    fits = token + b"a=" + b"b" * (MAX_FORM_BYTES - len(token) - 2)
    assert (await at.ask("POST", "/bulk/start", fits)).status == INSIDE
    assert (await at.ask("POST", "/bulk/start", fits + b"b")).status == 413
    assert (await at.ask("POST", "/bulk/start", token + b"&".join([b"a=1"] * MAX_FIELDS))).status == 400
    assert (await at.ask("POST", "/bulk/start", token + "ä=1".encode())).status == 400

    async def gone() -> Message:
        return {"type": "http.disconnect"}

    assert (await at.ask("POST", "/bulk/start", receive=gone)).status == 400
    monkeypatch.setattr(guard, "FORM_S", 0.01)
    assert (await at.ask("POST", "/bulk/start", receive=asyncio.Event().wait)).status == 408


async def test_a_program_sends_its_password_with_each_request() -> None:
    """No cookie counts, and no token is needed; what it sends is read when that is right."""
    at = browser(enter=False, credentials=parse_users(f"ann:{RIGHT}"))
    got = await at.ask("POST", HOOK, b"{}", basic("ann", RIGHT))
    assert (got.status, at.scopes[-1][BODY], at.scopes[-1][SESSION].user) == (INSIDE, b"{}", "ann")
    assert len(at.site.sessions) == 0
    assert (await at.ask("POST", HOOK, b"x" * MAX_HOOK_BYTES, basic("ann", RIGHT))).status == INSIDE
    got = await at.ask("POST", HOOK, b"x" * (MAX_HOOK_BYTES + 1), basic("ann", RIGHT))
    assert got.status == 413
    assert json.loads(got.text) == {"error": "The request may have 65536 bytes. Nothing was changed."}
    at.enter()
    at.read = 0
    got = await at.ask("POST", HOOK, {"a": "b"})
    assert (got.status, got.headers["www-authenticate"][:5]) == (401, "Basic")
    assert "missing" in json.loads(got.text)["error"]
    got = await at.ask("POST", HOOK, b"{}", basic("ann", "wrong"))
    assert (got.status, "do not fit" in json.loads(got.text)["error"]) == (401, True)
    got = await at.ask("POST", HOOK, b"{}", basic("ann", RIGHT))
    assert (got.status, got.headers["retry-after"]) == (429, "1"), "a guess before makes it wait"
    assert at.read == 0
    at.address = "2001:db8::1"
    assert (await at.ask("POST", HOOK, b"{}", basic("eve", "wrong"))).status == 401
    at.address = "2001:db8::ffff:2"
    assert (await at.ask("POST", HOOK, b"{}", basic("bob", "wrong"))).status == 429, "one network is one source"


async def test_what_no_password_opens_to_a_program() -> None:
    """A page of another site, another name, a dashboard that only reads, or one without passwords."""
    users = parse_users(f"ann:{RIGHT}")
    cases: list[tuple[dict[str, Any], dict[str, str], int]] = [
        ({}, {"origin": "http://evil.example"}, 403),
        ({}, {"sec-fetch-site": "cross-site"}, 403),
        ({}, {"host": "evil.example"}, 421),
        ({"read_only": True}, {}, 403),
        ({"credentials": None}, {}, 403),
    ]
    for options, headers, status in cases:
        at = browser(**{"credentials": users, **options})
        got = await at.ask("POST", HOOK, b"{}", {**basic("ann", RIGHT), **headers})
        assert (got.status, at.read, list(json.loads(got.text))) == (status, 0, ["error"]), (options, headers)


def basic(user: str, password: str) -> dict[str, str]:
    return {"authorization": f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"}


async def test_read_only() -> None:
    at = browser(read_only=True)
    for path in ("/gate/pause", "/bulk/start", "/undo/x", "/tasks/x/stop", "/jobs/x/cancel", "/loginx", "/"):
        got = await at.ask("POST", path)
        assert (got.status, "only reads" in got.text) == (403, True), path
    assert at.read == 0
    for path in ("/logout", "/theme"):
        assert (await at.ask("POST", path)).status == INSIDE, path
        assert (await at.ask("POST", path, token=False)).status == 403, path
    assert (await at.ask("GET", "/gate")).status == INSIDE


async def test_cookies_of_others_do_not_hide_ours() -> None:
    """All servers of a host share its cookies, whatever their ports; some are malformed."""
    at = browser()
    for beside in ('theme={"a": "b, c"}; ', 'x="; ', "a b=c d; ", "é; "):
        at_last = await at.ask("GET", "/gate", headers={"cookie": beside + at.cookie})
        assert at_last.status == INSIDE, beside


async def test_a_unix_socket_knows_who_it_is(tmp_path: Path) -> None:
    at = browser(enter=False, path=tmp_path / "s")
    cookie = ""
    for uid in (at.site.uid, 0):
        at.uid = uid
        got = await at.ask("GET", "/gate")
        assert got.status == INSIDE
        cookie, _, rest = got.headers["set-cookie"].partition("; ")
        assert rest == "Path=/; HttpOnly; SameSite=Strict"
        assert (await at.ask("GET", "/gate", headers={"cookie": cookie})).headers.get("set-cookie") is None
        assert at.scopes[-1][SESSION].user == f"uid {uid}"
    for at.uid in (12345, None):
        for method in ("GET", "POST"):
            got = await at.ask(method, "/gate")
            assert (got.status, "Not for this user" in got.text) == (403, True)
            got = await at.ask(method, "/gate", headers={"cookie": cookie})
            assert got.status == 403


async def test_every_answer_is_hardened() -> None:
    at = browser()
    answers: list[Got] = [
        await at.ask("GET", "/gate"),
        await at.ask("POST", "/gate/pause", token=False),
        await at.ask("GET", "/gate", headers={"host": "evil.example"}),
        await at.ask("GET", "/gate", headers={"cookie": ""}),
    ]
    for got in answers:
        policy = got.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'" in policy
        assert "unsafe" not in policy
        assert (got.headers["x-frame-options"], got.headers["cache-control"]) == ("DENY", "no-store")
        assert "frame-ancestors 'none'; base-uri 'none'" in policy
    assert "max-age" in (await at.ask("GET", "/static/pulse.css")).headers["cache-control"]
