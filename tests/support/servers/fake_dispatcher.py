"""A server on Unix sockets that answers by script: what the command line is tested against, as whole processes."""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from pulse.errors import RefusedError
from pulse.protocol import Frame, FrameReader, decode_any, encode, encode_error
from pulse.system.directories import CLIENT_SOCKET

Body = Mapping[str, object]
Answer = Body | RefusedError | Callable[[dict[str, object]], "Body | RefusedError"]

_WELCOME = {"protocol": 1, "server": "fake", "heartbeat_s": 10.0, "lease_s": 30.0, "max_frame_bytes": 8 * 1024 * 1024}


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that came."""

    kind: str
    body: dict[str, object]


class RuntimeDir:
    """A runtime directory with a path that is short enough for sockets; use it as a context manager."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="pulse-cli-", dir="/tmp"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self.path)


class FakeDispatcher:
    """
    A server that answers each kind of request by script; use it as a context manager.

    Args:
        directory: The runtime directory.
        script: Kind of request -> the answer; a request of another kind gets no answer at all.
        name: File name of the socket.
        frozen: Accept, and never say a word.
        hang_up: Kinds of requests that are answered by closing the connection, once each.

    Attributes:
        directory: The runtime directory.
        path: The socket.
        asked: The requests that came, in order.

    """

    def __init__(
        self,
        directory: Path,
        script: Mapping[str, Answer] | None = None,
        *,
        name: str = CLIENT_SOCKET,
        frozen: bool = False,
        hang_up: frozenset[str] = frozenset(),
    ) -> None:
        self.directory = directory
        self.path = directory / name
        self.asked: list[Asked] = []
        self._script = script or {}
        self._frozen = frozen
        self._hang_up = set(hang_up)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._listener.bind(str(self.path))
        self._listener.listen()
        self._spawn(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in (self._listener, *self._connections):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        for one in (self._listener, *self._connections):
            one.close()
        self.path.unlink(missing_ok=True)

    def bodies(self, kind: str) -> list[dict[str, object]]:
        """The bodies of the requests of *kind* that came."""
        return [asked.body for asked in self.asked if asked.kind == kind]

    def _spawn(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._connections.append(connection)
                if not self._frozen:
                    self._spawn(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        reader = FrameReader()
        with contextlib.suppress(OSError):
            while data := connection.recv(65536):
                for frame in reader.feed(data):
                    reply = self._reply(frame)
                    if reply is None:
                        connection.shutdown(socket.SHUT_RDWR)
                        return
                    connection.sendall(reply)

    def _reply(self, frame: Frame) -> bytes | None:
        """The bytes to answer *frame* with; None hangs up."""
        if frame.kind == "hello":
            return encode("welcome", 0, _WELCOME)
        body = decode_any(frame)
        self.asked.append(Asked(frame.kind, body))
        if frame.kind in self._hang_up:
            self._hang_up.remove(frame.kind)
            return None
        scripted = self._script.get(frame.kind)
        if scripted is None:
            return b""
        answer = scripted(body) if callable(scripted) else scripted
        if isinstance(answer, RefusedError):
            return encode_error(frame.request, answer.code, answer.message)
        return encode("ok", frame.request, answer)
