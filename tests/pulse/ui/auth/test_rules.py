"""Who may come in, from where, and under which name: the rules of the dashboard, and the passwords."""

from __future__ import annotations

import base64
import socket
import stat
from pathlib import Path

import pytest

from pulse.errors import ConfigError, PathError, UnauthorizedError
from pulse.security import credentials
from pulse.security.credentials import Throttle, hash_password, parse_users
from pulse.ui.auth.address import bind, parse_listen
from pulse.ui.auth.rules import basic_login, host_name, is_hook, is_own_page, is_same, own_path
from pulse.ui.auth.sessions import LIFETIME_S, MOST, BrowserSessions, Flash, Undo
from tests.support.commandline.cli import environment, run
from tests.support.confidential import confidential

ENTRY = "$2b$04$ZlGeTCxoEwZEOWNsTsvn9O3ljSCHMbxEVNwWAIzfoDlRk/5R1hn4m"


@pytest.mark.parametrize(("host", "name"), [
    ("localhost:8470", "localhost"), ("LocalHost.", "localhost"), ("127.0.0.1", "127.0.0.1"), ("[::1]:8470", "::1"),
    ("", None), ("a@localhost", None), ("localhost:port", None), ("localhost/x", None),
    ("localhost evil", "localhost evil"),
])  # fmt: skip
def test_host_name(host: str, name: str | None) -> None:
    assert host_name(host) == name


@pytest.mark.parametrize(("origin", "site", "own"), [
    (None, None, True), ("http://localhost:8470", None, True), ("http://localhost:8470", "same-origin", True),
    ("https://LOCALHOST:8470", None, True), (None, "same-site", False), (None, "cross-site", False),
    (None, "none", False), ("null", None, False), ("http://[", None, False), ("http://localhost:8471", None, False),
    ("http://localhost:8470", "cross-site", False), ("http://evil.example", "same-origin", False),
    ("file://localhost:8470", None, False),
])  # fmt: skip
def test_own_page(origin: str | None, site: str | None, own: bool) -> None:
    assert is_own_page("localhost:8470", origin, site) is own


@pytest.mark.parametrize(("listen", "url"), [
    ("127.0.0.1:8470", "http://127.0.0.1:8470"),
    ("[::1]:8470", "http://[::1]:8470"),
    ("unix:/run/ui.sock", "http://localhost"),
])  # fmt: skip
def test_what_is_typed_into_a_browser(listen: str, url: str) -> None:
    assert parse_listen(listen).url == url


def test_a_login_in_the_request() -> None:
    for text, login in (("ann:a:b", ("ann", "a:b")), ("ann:", ("ann", "")), ("é:ü", ("é", "ü"))):
        assert basic_login(f"bAsic {base64.b64encode(text.encode()).decode()}") == login
    for text in ("", "Basic", "Basic !", "Basic YW5u", "Basic /zo6", "Bearer YW5uOmI=", "YW5uOmI=", "Basic YW5u OmI="):
        with pytest.raises(UnauthorizedError, match="Basic is allowed"):
            basic_login(text)


def test_which_requests_come_from_programs() -> None:
    for path in ("/jobs/1/signals/a", "/jobs/1/signals/a/b"):
        assert is_hook("POST", path)
        assert not is_hook("GET", path)
    for path in (
        "/jobs/1/signal",
        "/jobs/1/signals/",
        "/jobs/1/2/signals/a",
        "/x/jobs/1/signals/a",
        "/jobs//signals/a",
        "/jobs/1/signals/a\nb",
    ):
        assert not is_hook("POST", path)


def test_tokens_and_paths() -> None:
    assert is_same("a", "a")
    assert not is_same("a", "b")
    assert not is_same("a", None)
    assert not is_same("a", "\ud800")
    assert own_path("/jobs?topic=a") == "/jobs?topic=a"
    for foreign in (None, "", "jobs", "//evil.example", "/\\evil.example", "http://evil.example", "/a\r\nb"):
        assert own_path(foreign) == "/", foreign


class TestSessions:
    def test_life(self) -> None:
        sessions = BrowserSessions()
        cookie, session = sessions.begin("alice", 0.0)
        assert sessions.find(cookie, 1.0) is session
        assert sessions.find("x", 1.0) is None
        assert sessions.find(cookie, LIFETIME_S) is None
        cookie, session = sessions.begin("alice", 0.0)
        sessions.end(cookie)
        assert (session.ends_s, len(sessions)) == (0.0, 0)
        assert sessions.find(cookie, 1.0) is None

    def test_bounds(self) -> None:
        sessions = BrowserSessions()
        first, session = sessions.begin("a", 0.0)
        for number in range(MOST):
            _, session = sessions.begin(f"a{number}", 0.0)
        assert len(sessions) == MOST
        assert sessions.find(first, 1.0) is None
        for number in range(100):
            session.show_next(Flash(str(number)), Undo("u", []))
        assert len(session.undos) == 20
        told = session.told()
        assert [told[-1].text, len(told)] == ["99", 8]
        assert told[-1].undo in session.undos
        assert session.told() == []


class TestAddresses:
    @pytest.mark.parametrize(("text", "is_local"), [
        ("127.0.0.1:8470", True), ("127.9.9.9:0", True), ("[::1]:80", True), ("localhost:80", True),
        ("unix:/run/ui.sock", True), ("0.0.0.0:80", False), ("[::]:80", False), ("10.0.0.1:80", False),
        ("host.example:80", False),
    ])  # fmt: skip
    def test_local(self, text: str, is_local: bool) -> None:
        """Only what no other machine reaches is local; a name may mean anything."""
        assert parse_listen(text).is_local is is_local

    @pytest.mark.parametrize(
        "text", ["", "8470", ":8470", "host:", "host:70000", "::1:80", "[host]:80", "unix:x", "a:-1"]
    )
    def test_wrong(self, text: str) -> None:
        with pytest.raises(ConfigError, match="--listen is"):
            parse_listen(text)

    def test_unix_socket(self, tmp_path: Path) -> None:
        address = parse_listen(f"unix:{tmp_path}/s")
        first, _ = bind(address)
        assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600
        with pytest.raises(PathError, match="somebody listens"):
            bind(address)
        first.close()
        bind(address)[0].close()
        (tmp_path / "f").touch()
        with pytest.raises(PathError, match="is not a socket"):
            bind(parse_listen(f"unix:{tmp_path}/f"))

    def test_port_taken(self) -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            with pytest.raises(PathError, match="in use"):
                bind(parse_listen(f"127.0.0.1:{other.getsockname()[1]}"))


class TestCredentials:
    def test_plain_and_bcrypt(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(credentials, "BCRYPT_COST", 4)
        users = parse_users(f"alice:s:3 cret, bob:{hash_password('höher')}")
        assert len(users) == 2
        assert users.verify("alice", "s:3 cret")
        assert users.verify("bob", "höher")
        assert users.verify("bob", "höher")
        for user, password in (
            ("alice", "s:3 cret "),
            ("bob", "hoher"),
            ("carol", "höher"),
            ("", ""),
            ("bob", "x" * 99),
        ):
            assert not users.verify(user, password), user
        assert not users.verify("bob", "h\0")
        assert not users.verify("\ud800", "\ud800")

    @pytest.mark.parametrize(
        "text",
        ["", "alice", "alice:", ":x", "a b:x", "alice:x,alice:y", "alice:x,", "alice:$2b$12$short", f"a:{ENTRY}x"],
    )
    def test_wrong(self, text: str) -> None:
        with pytest.raises(ConfigError, match="auth_users") as refusal:
            parse_users(text)
        assert "short" not in refusal.value.message

    def test_guessing_gets_slower(self) -> None:
        throttle = Throttle(most_sources=2)
        waits = []
        for _ in range(9):
            throttle.tries("a", 100.0)
            waits.append(throttle.wait_s("a", 100.0))
        assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
        assert throttle.wait_s("a", 131.0) == 0.0
        assert throttle.wait_s("b", 100.0) == 0.0
        throttle.tries("a", 1000.0)
        assert throttle.wait_s("a", 1000.0) == 0.5
        throttle.was_right("a")
        assert throttle.wait_s("a", 1000.0) == 0.0
        for source in "xyz":
            throttle.tries(source, 1.0)
        assert throttle.wait_s("x", 1.0) == 0.0

    @pytest.mark.rest
    def test_passwd(self) -> None:
        done = run(["passwd", "alice"], environment(), stdin=b"s3cret-word\n")
        assert done.code == 0, done.err
        assert parse_users(done.out.strip()).verify("alice", confidential("s3cret-word", "password of alice"))
        for stdin in (b"\n", b"x" * 80 + b"\n"):
            refused = run(["passwd"], environment(), stdin=stdin)
            assert (refused.code, refused.out) == (1, "")
            assert "a password has 1 to 72 bytes" in refused.err


@pytest.mark.parametrize(("words", "env", "said"), [
    (["--listen", "0.0.0.0:0"], {}, "other machines can reach it"),
    (["--listen", "0.0.0.0:0", "--force-remote"], {}, "needs users that log in; set PULSE_AUTH_USERS"),
    (["--listen", "here"], {}, "HOST:PORT or unix:/path is allowed"),
    ([], {"PULSE_AUTH_USERS": "alice"}, "has no user and password"),
    (["--queue", "mail"], {}, "allowed are those that the config file has in [queues], and it has none"),
])  # fmt: skip
def test_refusals_at_the_start(words: list[str], env: dict[str, str], said: str) -> None:
    done = run(["ui", *words], {**environment(), **env})
    assert (done.code, done.out) == (1, "")
    assert said in done.err
