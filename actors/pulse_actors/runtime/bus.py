"""
The actor's end of the bus: a socket to the supervisor, on which small frames travel.

Hints between actors may be lost: what they are about is in the database, and polling finds it. So sending never waits:
hints that do not fit into the socket's buffer are dropped.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

import anyio
import anyio.abc

from pulse import protocol
from pulse.errors import ProtocolError
from pulse.protocol.bus import MAX_BUS_FRAME_BYTES, MAX_HINT_BYTES, Hint

__all__ = ["Bus", "BusFrame", "Hint"]

HINT_WAIT_S: Final = 1.0  # after that a hint is dropped if the supervisor does not read


@dataclass(frozen=True, slots=True)
class BusFrame:
    """A frame from the supervisor, its body as plain values."""

    kind: str
    request: int | None
    body: dict[str, object]


class Bus:
    """
    Frames to and from the supervisor.

    Args:
        stream: The connected socket as a byte stream.
    """

    def __init__(self, stream: anyio.abc.SocketStream) -> None:
        self._stream = stream
        self._reader = protocol.FrameReader(MAX_BUS_FRAME_BYTES)
        self._lock = anyio.Lock()
        self._next_request = 0
        self._waiting: dict[int, tuple[anyio.Event, list[dict[str, object]]]] = {}

    @classmethod
    async def over(cls, fd: int) -> Bus:
        """The bus on an inherited socket."""
        return cls(await anyio.abc.SocketStream.from_socket(socket.socket(fileno=fd)))

    async def frames(self) -> AsyncIterator[BusFrame]:
        """Frames from the supervisor until it is gone; answers to own requests go to their callers."""
        while True:
            try:
                self._reader.check()
                frames = self._reader.take(await self._stream.receive())
            except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, ProtocolError):
                return
            for frame in frames:
                body = protocol.decode_any(frame)
                waiting = self._waiting.pop(frame.request or 0, None) if frame.kind == "ok" else None
                if waiting is not None:
                    waiting[1].append(body)
                    waiting[0].set()
                else:
                    yield BusFrame(frame.kind, frame.request, body)

    async def send(self, kind: str, request: int | None, body: dict[str, object]) -> None:
        """Send a frame; nothing happens when the supervisor is gone (its death ends this process)."""
        await self._write(protocol.encode(kind, request, body))

    async def hint(self, hint: Hint) -> None:
        """Send a hint; dropped if it is too long for one, or if the supervisor does not read."""
        frame = protocol.encode("hint", None, {"to": hint.peer, "event": hint.event, "data": hint.data})
        if len(frame) > MAX_HINT_BYTES:
            return
        # A cancelled send has handed its whole frame to the transport, so no half frame is sent.
        with anyio.move_on_after(HINT_WAIT_S):
            await self._write(frame)

    async def _write(self, frame: bytes) -> None:
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            async with self._lock:
                await self._stream.send(frame)

    async def ask_status(self, timeout_s: float) -> dict[str, object] | None:
        """The supervisor's status of itself and its children; None if it does not answer in time."""
        self._next_request += 1
        number = self._next_request
        answered, box = anyio.Event(), list[dict[str, object]]()
        self._waiting[number] = (answered, box)
        with anyio.move_on_after(timeout_s):
            await self.send("status", number, {})
            await answered.wait()
        self._waiting.pop(number, None)
        return box[0] if box else None
