"""
The runtime directory: one supervisor at a time, and its two sockets.

The supervisor opens the sockets, not the processes that serve them: when a dispatcher dies, ``pulse.sock`` goes on
listening, and clients wait in its backlog for the next one instead of being refused.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from pulse.errors import PathError
from pulse.system.directories import CLIENT_SOCKET, SUPERVISOR_SOCKET, check_socket_path
from pulse.system.sockets import addresses, listeners
from pulse_supervisor.systemd.socket_activation import listens_at

TCP_NAME: Final = "pulse.tcp"
_OWN_MODE: Final = 0o600
_SHARED_MODE: Final = 0o666
_LOCK_NAME: Final = "supervisor.lock"
_LOCK_WAIT_S: Final = 1.0  # the lock of a killed predecessor is free when the kernel has freed its memory
_LOCK_POLL_S: Final = 0.02
_CLIENT_BACKLOG: Final = 1024  # all workers and clients of a host, which reconnect at once when the dispatcher restarts
_CONTROL_BACKLOG: Final = 64


class Sockets(msgspec.Struct, frozen=True):
    """
    What is open in the runtime directory.

    Attributes:
        directory: The runtime directory.
        lock_fd: Holds the lock while open; not inherited, else a child would hold it on.
        client: Listens on ``pulse.sock``, for the dispatcher.
        control: Listens on ``supervisor.sock``, for the supervisor.
        tcp: Listens on TCP, for the dispatcher; None: off.
    """

    directory: Path
    lock_fd: int
    client: socket.socket
    control: socket.socket
    tcp: socket.socket | None = None

    @property
    def tcp_address(self) -> str | None:
        """The TCP address, with the port that it got."""
        return None if self.tcp is None else addresses.joined(*self.tcp.getsockname()[:2])

    @property
    def client_path(self) -> Path:
        """The socket for workers and clients."""
        return self.directory / CLIENT_SOCKET

    @property
    def control_path(self) -> Path:
        """The socket of the supervisor itself."""
        return self.directory / SUPERVISOR_SOCKET

    def listening(self) -> Sequence[tuple[Path, socket.socket]]:
        """Both sockets and their paths."""
        return ((self.client_path, self.client), (self.control_path, self.control))

    def descriptors(self) -> dict[str, int]:
        """All listening sockets, by the names under which a service manager keeps them."""
        found = {path.name: sock.fileno() for path, sock in self.listening()}
        return found if self.tcp is None else {**found, TCP_NAME: self.tcp.fileno()}

    def put_back(self) -> list[Path]:
        """
        Restore the name of a socket that was removed: nobody could connect any more, while the server lives on.

        Returns:
            The names that were gone, and are back.
        """
        back: list[Path] = []
        for path in self.nameless():
            with contextlib.suppress(OSError):  # the second name is gone, too, or the first came back meanwhile
                os.link(_spare(path), path)
                back.append(path)
        return back

    def nameless(self) -> list[Path]:
        """Paths where nobody can connect now; after `put_back`: for good, since a socket cannot be renamed."""
        return [path for path, _ in self.listening() if not path.exists()]

    def close(self, *, keep_names: bool = False) -> None:
        """Close both sockets, remove their files unless another process listens on, and release the lock."""
        for path, sock in self.listening():
            sock.close()
            if not keep_names:
                path.unlink(missing_ok=True)
                _spare(path).unlink(missing_ok=True)
        if self.tcp is not None:
            self.tcp.close()
        os.close(self.lock_fd)


def open_sockets(
    directory: Path,
    handed: Mapping[str, socket.socket] | None = None,
    *,
    shared: bool = False,
    listen: str | None = None,
) -> Sockets:
    """
    Take the runtime directory and listen on both sockets, mode 0600, and on TCP if wanted.

    Args:
        directory: Checked by ``places.prepare_runtime_dir``.
        handed: Sockets that were handed over, by the names of their files; those with the right address are used.
        shared: Whether every account may connect (mode 0666), so that roles decide.
        listen: host:port of TCP; None: off.

    Raises:
        PathError: Another supervisor runs there, a path is too long, or a name is taken by something else.
    """
    client_path, control_path = directory / CLIENT_SOCKET, directory / SUPERVISOR_SOCKET
    check_socket_path(client_path)
    check_socket_path(control_path)
    lock_fd = _lock(directory)
    with contextlib.ExitStack() as undo:
        undo.callback(os.close, lock_fd)
        client = undo.enter_context(_taken(client_path, handed) or _listen(client_path, _CLIENT_BACKLOG))
        control = undo.enter_context(_taken(control_path, handed) or _listen(control_path, _CONTROL_BACKLOG))
        for path in (
            client_path,
            control_path,
        ):  # here, before any client is served: a socket that was handed over has another
            path.chmod(_SHARED_MODE if shared else _OWN_MODE)
        tcp = None if listen is None else undo.enter_context(_listen_tcp(listen, (handed or {}).get(TCP_NAME)))
        undo.pop_all()
    for sock in (handed or {}).values():
        if sock not in {client, control, tcp}:
            sock.close()
    return Sockets(directory, lock_fd, client, control=control, tcp=tcp)


def _listen_tcp(listen: str, handed: socket.socket | None) -> socket.socket:
    """The socket that was handed over, if its address is right; else a new one."""
    where = addresses.split(listen)
    if where is None:
        raise PathError(f"listen is {listen!r:.80}: host:port is allowed")
    host, port = where
    try:
        if handed is not None and _listens_on(handed, *listeners.tcp_address(host, port)):
            return handed
        return listeners.tcp(host, port, _CLIENT_BACKLOG)
    except OSError as error:
        raise PathError(f"listen is {listen}, which cannot be listened on: {listeners.reason(error)}") from error


def _listens_on(sock: socket.socket, family: int, where: tuple[object, ...]) -> bool:
    """Whether *sock* listens there; port 0 matches any."""
    try:
        listens = sock.family == family and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
        address, port = sock.getsockname()[:2]
    except (OSError, ValueError):
        return False
    return listens and address == where[0] and where[1] in {0, port}


def _taken(path: Path, handed: Mapping[str, socket.socket] | None) -> socket.socket | None:
    """The handed-over socket for *path*; one that cannot be reached by that name is closed."""
    sock = (handed or {}).get(path.name)
    if sock is None or listens_at(sock, path):
        return sock
    sock.close()
    return None


def _spare(path: Path) -> Path:
    """The second name of a socket, from which the first can be restored."""
    return path.with_name(f".{path.name}")


def _lock(directory: Path) -> int:
    path = directory / _LOCK_NAME
    try:
        lock_fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise PathError(f"{path} cannot be opened: {error.strerror}") from error
    deadline_s = time.monotonic() + _LOCK_WAIT_S
    while not _locked(lock_fd):
        if time.monotonic() >= deadline_s:
            holder = os.pread(lock_fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(lock_fd)
            raise PathError(f"runtime directory {directory} is in use by another pulse-supervisor (pid {holder})")
        time.sleep(_LOCK_POLL_S)
    os.ftruncate(lock_fd, 0)
    os.pwrite(lock_fd, f"{os.getpid()}\n".encode("ascii"), 0)
    return lock_fd


def _locked(lock_fd: int) -> bool:
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _listen(path: Path, backlog: int) -> socket.socket:
    """A listening socket at *path*; an old file is of a dead supervisor, since we hold the lock."""
    try:
        _wait_until_free(path)
        _spare(path).unlink(missing_ok=True)
        sock = listeners.unix(path, backlog)
    except OSError as error:
        raise PathError(f"socket {path} cannot be opened: {error.strerror}") from error
    with contextlib.suppress(OSError):  # a file system without links: then a removed name cannot be restored
        os.link(path, _spare(path))
    return sock


def _wait_until_free(path: Path) -> None:
    deadline_s = time.monotonic() + _LOCK_WAIT_S  # a killed predecessor's dispatcher ends a moment later
    while not listeners.free(path):
        if time.monotonic() > deadline_s:
            raise PathError(f"socket {path} is in use: another program listens there; use another directory")
        time.sleep(_LOCK_POLL_S)
