"""One actor's end of the bus: a socketpair that is read by a task and written to without ever waiting."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Final

import trio

from pulse.errors import ProtocolError
from pulse.protocol import BrokenStreamError, Frame, FrameReader, encode
from pulse.protocol.bus import MAX_BUS_FRAME_BYTES

_READ_BYTES: Final = 64 * 1024


class _PendingRequest:
    """A request that waits for its answer."""

    __slots__ = ("answer", "answered")

    def __init__(self) -> None:
        self.answered = trio.Event()
        self.answer: Frame | None = None

    def settle(self, answer: Frame | None) -> None:
        """Wake the waiters."""
        self.answer = answer
        self.answered.set()


class BusLink:
    """
    The supervisor's end of the socketpair of one process.

    Args:
        name: The child's name.
        pid: Its process id.
        sock: Our end.

    Attributes:
        greeted: Whether it said hello.
        briefed: Whether its settings were sent; before, it expects nothing else.
    """

    def __init__(self, name: str, pid: int, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.name = name
        self.pid = pid
        self.greeted = False
        self.briefed = False
        self._sock = sock
        self._reader = FrameReader(MAX_BUS_FRAME_BYTES)
        self._unsent = bytearray()
        self._has_unsent = trio.Event()
        self._number = 0
        self._pings: set[int] = set()
        self._questions: dict[int, _PendingRequest] = {}

    def greet(self) -> None:
        """It said hello."""
        self.greeted = True

    def brief_nowait(self, body: Mapping[str, object]) -> None:
        """Send its settings; from now on it may be asked."""
        self.send_nowait("start", None, body)
        self.briefed = True

    def send_nowait(self, kind: str, request: int | None, body: Mapping[str, object]) -> None:
        """Send a frame; what the socket does not take now is sent later."""
        self._write(encode(kind, request, body))

    def try_send_nowait(self, frame: bytes) -> bool:
        """Send a whole frame if nothing waits to be sent before it; False: it was dropped."""
        if self._unsent or self._sock.fileno() < 0:
            return False
        self._write(frame)
        return True

    def ping_nowait(self) -> None:
        """Send a ping."""
        self._number += 1
        self._pings.add(self._number)
        self.send_nowait("ping", self._number, {})

    def takes_pong(self, request: int | None) -> bool:
        """Whether *request* is a ping that was sent and not answered yet."""
        if request not in self._pings:
            return False
        self._pings.discard(request)
        return True

    async def ask(self, kind: str, body: Mapping[str, object]) -> Frame | None:
        """The answer to a request; None: it was refused. Has no time limit of its own."""
        self._number += 1
        number = self._number
        question = self._questions[number] = _PendingRequest()
        try:
            self.send_nowait(kind, number, body)
            await question.answered.wait()
        finally:
            del self._questions[number]
        return question.answer

    def take_answer(self, frame: Frame) -> None:
        """Pass ``ok`` or ``error`` to the caller of ``ask``, if it still waits."""
        question = self._questions.get(frame.request if frame.request is not None else -1)
        if question is not None:
            question.settle(frame if frame.kind == "ok" else None)

    async def run(self, handle: Callable[[Frame], None], broken: Callable[[ProtocolError], None]) -> None:
        """
        Read until the other side is gone or breaks the protocol, and send what is queued meanwhile.

        Args:
            handle: Called with each frame.
            broken: Called once when nothing more can be read.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write_late)
            try:
                while True:
                    await trio.lowlevel.wait_readable(self._sock)
                    if not self.read_nowait(handle, broken):
                        break
            except trio.ClosedResourceError:
                pass
            nursery.cancel_scope.cancel()

    def read_nowait(self, handle: Callable[[Frame], None], broken: Callable[[ProtocolError], None]) -> bool:
        """Handle what has arrived; False when nothing can arrive any more."""
        try:
            data = self._sock.recv(_READ_BYTES)
        except BlockingIOError:
            return True
        except OSError:  # reset, or closed by ourselves
            return False
        if not data:
            return False
        try:
            frames = self._reader.feed(data)
        except BrokenStreamError as error:
            for frame in error.frames:
                handle(frame)
            broken(error)
            return False
        for frame in frames:
            handle(frame)
        return True

    def read_rest_nowait(self, handle: Callable[[Frame], None]) -> None:
        """Handle the last frames of a process that has ended."""
        while self._sock.fileno() >= 0 and self.read_nowait(handle, lambda _error: None):
            try:
                self._sock.recv(1, socket.MSG_PEEK)
            except OSError:
                return

    def close(self) -> None:
        """Close our end; waiters are woken."""
        if self._sock.fileno() >= 0:
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()

    def _write(self, data: bytes) -> None:
        if not self._unsent:
            data = data[self._send_some(data) :]
        if data:
            self._unsent += data
            self._has_unsent.set()

    def _send_some(self, data: bytes | bytearray) -> int:
        try:
            return self._sock.send(data)
        except BlockingIOError:
            return 0
        except OSError:  # the process is gone, which its pidfd shows
            return len(data)

    async def _write_late(self) -> None:
        while True:
            await self._has_unsent.wait()
            while self._unsent:
                await trio.lowlevel.wait_writable(self._sock)
                del self._unsent[: self._send_some(self._unsent)]
            self._has_unsent = trio.Event()
