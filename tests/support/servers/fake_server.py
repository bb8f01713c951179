"""
A server on a real Unix socket that plays its part by hand: the peer that workers are tested against.

It keeps every frame that it hears, in order, and answers hello, heartbeat, ping and report by itself, unless they are
in *silent_on*. Everything else, a test sends when it wants to.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from pulse.protocol import FrameReader, decode_any, encode
from pulse.system.sockets.peer_credentials import credentials_of

DEADLINE_S: Final = 20.0
Body = dict[str, Any]
Pair = tuple[bytes, int]


@dataclass(frozen=True, slots=True)
class Heard:
    """A frame that came, and when (monotonic)."""

    kind: str
    request: int | None
    body: Body
    at_s: float


class Peer:
    """One connection; *pid* is the process that made it."""

    def __init__(self, server: FakeServer, connection: socket.socket) -> None:
        self._server = server
        self._connection = connection
        self.pid = credentials_of(connection).pid
        self._changed = threading.Condition()
        self._waiting: list[Heard] = []
        self.log: list[Heard] = []
        self.closed = False
        self.session = uuid.uuid4().bytes

    @property
    def hello(self) -> Body:
        return self.log[0].body

    @property
    def is_parent(self) -> bool:
        """Whether this is a pool parent: it serves no handlers."""
        return not self.hello.get("names")

    def take(self, kind: str, where: Callable[[Heard], bool] = lambda _: True) -> Heard:
        """The oldest *kind* of frame that was not taken yet; waits for it."""

        def found() -> Heard | None:
            return next((one for one in self._waiting if one.kind == kind and where(one)), None)

        with self._changed:
            assert self._changed.wait_for(lambda: found() or self.closed, DEADLINE_S), f"no {kind}: {self._heard()}"
            heard = found()
            assert heard is not None, f"closed before {kind}: {self._heard()}"
            self._waiting.remove(heard)
            return heard

    def take_results(self, count: int) -> list[list[Any]]:
        """The next *count* results, of as many reports as it takes."""
        results: list[list[Any]] = []
        while len(results) < count:
            results += self.take("report").body["results"]
        return results

    def wait_closed(self) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.closed, DEADLINE_S), f"not closed: {self._heard()}"

    def count(self, kind: str) -> int:
        return sum(1 for heard in list(self.log) if heard.kind == kind)

    def send(self, kind: str, request: int | None, body: Body) -> None:
        with contextlib.suppress(OSError):
            self._connection.sendall(encode(kind, request, body))

    def assign(self, jobs: Iterable[Sequence[Any]]) -> None:
        self.send("assign", None, {"jobs": list(jobs)})

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def drop(self) -> None:
        """Give the socket back, also if the thread that served it has failed."""
        self._connection.close()

    def serve(self) -> None:
        reader = FrameReader()
        with self._connection:
            while True:
                try:
                    data = self._connection.recv(65536)
                except OSError:
                    data = b""
                if not data:
                    break
                for frame in reader.feed(data):
                    self._hear(Heard(frame.kind, frame.request, decode_any(frame), time.monotonic()))
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    def _hear(self, heard: Heard) -> None:
        with self._changed:
            self.log.append(heard)
            self._waiting.append(heard)
            self._changed.notify_all()
        self._server.answer(self, heard)

    def _heard(self) -> list[str]:
        return [heard.kind for heard in self.log]


class FakeServer:
    """
    The server; use it as a context manager.

    Args:
        silent_on: Kinds that are not answered by themselves.
        path: Its socket; None: in a new directory of its own.

    Attributes:
        directory: A runtime directory, with a path short enough for sockets.
        lost: What the next welcomes call lost; None: not known.
        lost_beats: What the next beats call lost.
        refuse_hello: Code and message that the next hellos are answered with.
    """

    def __init__(
        self,
        *,
        heartbeat_s: float = 10.0,
        lease_s: float = 30.0,
        max_frame_bytes: int = 8 * 1024 * 1024,
        silent_on: Iterable[str] = (),
        path: Path | None = None,
    ) -> None:
        self.heartbeat_s = heartbeat_s
        self.lease_s = lease_s
        self.max_frame_bytes = max_frame_bytes
        self.silent_on = set(silent_on)
        self.lost: list[Pair] | None = []
        self.lost_beats: list[Pair] = []
        self.refuse_hello: tuple[str, str] | None = None
        self.sessions: dict[str, bytes] = {}
        self._is_guest = path is not None
        self.directory = path.parent if path else Path(tempfile.mkdtemp(prefix="pulse-fake-", dir="/tmp"))
        self.path = path or self.directory / "pulse.sock"
        self._listener: socket.socket | None = None
        self._changed = threading.Condition()
        self._new: list[Peer] = []
        self._peers: list[Peer] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self.listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if not self._is_guest:
            shutil.rmtree(self.directory)

    def listen(self) -> None:
        listener = self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        early = self.path.with_suffix(".early")
        listener.bind(str(early))
        listener.listen(64)
        early.rename(self.path)  # nobody finds a socket on which nobody listens yet
        self._spawn(self._accept, listener)

    def stop(self) -> None:
        """Cut every connection and accept no more: what a killed server looks like."""
        listener, self._listener = self._listener, None
        if listener is not None:
            self.path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for peer in self._peers:
            peer.close()
        for thread in self._threads:
            thread.join(DEADLINE_S)
        self._threads.clear()
        for peer in self._peers:
            peer.drop()

    def wait_child(self) -> Peer:
        return self._wait(lambda peer: not peer.is_parent)

    def wait_parent(self) -> Peer:
        return self._wait(lambda peer: peer.is_parent)

    def wait_peer(self) -> Peer:
        return self._wait(lambda _: True)

    def peers(self) -> list[Peer]:
        return list(self._peers)

    def first_hello(self) -> Body:
        return self._peers[0].hello

    def answer(self, peer: Peer, heard: Heard) -> None:
        if heard.kind in self.silent_on:
            return
        match heard.kind:
            case "hello":
                self._welcome(peer, heard)
            case "heartbeat" | "checkpoint":
                peer.send("beat", heard.request, {"lost": self.lost_beats})
            case "report":
                peer.send("reported", heard.request, {"stale": []})
            case "ping":
                peer.send("ok", heard.request, {})
            case _:
                pass

    def _welcome(self, peer: Peer, heard: Heard) -> None:
        if self.refuse_hello is not None:
            code, message = self.refuse_hello
            peer.send("error", heard.request, {"code": code, "message": message})
            return
        body: Body = {
            "protocol": 1, "server": "fake", "heartbeat_s": self.heartbeat_s, "lease_s": self.lease_s,
            "max_frame_bytes": self.max_frame_bytes,
        }  # fmt: skip
        if heard.body["role"] == "worker":
            peer.session = self.sessions.setdefault(heard.body["worker"], peer.session)
            body |= {"session": peer.session, "lost": self.lost, "worker": f"fake/{heard.body['worker']}"}
        peer.send("welcome", heard.request, body)
        with self._changed:
            self._new.append(peer)
            self._changed.notify_all()

    def _spawn(self, work: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            peer = Peer(self, connection)
            self._peers.append(peer)
            if self._listener is not listener:  # it was stopped meanwhile
                connection.close()
                return
            self._spawn(peer.serve)

    def _wait(self, where: Callable[[Peer], bool]) -> Peer:
        def found() -> Peer | None:
            return next((peer for peer in self._new if where(peer)), None)

        with self._changed:
            assert self._changed.wait_for(lambda: found() is not None, DEADLINE_S), "nobody came"
            peer = found()
            assert peer is not None
            self._new.remove(peer)
            return peer


def job(
    name: str,
    args: str = "{}",
    *,
    attempt: int = 1,
    topic: str = "default",
    timeout_s: float | None = None,
    lease_s: float = 30.0,
    extra: Body | None = None,
) -> list[Any]:
    return [uuid.uuid4().bytes, attempt, name, topic, args, timeout_s, lease_s, extra]


def pair(assigned: Sequence[Any]) -> list[Any]:
    return list(assigned[:2])
