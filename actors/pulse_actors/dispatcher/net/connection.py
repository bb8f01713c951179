"""One peer's byte stream: frames in, frames out; neither direction waits for the other."""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

import anyio
import anyio.abc
from anyio.lowlevel import checkpoint

from pulse import protocol
from pulse.common.waiting import ConditionVariable
from pulse.errors import BadRequestError, ForbiddenError, ProtocolError, TooLargeError
from pulse.system.sockets.unix_stream import UnixStream
from pulse_actors.dispatcher.admission.memory_budget import MemoryBudget
from pulse_actors.dispatcher.admission.request_limits import RequestLimits
from pulse_actors.dispatcher.workers.records import BACKLOG_BYTES

SEND_BUFFER_BYTES: Final = 32 * 1024 * 1024  # a peer with so much unread output does not read
SEND_DEADLINE_S: Final = 30.0  # one write that takes longer: the peer has stopped reading
LITTLE_BYTES: Final = 64 * 1024  # of unread answers: so little left means that a page was read, nearly all
UNREAD_BYTES: Final = 1024 * 1024  # of unread answers: a peer with more is not read until it has read them
READ_BYTES: Final = 64 * 1024  # per read
FRAME_S: Final = (
    60.0  # from the first bytes of a frame to its last: 8 MiB at 1 Mbit/s; half of one must not stay for ever
)
TURN_S: Final = 0.001  # for frames of one peer; then others have their turn
TOGETHER: Final = 4  # frames that are handed on together
MISTAKEN: Final = frozenset({BadRequestError.code, ForbiddenError.code, TooLargeError.code})  # the peer's mistakes
# TimeoutError is an OSError; behind TLS a write, too, meets the end of a stream that was cut.
GONE: Final = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)
LAST_WORDS_S: Final = 5.0  # to read what a dead peer wrote last
PARTING_S: Final = 0.5  # to send what is queued; the supervisor waits 5 s for the dispatcher's end


class PeerConnection:
    """
    The connection of one peer.

    Args:
        stream: The bytes.
        max_frame_bytes: Longest frame accepted from it after hello.
        max_hello_bytes: Longest hello.
        begun: Memory budget of its long frames until they are handed on; by default one of its own.

    Attributes:
        limits: Limits of the peer; those of the connection until the peer is known.
        is_cut: Whether something that was sent to it did not arrive.
    """

    def __init__(
        self,
        stream: anyio.abc.ByteStream,
        max_frame_bytes: int,
        max_hello_bytes: int = protocol.HELLO_MAX_FRAME_BYTES,
        begun: MemoryBudget | None = None,
    ) -> None:
        self._stream = stream
        self._unix = stream if isinstance(stream, UnixStream) else None
        self._max_frame_bytes = max_frame_bytes
        self._reader = protocol.FrameReader(max_hello_bytes)
        self._begun = begun or MemoryBudget()
        self._begun_bytes = 0
        self._whole_s = float("inf")  # when the frame that has begun must be complete
        self._is_worker = False
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._queued = ConditionVariable()
        self._closing = False
        self._torn = False
        self._owed: set[int] = set()
        self.limits = RequestLimits(time.monotonic())
        self._taken = ConditionVariable()
        self._page: int | None = None
        self._turn_s = time.monotonic()
        self.heard_out = anyio.Event()
        self.is_cut = False
        self._relieved: Callable[[], None] = _nobody_waits
        self._answered = ConditionVariable()
        self._is_dead = False
        self._waiting = anyio.CancelScope()

    def greeted(
        self,
        max_frame_bytes: int | None = None,
        begun: MemoryBudget | None = None,
        relieved: Callable[[], None] | None = None,
    ) -> None:
        """
        The peer said hello.

        Args:
            max_frame_bytes: Its longest frame, if that is another one.
            begun: Memory budget of a worker's long frames.
            relieved: Called when a backlog of more than BACKLOG_BYTES has been read.
        """
        self._relieved = relieved or _nobody_waits
        self._reader.max_frame_bytes = max_frame_bytes or self._max_frame_bytes
        self._release()
        self._is_worker = begun is not None
        self._begun = begun or self._begun

    def send(self, kind: str, request: int | None, body: Mapping[str, object]) -> None:
        """Queue a frame; a peer that does not read is disconnected."""
        self.settle(request)
        if self._closing:
            return
        frame = protocol.encode(kind, request, body)
        if len(frame) > self._max_frame_bytes and kind == "ok":
            most = self._max_frame_bytes
            message = f"the answer has {len(frame)} bytes; at most {most} are allowed: ask for less at once"
            frame = protocol.encode_error(request, TooLargeError.code, message)
        self._out.append(frame)
        self._out_bytes += len(frame)
        if self._out_bytes > SEND_BUFFER_BYTES:
            self._out.clear()
            self._end()
        self._queued.notify_all()

    def push(self) -> None:
        """Write at once what is queued, as far as the socket takes it."""
        if self._unix is None or self._torn or not self._out:  # other streams cannot tell how much needs no waiting
            return
        chunk = b"".join(self._out)
        sent_bytes = self._unix.send_now(chunk)
        self._out = [chunk[sent_bytes:]] if sent_bytes < len(chunk) else []
        self._written(sent_bytes)

    @property
    def backlog_bytes(self) -> int:
        """Bytes that are queued and that the socket has not taken."""
        return self._out_bytes

    def owe(self, request: int | None) -> None:
        """A request of that number awaits its answer."""
        if request is not None:
            self._owed.add(request)

    def settle(self, request: int | None) -> None:
        """It is answered, or nobody will read the answer."""
        if request is not None:
            self._owed.discard(request)
            if not self._owed:
                self._answered.notify_all()
            if request == self._page:
                self._taken.notify_all()

    @property
    def is_over(self) -> bool:
        """Whether nothing more is sent: the peer is gone, or will be disconnected."""
        return self._closing

    async def wait_answered(self) -> None:
        """Return when every request has its answer."""
        while self._owed:
            await self._answered.wait()

    async def wait_page(self, request: int | None) -> None:
        """Return when the long answer before was given and nearly all read: then *request* may begin."""
        while (self._page in self._owed or self._out_bytes > LITTLE_BYTES) and not self._closing:
            await self._taken.wait()
        self._page = request

    def refuse(self, request: int | None, code: str, message: str) -> None:
        """Queue an error."""
        if code in MISTAKEN:
            self.limits.mistake(time.monotonic())
        self.send("error", request, {"code": code, "message": message})

    def close(self) -> None:
        """Send what is queued, then close; ``frames`` ends."""
        self._end()
        self._queued.notify_all()

    def _end(self) -> None:
        """Nothing more is queued; wake all that wait for room in the queue."""
        self._closing = True
        self._taken.notify_all()

    async def frames(self) -> AsyncIterator[Sequence[protocol.Frame]]:
        """
        Frames as they arrive, in the groups in which they arrived, until the peer is gone.

        Raises:
            ProtocolError: The stream is broken; frames before the break have been yielded.
        """
        while True:
            try:
                data = await self._receive()
            except GONE:
                return
            try:
                frames = self._reader.feed(data)
            except protocol.BrokenStreamError as error:
                if error.frames:
                    yield error.frames
                raise ProtocolError(error.message, error.code) from None
            if frames and self._is_worker:  # workers' frames never wait
                self._release()
            at = 0
            while at < len(frames):
                if self.limits.is_throttled:
                    await self.while_alive(self.limits.wait)
                count = 1 if self.limits.is_throttled else TOGETHER
                yield frames[at : at + count]
                if self.limits.is_throttled:
                    self.limits.done()
                at += count
                await self._give_way()
            if frames:
                self._release()
            if not self._reader.buffered_bytes:
                self._whole_s = float("inf")
            elif frames or self._whole_s == float("inf"):
                self._whole_s = anyio.current_time() + FRAME_S

    async def _receive(self) -> bytes:
        """The next bytes; a frame that has begun must be complete in time, not counting its wait for room."""
        if self._whole_s == float("inf"):  # most often no frame has begun: no room and no limit needed
            return await self._stream.receive(READ_BYTES)
        asked_s = anyio.current_time()
        await self.while_alive(self._reserve)
        self._whole_s += anyio.current_time() - asked_s
        with anyio.CancelScope(deadline=self._whole_s):
            return await self._stream.receive(READ_BYTES)
        raise ProtocolError(f"no whole frame within {FRAME_S:g} s")

    def hear_no_more(self) -> None:
        """Nobody waits for its frames any more."""
        self.heard_out.set()
        self._release()

    async def hear_out(self) -> None:
        """
        Return when everything is read that the peer's process wrote before it died.

        The kernel has it in this socket. The stream then ends here even if a child of the process still holds the other
        end: what the child writes is ignored.
        """
        self._is_dead = True
        self._waiting.cancel()
        with suppress(OSError):  # it has ended already
            self._stream.extra(anyio.abc.SocketAttribute.raw_socket).shutdown(socket.SHUT_RD)
        await self.heard_out.wait()

    async def while_alive(self, wait: Callable[[], Awaitable[None]]) -> bool:
        """Wait before reading more, unless the peer's process dies; returns whether *wait* was completed."""
        if not self._is_dead:
            with anyio.CancelScope() as self._waiting:
                await wait()
                return True
        return False

    async def _reserve(self) -> None:
        """Return when the frame that has begun has room; frees the room of the one before."""
        size_bytes = self._reader.begun_bytes
        if size_bytes != self._begun_bytes:
            self._release()
            await self._begun.reserve(size_bytes)
            self._begun_bytes = size_bytes

    def _release(self) -> None:
        if self._begun_bytes:
            self._begun.release(self._begun_bytes)
            self._begun_bytes = 0

    async def _give_way(self) -> None:
        """Let other peers have their turn; a peer that does not read its answers is read later."""
        if self._out_bytes > UNREAD_BYTES:
            await self.while_alive(self._wait_taken)
        if time.monotonic() - self._turn_s > TURN_S:
            await checkpoint()
            self._turn_s = time.monotonic()

    async def _wait_taken(self) -> None:
        while self._out_bytes > UNREAD_BYTES and not self._closing:
            await self._taken.wait()

    async def write(self) -> None:
        """Write what is queued until the connection is closed from either side; then close the stream."""
        try:
            while True:
                while not self._out and not self._closing:
                    await self._queued.wait()
                await self._flush(SEND_DEADLINE_S)
                if self._closing and not self._out:
                    return
        except GONE:
            self.is_cut = True
            self._end()
            with anyio.move_on_after(LAST_WORDS_S):  # it reads no more, but its last frames must still be read
                await self.heard_out.wait()
        finally:
            self._end()
            with anyio.CancelScope(shield=True):
                await self._part()

    async def _flush(self, deadline_s: float) -> None:
        self.push()
        if not self._out:
            return
        chunk, self._out = b"".join(self._out), []
        if not self._torn:
            self._torn = True  # until the last byte is out
            with anyio.fail_after(deadline_s):
                await self._stream.send(chunk)
            self._torn = False
        self._written(len(chunk))

    def _written(self, size_bytes: int) -> None:
        was_full = self._out_bytes > BACKLOG_BYTES
        self._out_bytes -= size_bytes
        self._taken.notify_all()
        if was_full and self._out_bytes <= BACKLOG_BYTES:
            self._relieved()

    async def _part(self) -> None:
        """When this process ends: send what is queued, as far as the socket takes it; then close."""
        with suppress(*GONE):
            await self._flush(PARTING_S)
        with anyio.move_on_after(PARTING_S):
            await self._stream.aclose()


def _nobody_waits() -> None:
    """Wake all that wait for its backlog."""
