"""Where the dashboard listens: a port of this machine, a Unix socket, or, when it is forced, anywhere."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pulse.errors import ConfigError, PathError
from pulse.system.sockets import addresses, listeners

_ALLOWED: Final = "HOST:PORT or unix:/path is allowed, as in 127.0.0.1:8470 or [::1]:8470"
_BACKLOG: Final = 128


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Either ``path`` of a Unix socket, or ``host`` and ``port``."""

    host: str = ""
    port: int = 0
    path: Path | None = None

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        return self.path is not None or addresses.is_loopback(self.host)

    @property
    def url(self) -> str:
        """What a person types into a browser."""
        return f"http://{self.netloc}"

    @property
    def netloc(self) -> str:
        """Host and port as a URL has them."""
        if self.path is not None:
            return "localhost"
        return addresses.joined(self.host, self.port)


def parse_listen(text: str) -> ListenAddress:
    """
    What ``--listen`` names.

    Raises:
        ConfigError: It is no address.
    """
    if text.startswith("unix:"):
        path = Path(text.removeprefix("unix:"))
        if not path.is_absolute():
            raise ConfigError(f"--listen is {text!r:.80}: unix: and an absolute path is allowed")
        return ListenAddress(path=path)
    where = addresses.split(text)
    if where is None:
        raise ConfigError(f"--listen is {text!r:.80}: {_ALLOWED}")
    return ListenAddress(*where)


def bind(address: ListenAddress) -> tuple[socket.socket, ListenAddress]:
    """
    A listening socket, and the address with the port that it got.

    Raises:
        PathError: It cannot be had; the message says why.
    """
    try:
        if address.path is not None:
            return listeners.unix(address.path, _BACKLOG), address
        made = listeners.tcp(address.host, address.port, _BACKLOG)
    except OSError as error:
        raise PathError(f"cannot listen on {_shown(address)}: {listeners.reason(error)}") from None
    return made, ListenAddress(address.host, int(made.getsockname()[1]))


def remove(path: Path, made: tuple[int, int]) -> None:
    """Remove the socket that ``bind`` made, not one that another program has made there since."""
    with contextlib.suppress(FileNotFoundError):
        if file_of(path) == made:
            path.unlink()


def file_of(path: Path) -> tuple[int, int]:
    """Which file is there."""
    found = path.lstat()
    return found.st_dev, found.st_ino


def _shown(address: ListenAddress) -> str:
    return str(address.path) if address.path is not None else address.netloc
