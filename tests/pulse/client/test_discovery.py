"""No password leaves this machine unencrypted by accident."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from pulse.cli.admin.login import login
from pulse.client.discovery import MEANT, Remote, find_servers
from pulse.client.login import Login, Saved, save
from pulse.errors import ConfigError

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
