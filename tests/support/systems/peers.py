"""
Raw peers: blocking sockets that speak the wire by hand.

A ``Peer`` sends anything, right or wrong, and keeps the frames that come until a test asks for them; nothing sleeps,
every wait has a deadline.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from pulse.common.ids import uuid7
from pulse.protocol import Frame, FrameReader, decode_any, encode

DEADLINE_S: Final = 20.0  # for what takes milliseconds on a quiet machine
LARGE_FRAME_BYTES: Final = 64 * 1024 * 1024  # a test reads whatever comes
Body = dict[str, Any]
Pair = tuple[bytes, int]
T = TypeVar("T")


class Refused(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class Got:
    kind: str
    request: int | None
    body: Body


class Peer:
    """One connection to a server: to the socket at *path*, or one that was made."""

    def __init__(self, path: Path | socket.socket) -> None:
        self._socket = path if isinstance(path, socket.socket) else socket.socket(socket.AF_UNIX)
        self._socket.settimeout(DEADLINE_S)
        try:
            if path is not self._socket:
                self._socket.connect(str(path))
        except OSError:
            self._socket.close()
            raise
        self._reader = FrameReader(LARGE_FRAME_BYTES)
        self._got: list[Got] = []
        self._number = 0
        self.welcome: Body = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def stop_sending(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def send_bytes(self, data: bytes) -> None:
        """Send anything; if the server hangs up meanwhile, its words can still be read."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(data)

    def send(self, kind: str, request: int | None = None, **body: object) -> None:
        self.send_bytes(encode(kind, request, body))

    def hello(self) -> Self:
        self.send("hello", 0, protocol=1, role="client")
        self.welcome = self.answer(0)
        return self

    def ask(self, kind: str, **body: object) -> int:
        self._number += 1
        self.send(kind, self._number, **body)
        return self._number

    def answer(self, number: int) -> Body:
        """The answer to the request of that number; an error raises `Refused`."""
        got = self.take(lambda one: one.request == number, f"the answer to {number}")
        if got.kind == "error":
            raise Refused(got.body["code"], got.body["message"])
        return got.body

    def call(self, kind: str, **body: object) -> Body:
        return self.answer(self.ask(kind, **body))

    def refusal(self, kind: str, **body: object) -> tuple[str, str]:
        try:
            answer = self.call(kind, **body)
        except Refused as refused:
            return refused.code, refused.message
        raise AssertionError(f"{kind} was not refused: {answer}")

    def submit(self, *jobs: Body) -> list[bytes]:
        ids: list[bytes] = self.call("submit", jobs=jobs)["ids"]
        assert ids == [job["id"] for job in jobs]
        return ids

    def expect(self, kind: str, within_s: float = DEADLINE_S) -> Body:
        """The oldest frame of that kind that was not taken yet."""
        return self.take(lambda one: one.kind == kind, kind, within_s).body

    def take(self, wanted: Callable[[Got], bool], what: str, within_s: float = DEADLINE_S) -> Got:
        """The oldest frame that is wanted; others wait for their turn."""
        deadline_s = time.monotonic() + within_s
        while (found := next((one for one in self._got if wanted(one)), None)) is None:
            assert self._receive(deadline_s - time.monotonic()), f"hung up before {what}; there was {self._got}"
        self._got.remove(found)
        return found

    def arrived(self, kind: str) -> list[Body]:
        while select.select([self._socket], [], [], 0)[0] and self._receive(DEADLINE_S):
            pass
        found = [one for one in self._got if one.kind == kind]
        self._got = [one for one in self._got if one.kind != kind]
        return [one.body for one in found]

    def expect_end(self) -> list[Got]:
        """Everything that comes until the server hangs up."""
        deadline_s = time.monotonic() + DEADLINE_S
        while self._receive(deadline_s - time.monotonic()):
            pass
        return self._got

    def _receive(self, within_s: float) -> bool:
        assert within_s > 0, f"in vain; there was {self._got}"
        self._socket.settimeout(within_s)
        try:
            data = self._socket.recv(1024 * 1024)
        except TimeoutError:
            raise AssertionError(f"nothing came; there was {self._got}") from None
        except ConnectionResetError:
            return False
        self._got += [_got(frame) for frame in self._reader.feed(data)]
        return bool(data)


def _got(frame: Frame) -> Got:
    return Got(frame.kind, frame.request, decode_any(frame))


class Worker(Peer):
    """A worker by hand: it has said hello, with *hello* added, and does nothing by itself."""

    def __init__(self, path: Path, name: str, **hello: object) -> None:
        super().__init__(path)
        self.name = name
        words = {"names": ["n"], "topics": ["default"], "capacity": 10, **hello}
        self.send("hello", 0, protocol=1, role="worker", worker=name, **words)
        self.welcome = self.answer(0)
        self._jobs: list[list[Any]] = []

    @property
    def session(self) -> bytes:
        session: bytes = self.welcome["session"]
        return session

    def jobs(self, count: int, within_s: float = DEADLINE_S) -> list[list[Any]]:
        """The next *count* assigned jobs, in order, of as many frames as it takes."""
        deadline_s = time.monotonic() + within_s
        while len(self._jobs) < count:
            self._jobs += self.expect("assign", deadline_s - time.monotonic())["jobs"]
        taken, self._jobs = self._jobs[:count], self._jobs[count:]
        return taken

    def job(self) -> Pair:
        ((identity, attempt, *_),) = self.jobs(1)
        return identity, attempt

    def idle(self) -> bool:
        """Whether no assignment has come that was not taken."""
        self.call("ping")
        return not self._jobs and not any(got.kind == "assign" for got in self._got)

    def report(self, *results: Sequence[object]) -> list[list[Any]]:
        """Report results; the stale ones."""
        stale: list[list[Any]] = self.call("report", results=results)["stale"]
        return stale

    def done(self, *pairs: Sequence[Any]) -> list[list[Any]]:
        return self.report(*([pair[0], pair[1], "ok", None] for pair in pairs))

    def beat(self, *jobs: Sequence[object]) -> list[list[Any]]:
        """Send a heartbeat that lists *jobs*, each an attempt and maybe its progress; the lost ones."""
        lost: list[list[Any]] = self.call("heartbeat", jobs=[[*job, None][:3] for job in jobs])["lost"]
        return lost


def new_job(**fields: object) -> Body:
    return {"name": "n", "id": uuid7().bytes, **fields}
