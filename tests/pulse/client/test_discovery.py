"""Which server a client asks; and no password leaves this machine unencrypted, unless that is meant."""

from __future__ import annotations

import errno
import math
import os
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pulse.cli.admin.login import login
from pulse.client import discovery
from pulse.client.discovery import (
    MEANT,
    LocalSocket,
    Patience,
    Refusal,
    Remote,
    find_servers,
    nobody_answers,
    parse_address,
    reason_of,
    why_not,
)
from pulse.client.login import Login, Saved, save
from pulse.errors import ConfigError, PathError
from pulse.security.tls import SSLError

FAR, LOGIN = "tcp://queue.example:7420", {"PULSE_USER": "ann", "PULSE_PASSWORD": "a word"}
MESSAGE = (
    "tcp://queue.example:7420 is on another machine, and everybody on the way could read the password: tls://HOST:PORT "
    "is allowed, and {} says that this is meant"
)


def found(address: str, env: dict[str, str]) -> Login:
    (server,) = find_servers(address, env)
    assert isinstance(server, Remote)
    return server.login


def test_of_the_environment() -> None:
    """It goes to this machine, over TLS, and wherever that is allowed; else it is not read at all."""
    with pytest.raises(ConfigError, match=f"^{re.escape(MESSAGE.format(MEANT + '=1'))}$"):
        found(FAR, LOGIN)
    for address, env in (
        ("tcp://127.0.0.1:7420", LOGIN),
        ("tcp://LocalHost.:7420", LOGIN),
        ("tcp://[::ffff:127.0.0.1]:7420", LOGIN),
        ("tls://queue.example:7420", LOGIN),
        (FAR, {**LOGIN, MEANT: "1"}),
    ):
        assert found(address, env).password == "a word"
    assert found(FAR, {"PULSE_USER": "ann"}).password is None
    with pytest.raises(ConfigError, match=rf"^{MEANT} is 'yes': 1 or 0 \(true or false\) is allowed$"):
        found(FAR, {**LOGIN, MEANT: "yes"})


def test_of_a_saved_login(tmp_path: Path) -> None:
    """Only for the server that it was saved for; the environment does not change that."""
    env = {"HOME": str(tmp_path)}
    save(env, Saved(FAR, Login("ann", "another")))
    assert found(FAR, env).password == "another"
    with pytest.raises(ConfigError, match=r"says that this is meant$"):
        found(FAR, {**env, **LOGIN})
    assert found(FAR, {**env, "PULSE_USER": "bob"}).password is None
    assert found("tcp://elsewhere.example:7420", env).password is None


def test_to_be_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither tried nor saved."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    words = [FAR, "--user", "ann", "--no-check"]
    refused = CliRunner().invoke(login, words)  # before it is asked for one
    assert str(refused.exception) == MESSAGE.format("--insecure")
    assert list(tmp_path.iterdir()) == []
    assert CliRunner().invoke(login, [FAR, "--no-check"]).exit_code == 0  # nobody has to log in there
    assert CliRunner().invoke(login, [*words, "--insecure"], input="a word\n").exit_code == 0
    assert found(FAR, {"HOME": str(tmp_path)}).password == "a word"


def test_which_server_is_asked(tmp_path: Path) -> None:
    """The one that is named; else what the environment says; else where somebody has logged in."""
    env = {"HOME": str(tmp_path)}
    save(env, Saved("tls://saved.example:1", Login("ann", "a word")))
    named = Remote("tls", "named.example", 1)
    assert find_servers(named, env) == [named]
    for text, more, places in (
        ("/run/a.sock", {}, ["/run/a.sock"]),
        ("unix:///run/a.sock", {"PULSE_CONNECT": "tls://env.example:1"}, ["/run/a.sock"]),
        (None, {"PULSE_CONNECT": "tls://env.example:1"}, ["tls://env.example:1"]),
        (None, {"PULSE_RUNTIME_DIR": "/run/b"}, ["/run/b/pulse.sock"]),
        (None, {}, ["tls://saved.example:1"]),
    ):
        assert [str(one) for one in find_servers(text, {**env, **more})][:1] == places


@pytest.mark.parametrize(("address", "said"), [
    ("http://h:1", "is no address of a server"),
    ("tls://h", "is no address of a server"),
    ("tls://h:0", "is no address of a server"),
    ("tls://@h:1", "is no address of a server"),
    ("tls://ann:word@h:1", r"'tls://ann:\*\*\*@h:1' has a password in it"),
])  # fmt: skip
def test_what_is_no_address(address: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_address(address)


def test_a_path_that_is_no_socket(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, said in ((tmp_path, "is a directory; name the socket in it"), (tmp_path / "file", "is not a socket")):
        with pytest.raises(PathError, match=said):
            find_servers(path)
    assert why_not(LocalSocket(tmp_path / ("x" * 108), named=True)) == "path has more than 107 bytes"


def test_an_error_of_tls_is_told_in_its_words() -> None:
    error = SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number")
    error.reason = "WRONG_VERSION_NUMBER"
    assert reason_of(error) == "it does not speak TLS"
    assert reason_of(ConnectionRefusedError(111, "Connection refused")) == "connection refused"


@pytest.mark.parametrize(("when_down", "found"), [
    (None, Patience(3.0)),
    ("fail", Patience(3.0, restarts=False)),
    ("wait", Patience(30.0)),
    ("postgresql:///x", Patience(3.0, restarts=False, dsn="postgresql:///x")),
])  # fmt: skip
def test_how_long_a_server_is_waited_for(when_down: str | None, found: Patience) -> None:
    assert discovery.patience(when_down, None, 30.0, {discovery.CONNECT_TIMEOUT: "3s"}) == found


def test_what_is_no_choice() -> None:
    wrong: Any
    for wrong, said in (("wiat", "when_down is 'wiat'"), (5, "when_down is of type int"), (True, "of type bool")):
        with pytest.raises(ConfigError, match=f"{said}: 'fail', 'wait' or a DSN"):
            discovery.patience(wrong, None, 30.0, {})


def test_until_when() -> None:
    """A server that was there is waited for until its restart must be over, or for ever while its socket is there."""
    absent = nobody_answers([Refusal(LocalSocket(Path("/x"), named=True), os.strerror(errno.ENOENT).lower())])
    refused = nobody_answers([Refusal(LocalSocket(Path("/x"), named=True), os.strerror(errno.ECONNREFUSED).lower())])
    usual, failing = Patience(3.0), Patience(3.0, restarts=False)
    assert usual.until_s(absent, 100.0, None) == usual.until_s(refused, 100.0, None) == 103.0
    assert usual.until_s(absent, 100.0, 99.0) == 99.0 + discovery.RESTART_S
    assert usual.until_s(absent, 100.0, 50.0) == 103.0
    assert usual.until_s(refused, 100.0, 99.0) == math.inf
    assert failing.until_s(refused, 100.0, 99.0) == failing.until_s(absent, 100.0, 99.0) == 103.0
