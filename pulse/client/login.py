"""The login for TCP: from the environment, and from the private file of ``pulse ctl login``."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast

from pulse.errors import ConfigError

__all__ = ["Login", "Saved", "file_of", "forget", "logged_in", "login_from", "save"]

_VARIABLES: Final[Mapping[str, str]] = {
    "user": "PULSE_USER",
    "password": "PULSE_PASSWORD",
    "ca": "PULSE_TLS_CA",
    "cert": "PULSE_TLS_CLIENT_CERT",
    "key": "PULSE_TLS_CLIENT_KEY",
}
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True)
class Login:
    """
    User, password and certificates of a TCP client; None: not used.

    Attributes:
        user: The user's name.
        password: The user's password.
        ca: File with the CA certificates to trust; None: those of this machine.
        cert: File with the client's certificate.
        key: File with its key.

    """

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    @property
    def hello(self) -> dict[str, str]:
        """The fields for hello."""
        said = {"user": self.user, "password": self.password}
        return {name: value for name, value in said.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Saved:
    """A saved login: the server, and the user."""

    address: str
    login: Login


def login_from(env: Mapping[str, str]) -> Login:
    """The login in the environment."""
    return _login({name: env[variable] for name, variable in _VARIABLES.items() if env.get(variable)})


def file_of(env: Mapping[str, str]) -> Path | None:
    """Where ``pulse ctl login`` writes: below XDG_CONFIG_HOME, else ~/.config; None: this user has no home."""
    base = env.get("XDG_CONFIG_HOME", "")
    home = env.get("HOME", "")
    if base.startswith("/"):
        return Path(base) / "pulse" / "login.toml"
    return Path(home) / ".config" / "pulse" / "login.toml" if home.startswith("/") else None


def logged_in(env: Mapping[str, str]) -> Saved | None:
    """
    The saved login; None: there is none.

    Raises:
        ConfigError: The file is not one that ``save`` wrote, or others may read it.

    """
    path = file_of(env)
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            import tomllib  # slow to import: only if there is a file

            found = os.fstat(file.fileno())
            if found.st_mode & _OTHERS or found.st_uid != os.geteuid():
                raise ConfigError(f"{path} has passwords and is not for its owner alone: chmod 600 {path}")
            words = tomllib.load(file)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is not understood ({error}): pulse ctl login writes a new one") from None
    address = words.pop("connect", None)
    if not isinstance(address, str) or not all(isinstance(value, str) for value in words.values()):
        raise ConfigError(f"{path} is not understood (no text at connect): pulse ctl login writes a new one")
    return Saved(address, _login(cast("Mapping[str, str]", words)))


def save(env: Mapping[str, str], saved: Saved) -> Path:
    """
    Write *saved*, readable by its owner only, whole or not at all.

    Returns:
        The file.

    Raises:
        ConfigError: It cannot be written.

    """
    path = file_of(env)
    if path is None:
        raise ConfigError("there is no HOME to save a login in: set HOME or XDG_CONFIG_HOME")
    login = saved.login
    words = {"connect": saved.address, **login.hello}
    words |= {name: str(value) for name in ("ca", "cert", "key") if (value := getattr(login, name)) is not None}
    text = "# pulse ctl login wrote this; pulse ctl logout removes it.\n"
    text += "".join(f"{name} = {_quoted(value)}\n" for name, value in words.items())
    import tempfile

    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, made = tempfile.mkstemp(prefix=".login.", dir=path.parent)  # made with mode 0600
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            Path(made).replace(path)
        except BaseException:
            Path(made).unlink(missing_ok=True)
            raise
    except UnicodeEncodeError:
        raise ConfigError(f"{path} cannot be written: the password has characters that are no Unicode") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {(error.strerror or str(error)).lower()}") from None
    return path


def forget(env: Mapping[str, str]) -> Path | None:
    """Remove the saved login; returns its file, None: there was none."""
    path = file_of(env)
    with suppress(FileNotFoundError):
        if path is not None:
            path.unlink()
            return path
    return None


def _login(words: Mapping[str, str]) -> Login:
    files = {name: Path(words[name]).absolute() for name in ("ca", "cert", "key") if name in words}
    return Login(words.get("user"), words.get("password"), **files)


def _quoted(text: str) -> str:
    """A string of TOML."""
    escaped = "".join(
        f"\\u{ord(one):04x}" if ord(one) < ord(" ") or one in {'"', "\\", "\x7f"} else one for one in text
    )
    return f'"{escaped}"'
