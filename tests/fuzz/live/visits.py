"""What one connection does to the server, from its first byte to its last."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec import Struct

from pulse.errors import ProtocolError
from pulse.protocol import Frame, FrameReader, decode_any, encode
from tests.fuzz.frames import OF_CLIENTS, OF_OPERATORS, OF_WORKERS, Frames, Sent, hello, is_harmless
from tests.fuzz.live.gauges import Turns
from tests.fuzz.spoiling import framed, lying, mutated, pack, spoil

ANSWER_S: Final = 15.0  # the server gives a peer 5 s to say hello, and 10 s to its statements
LARGE_FRAME_BYTES: Final = 64 * 1024 * 1024
BURST: Final = 16  # frames of one write
MISSED_S: Final = 0.25  # of the time in which it may send; what it missed before is not sent all at once
LATEST: Final = 40  # frames in a complaint
MOST_IDS: Final = 4000
RECORDED: Final = 50
GARBAGE: Final = (
    b"GET / HTTP/1.1\r\nHost: pulse\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32),  # the first bytes of TLS
    b"SSH-2.0-OpenSSH_9.6\r\n",
    b"\x00\x00\x00\x08\x04\xd2\x16\x2f",  # PostgreSQL's request for TLS
    b"\x00" * 64,
    b"\xff" * 64,
    b"*1\r\n$4\r\nPING\r\n",
    b"\x00\x0f\x42\x40\xdd\x00\x0f\x42\x3b" + b"\x80" * 999_995,  # a million empty maps
    b"\x00\x10\x00\x00" + b"\x91" * (1024 * 1024),
)


@dataclass(slots=True)
class Notes:
    """
    What one attacking process knows and reports.

    Attributes:
        read: Frames that the server has read for sure, since it has answered them, or one behind them.
        answers: Kinds of frames that came back; errors by their codes.
        complaints: What must never happen, with the frames before it.
        own: Jobs and schedules that the server has acknowledged, the newest.
        others: Attempts of other workers.
        rate: Frames a second, at most.
        keep: Called with ids that were acknowledged, and with ids that may be deleted.
        recorded: Whole conversations as they were sent, to be sent again.
    """

    keep: Callable[[str, Sequence[bytes]], None]
    turns: Turns
    sent: int = 0
    read: int = 0
    connections: int = 0
    refused: int = 0
    answers: Counter[str] = field(default_factory=Counter[str])
    complaints: list[dict[str, object]] = field(default_factory=list[dict[str, object]])
    own: list[bytes] = field(default_factory=list[bytes])
    others: list[tuple[bytes, int]] = field(default_factory=list[tuple[bytes, int]])
    recorded: deque[bytes] = field(default_factory=lambda: deque[bytes](maxlen=RECORDED))
    rate: float = float("inf")
    next_s: float = field(default_factory=time.monotonic)

    def rest_s(self) -> float:
        """How long the rest still lasts; 0 during an attack."""
        return self.turns.left_s(time.monotonic())

    async def pace(self, frames: int) -> None:
        """Wait until so many frames may be sent; each connection has a time of its own."""
        now_s = time.monotonic()
        begin_s = max(self.next_s, now_s - MISSED_S)
        self.next_s = begin_s + frames / self.rate
        await asyncio.sleep(max(0.0, begin_s - now_s))

    def acknowledged(self, ids: Sequence[bytes]) -> None:
        self.keep("acked", ids)
        self.own += ids
        del self.own[:-MOST_IDS]


@dataclass(slots=True)
class Conversation:
    """
    A connection that a script writes to, while its answers are read beside it.

    Attributes:
        held: What it was assigned, as a worker.
        places: Of requests in the stream, by their numbers: how many frames there are up to each.
    """

    notes: Notes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    latest: deque[Sent] = field(default_factory=lambda: deque(maxlen=LATEST))
    held: list[tuple[bytes, int]] = field(default_factory=list[tuple[bytes, int]])
    submits: set[int] = field(default_factory=set[int])
    spoken: bytearray = field(default_factory=bytearray)
    heard: int = 0
    written: int = 0
    places: dict[int, int] = field(default_factory=dict[int, int])
    read_so_far: int = 0
    is_over: bool = False

    async def write(self, frames: Sequence[Sent]) -> None:
        """Send frames; raises OSError when the server has hung up."""
        for sent in frames:
            self.latest.append(sent)
            self.written += 1
            if sent.number is not None:
                self.places[sent.number] = self.written
            if sent.kind == "submit" and sent.number is not None:
                self.submits.add(sent.number)
            if sent.deletes:
                self.notes.keep("deleted", sent.deletes)
        data = b"".join(sent.data for sent in frames)
        self.spoken += data[: max(0, 256 * 1024 - len(self.spoken))]
        self.writer.write(data)
        await self.writer.drain()
        self.notes.sent += len(frames)

    async def read(self) -> None:
        cutter = FrameReader(LARGE_FRAME_BYTES)
        with contextlib.suppress(OSError):
            while data := await self.reader.read(256 * 1024):
                try:
                    frames = cutter.feed(data)
                except ProtocolError as error:
                    self._complain("the server's own stream is broken", error.message)
                    break
                for frame in frames:
                    self._take(frame)
        self.is_over = True

    def _take(self, frame: Frame) -> None:
        kind = frame.kind
        if kind in {"error", "ok", "assign"}:
            body: dict[str, Any] = decode_any(frame)
            if kind == "error":
                kind = str(body["code"])
                if kind == "internal":
                    self._complain("an internal error", str(body["message"]), frame.request)
            elif kind == "assign":
                self.held += [(job[0], job[1]) for job in body["jobs"]]
            elif frame.request in self.submits and isinstance(body.get("ids"), list):
                self.notes.acknowledged(body["ids"])
            elif isinstance(body.get("schedule"), dict):
                self.notes.own.append(body["schedule"]["id"])
        self.notes.answers[kind] += 1
        self.heard += 1
        place = self.places.pop(frame.request or 0, 0)
        if place > self.read_so_far:
            self.notes.read += place - self.read_so_far
            self.read_so_far = place

    def _complain(self, what: str, message: str, number: int | None = None) -> None:
        some = [one for one in self.latest if number is None or one.number == number] or list(self.latest)
        frames = [{"kind": one.kind, "bytes": one.data[:4000].hex()} for one in some]
        self.notes.complaints.append({"what": what, "message": message, "request": number, "frames": frames})


Script = Callable[[Conversation, random.Random], Awaitable[None]]


async def visit(notes: Notes, path: str, script: Script, rng: random.Random) -> None:
    try:
        reader, writer = await asyncio.open_unix_connection(path)
    except OSError:
        notes.refused += 1
        await asyncio.sleep(0.01)
        return
    notes.connections += 1
    conversation = Conversation(notes, reader, writer)
    reading = asyncio.create_task(conversation.read() if script is not deaf else asyncio.sleep(0))
    try:
        async with asyncio.timeout(ANSWER_S * 2):
            await script(conversation, rng)
    except (OSError, TimeoutError):
        pass
    finally:
        reading.cancel()
        writer.close()
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await writer.wait_closed()
        with contextlib.suppress(asyncio.CancelledError):
            await reading


async def greet(on: Conversation, body: Mapping[str, object]) -> None:
    """Say hello, and what follows at once, without waiting for the welcome."""
    await on.write([Sent(encode("hello", 0, body), "hello")])


async def talk(on: Conversation, frames: Frames, rng: random.Random, count: int) -> None:
    """Many frames in bursts, then something that may end it."""
    while count > 0 and not on.is_over and not on.notes.rest_s():
        burst = [frames.next() for _ in range(min(count, rng.randint(1, BURST)))]
        await on.notes.pace(len(burst))
        await on.write(burst)
        count -= len(burst)
    await rng.choice((_break, _break, _cut, _leave, _listen))(on, frames, rng)


async def _break(on: Conversation, frames: Frames, rng: random.Random) -> None:
    """Frames whose bytes were changed, until the server hangs up."""
    for _ in range(20):
        if on.is_over:
            return
        await on.write([frames.broken()])
        await asyncio.sleep(0)
    await _leave(on, frames, rng)


async def _cut(on: Conversation, frames: Frames, rng: random.Random) -> None:
    data = frames.next().data
    on.writer.write(data[: rng.randrange(len(data))])
    await on.writer.drain()


async def _leave(on: Conversation, frames: Frames, rng: random.Random) -> None:
    """Gone, with answers under way."""


async def _listen(on: Conversation, frames: Frames, rng: random.Random) -> None:
    on.writer.write_eof()
    async with asyncio.timeout(ANSWER_S):
        while not on.is_over:  # noqa: ASYNC110 - two things are waited for
            await asyncio.sleep(0.01)


def conversing(role: str, kinds: Mapping[str, type[Struct]], *, length: int, names: Sequence[str] = ("",)) -> Script:
    """A peer that sends a valid hello, and then nonsense."""

    async def script(on: Conversation, rng: random.Random) -> None:
        await greet(on, hello(rng, role=role, worker=rng.choice(names)))
        on.held += [*on.notes.others[-50:], *((one, 1) for one in on.notes.own[-50:])]
        await talk(on, Frames(rng, kinds, on.notes.own, on.held), rng, rng.randint(length // 4, length * 2))
        if rng.random() < 0.05:
            on.notes.recorded.append(bytes(on.spoken))

    return script


async def hostile_hello(on: Conversation, rng: random.Random) -> None:
    """A hello that is wrong somewhere; a request before it; one hello behind the other."""
    body = hello(rng, role=rng.choice(("client", "worker")), worker=rng.choice(("", "w", "healthy-1")))
    choice = rng.random()
    if choice < 0.5:
        payload = pack(["hello", rng.choice((0, 1, None)), spoil(rng, body)])
        await on.write([Sent(framed(payload), "hello")])
    elif choice < 0.8:
        payload = mutated(rng, pack(["hello", 0, body]))
        data = framed(payload) if rng.random() < 0.8 else lying(rng, payload, 1024 * 1024)
        await on.write([Sent(data, "hello")])
    elif choice < 0.9:
        await on.write([Frames(rng, OF_WORKERS, on.notes.own).next()])
    else:
        await on.write([Sent(encode("hello", 0, body), "hello")] * 3)
    await asyncio.sleep(0)


async def garbage(on: Conversation, rng: random.Random) -> None:
    data = rng.choice(GARBAGE) if rng.random() < 0.3 else rng.randbytes(rng.randint(1, 400))
    if is_harmless(data):
        await on.write([Sent(data, "garbage")])
    await asyncio.sleep(0)


async def replay(on: Conversation, rng: random.Random) -> None:
    """Everything that was said on another connection, word for word."""
    if on.notes.recorded:
        data = rng.choice(on.notes.recorded)
        on.writer.write(data)
        await on.writer.drain()
        on.notes.sent += _count_frames(data)
        await asyncio.sleep(0.01)


def _count_frames(data: bytes) -> int:
    at, count = 0, 0
    while at + 4 <= len(data):
        at += 4 + int.from_bytes(data[at : at + 4], "big")
        count += at <= len(data)
    return count


async def deaf(on: Conversation, rng: random.Random) -> None:
    await greet(on, hello(rng, role="client"))
    frames = Frames(rng, OF_CLIENTS, on.notes.own)
    async with asyncio.timeout(2.0):
        for _ in range(100):
            await on.write([frames.next() for _ in range(BURST)])


WORKERS_NAMES: Final = ("forged", "healthy-1", "a.b-c_d", *(f"w{number}" for number in range(40)))
CLIENTS: Final[Sequence[tuple[float, Script]]] = (
    (10.0, conversing("client", OF_CLIENTS, length=400)), (3.0, hostile_hello), (2.0, garbage), (1.0, replay),
    (0.2, deaf),
)  # fmt: skip
WORKERS: Final[Sequence[tuple[float, Script]]] = (
    (10.0, conversing("worker", OF_WORKERS, length=400, names=WORKERS_NAMES)),
    (1.0, hostile_hello),
    (1.0, replay),
)
OPERATORS: Final[Sequence[tuple[float, Script]]] = (
    (5.0, conversing("client", OF_OPERATORS, length=100)), (1.0, hostile_hello), (1.0, garbage), (1.0, replay),
)  # fmt: skip
