"""What ``pulse ctl login`` saves: for its owner alone, and trusted only where nobody else can have written it."""

from __future__ import annotations

import os
import stat
import tomllib
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse.client.login import Login, Saved, _quoted, forget, logged_in, save
from pulse.errors import ConfigError
from tests.support.servers.accounts import needs_root

SOMEBODY: Final = 4321
SAVED: Final = Saved("tls://host:1", Login("ann", "pass", Path("/ca.pem")))


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    home, config = tmp_path / "home", tmp_path / "config"
    for env, base in (
        ({"HOME": str(home)}, home / ".config"),
        ({"HOME": str(home), "XDG_CONFIG_HOME": "relative"}, home / ".config"),
        ({"HOME": str(home), "XDG_CONFIG_HOME": str(config)}, config),
    ):
        assert logged_in(env) is None
        path = save(env, SAVED)
        assert (path, logged_in(env)) == (base / "pulse" / "login.toml", SAVED)
        assert [stat.S_IMODE(one.stat().st_mode) for one in (path, path.parent)] == [0o600, 0o700]
        assert (forget(env), forget(env), logged_in(env)) == (path, None, None)


@pytest.mark.parametrize("env", [{}, {"HOME": ""}, {"HOME": "relative"}, {"XDG_CONFIG_HOME": "relative"}])
def test_where_there_is_no_home(env: dict[str, str]) -> None:
    assert (logged_in(env), forget(env)) == (None, None)
    with pytest.raises(ConfigError, match=r"^there is no HOME to save a login in: set HOME or XDG_CONFIG_HOME$"):
        save(env, SAVED)


@pytest.mark.parametrize(
    "text", ["connect = ", "user = 'a'\n", "connect = 1\n", "connect = 'tls://h:1'\npassword = 1\n"]
)
def test_what_is_no_saved_login(text: str, tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path)}
    path = save(env, SAVED)
    path.write_text(text)
    with pytest.raises(ConfigError, match=rf"^{path} is not understood \(.*\): pulse ctl login writes a new one$"):
        logged_in(env)


@needs_root
def test_a_file_of_another_account_is_not_believed(tmp_path: Path) -> None:
    """It could lead its readers, root too, to a server of its writer."""
    env = {"HOME": str(tmp_path)}
    path = save(env, SAVED)
    os.chown(path, SOMEBODY, -1)
    with pytest.raises(ConfigError, match=r"is not for its owner alone"):
        logged_in(env)


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    """A new file replaces the old one: readers see either, whole, and no old mode stays."""
    env = {"HOME": str(tmp_path)}
    path = save(env, SAVED)
    path.chmod(0o644)
    with path.open() as old:
        save(env, Saved("tls://other:1", Login()))
        assert "tls://host:1" in old.read()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    path.unlink()
    path.mkdir()
    (path / "kept").touch()
    with pytest.raises(ConfigError, match=rf"^{path} cannot be written: "):
        save(env, SAVED)
    assert [one.name for one in path.parent.iterdir()] == [path.name]  # nothing with a password is left behind


def test_a_password_that_is_no_unicode(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path)}
    with pytest.raises(ConfigError, match=r"cannot be written: the password has characters that are no Unicode$"):
        save(env, Saved("tls://host:1", Login("ann", "pass\udc80")))
    assert list((tmp_path / ".config" / "pulse").iterdir()) == []


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_password_comes_back(password: str) -> None:
    assert tomllib.loads(f"password = {_quoted(password)}\n") == {"password": password}
