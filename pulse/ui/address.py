"""Where the dashboard listens: a port of this machine, a Unix socket, or, when it is forced, anywhere."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pulse import addresses
from pulse.errors import ConfigError, PlaceError
from pulse.places import check_socket_path

__all__ = ["Address", "bind", "file_of", "parse_listen", "remove"]

_ALLOWED: Final = "HOST:PORT or unix:/path is allowed, as in 127.0.0.1:8470"
_BACKLOG: Final = 128


@dataclass(frozen=True, slots=True)
class Address:
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


def parse_listen(text: str) -> Address:
    """
    What ``--listen`` names.

    Raises:
        ConfigError: It is no address.

    """
    if text.startswith("unix:"):
        path = Path(text.removeprefix("unix:"))
        if not path.is_absolute():
            raise ConfigError(f"--listen is {text!r:.80}: unix: and an absolute path is allowed")
        return Address(path=path)
    host, colon, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not bare or not port.isascii() or not port.isdigit() or int(port) > addresses.MAX_PORT:
        raise ConfigError(f"--listen is {text!r:.80}: {_ALLOWED}")
    if (":" in bare) != (bare != host):
        raise ConfigError(f"--listen is {text!r:.80}: an IPv6 address stands in brackets, as in [::1]:8470")
    return Address(bare, int(port))


def bind(address: Address) -> tuple[socket.socket, Address]:
    """
    A listening socket, and the address with the port that it got.

    Raises:
        PlaceError: It cannot be had; the message says why.

    """
    try:
        if address.path is not None:
            return _bind_unix(address.path), address
        family, _, _, _, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = _bind_port(family, where)
    except OSError as error:
        raise PlaceError(f"cannot listen on {_shown(address)}: {(error.strerror or str(error)).lower()}") from None
    return made, Address(address.host, int(made.getsockname()[1]))


def _bind_port(family: int, where: tuple[Any, ...]) -> socket.socket:
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(where)
        made.listen(_BACKLOG)
        stack.pop_all()
    return made


def _bind_unix(path: Path) -> socket.socket:
    check_socket_path(path)
    _remove_dead(path)
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        before = os.umask(0o177)  # 0600 from its first moment on
        try:
            made.bind(str(path))
        finally:
            os.umask(before)
        made.listen(_BACKLOG)
        stack.pop_all()
    return made


def _remove_dead(path: Path) -> None:
    """Remove a socket that nobody listens on; anything else that is there stays, and is an error."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise PlaceError(f"cannot listen on {path}: there is a file of another kind")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
        else:
            raise PlaceError(f"cannot listen on {path}: somebody listens there already")


def remove(path: Path, made: tuple[int, int]) -> None:
    """Remove the socket that ``bind`` made, not one that somebody else has made there since."""
    with contextlib.suppress(FileNotFoundError):
        if file_of(path) == made:
            path.unlink()


def file_of(path: Path) -> tuple[int, int]:
    """Which file is there."""
    found = path.lstat()
    return found.st_dev, found.st_ino


def _shown(address: Address) -> str:
    return str(address.path) if address.path is not None else address.netloc
