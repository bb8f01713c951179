"""A peer's connection, as the dispatcher writes to it."""

from __future__ import annotations

import contextlib
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, Final, cast

import anyio
import pytest
import trio.testing
from anyio.lowlevel import checkpoint

from pulse import protocol
from pulse.common.unix_stream import of_unix_socket
from pulse.errors import ProtocolError
from pulse_actors.dispatcher.admission.memory_budget import MemoryBudget
from pulse_actors.dispatcher.admission.request_limits import MISTAKES, MISTAKES_A_SECOND, STRETCH_S
from pulse_actors.dispatcher.net.connection import LITTLE_BYTES, UNREAD_BYTES, PeerConnection
from pulse_actors.dispatcher.workers.records import BACKLOG_BYTES
from tests.support.waiting import until_async

pytestmark = [pytest.mark.anyio, pytest.mark.timed]


class Pipe:
    """A stream whose other end reads on request."""

    def __init__(self) -> None:
        self.reads = anyio.Event()
        self.writes = 0

    async def send(self, data: bytes) -> None:
        self.writes += bool(data)
        await self.reads.wait()

    async def aclose(self) -> None:
        """There is nothing to close."""


@pytest.mark.parametrize("size", [BACKLOG_BYTES + 1, 1])
async def test_a_backlog_that_was_read_is_told(size: int) -> None:
    pipe, told = Pipe(), list[int]()
    connection = PeerConnection(cast("Any", pipe), 2**30)
    connection.greeted(relieved=lambda: told.append(connection.backlog_bytes))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(connection.write)
        connection.send("assign", None, {"jobs": ["x" * size]})
        await anyio.wait_all_tasks_blocked()
        assert told == []
        connection.send("assign", None, {"jobs": []})
        pipe.reads.set()
        await anyio.wait_all_tasks_blocked()
        assert len(told) == (size > BACKLOG_BYTES)
        assert all(backlog <= BACKLOG_BYTES for backlog in told)
        connection.heard_out.set()
        connection.close()


@pytest.mark.parametrize(
    "error", [anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, TimeoutError, OSError]
)
async def test_who_is_gone_is_cut(error: type[Exception]) -> None:
    async def send(_data: bytes) -> None:
        raise error

    stream = SimpleNamespace(send=send, aclose=Pipe().aclose)
    connection = PeerConnection(cast("Any", stream), 2**30)
    connection.send("ok", 1, {})
    connection.heard_out.set()
    await connection.write()
    assert (connection.is_cut, connection.is_over) == (True, True)


async def test_after_the_end_nothing_is_queued() -> None:
    connection = PeerConnection(cast("Any", Pipe()), 2**30)
    connection.close()
    connection.send("assign", None, {"jobs": ["x"]})
    assert connection.backlog_bytes == 0


class Source(Pipe):
    """A stream that has so many pings to be read, and then nothing more."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.left = [protocol.encode("ping", number, {}) for number in range(count)]

    async def receive(self, _most: int) -> bytes:
        if not self.left:
            raise anyio.EndOfStream
        data, self.left = b"".join(self.left[:100]), self.left[100:]
        return data


async def test_who_reads_nothing_is_not_listened_to() -> None:
    pipe, heard = Source(300), list[int]()
    connection = PeerConnection(cast("Any", pipe), 2**30)

    async def listen() -> None:
        async for group in connection.frames():
            for frame in group:
                heard.append(frame.request or 0)
                connection.send("ok", frame.request, {"text": "x" * (UNREAD_BYTES // 50)})
        connection.heard_out.set()
        connection.close()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(connection.write)
        tasks.start_soon(listen)
        await until_async(lambda: connection.backlog_bytes > UNREAD_BYTES, "a backlog")
        await anyio.wait_all_tasks_blocked()
        assert 50 <= len(heard) <= 60
        pipe.reads.set()
    assert heard == list(range(300))


async def test_who_waits_for_room_is_woken_by_the_end() -> None:
    pipe = Source(300)
    connection = PeerConnection(cast("Any", pipe), 2**30)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(connection.write)
        with anyio.fail_after(5):
            async for _ in connection.frames():
                connection.send("ok", None, {"text": "x" * (UNREAD_BYTES + 1)})
                tasks.start_soon(_close, connection)
        pipe.reads.set()


async def _close(connection: PeerConnection) -> None:
    connection.close()


async def test_long_answers_wait_for_each_other() -> None:
    pipe, begun = Pipe(), list[int]()
    connection = PeerConnection(cast("Any", pipe), 2**30)

    async def ask(request: int) -> None:
        await connection.wait_page(request)
        begun.append(request)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(connection.write)
        for request in (1, 2, 3):
            connection.owe(request)
        with anyio.fail_after(5):
            await ask(1)
            tasks.start_soon(ask, 2)
            await anyio.wait_all_tasks_blocked()
            assert begun == [1]
            connection.send("ok", 1, {})  # a short one, taken at once or not
            await anyio.wait_all_tasks_blocked()
            assert begun == [1, 2]
            connection.send("ok", 2, {"text": "x" * (LITTLE_BYTES + 1)})
            tasks.start_soon(ask, 3)
            await anyio.wait_all_tasks_blocked()
            assert begun == [1, 2]
            pipe.reads.set()
            await anyio.wait_all_tasks_blocked()
            assert begun == [1, 2, 3]
            pipe.reads = anyio.Event()
            tasks.start_soon(ask, 4)
            await anyio.wait_all_tasks_blocked()
            assert begun == [1, 2, 3]
            connection.heard_out.set()
            connection.close()
            await anyio.wait_all_tasks_blocked()
            assert begun == [1, 2, 3, 4]
        pipe.reads.set()


class Parts(Pipe):
    """A stream that brings these parts, each on request; then nothing, for ever."""

    def __init__(self, *parts: bytes) -> None:
        super().__init__()
        self.left = list(parts)

    async def receive(self, _most: int) -> bytes:
        if not self.left:
            await anyio.sleep_forever()
        await anyio.sleep(0.02)
        return self.left.pop(0)


IN_NO_TIME: Final = pytest.mark.parametrize(
    "anyio_backend", [("trio", {"clock": trio.testing.MockClock(autojump_threshold=0.0)})], ids=["trio"]
)  # time passes when all wait, and not else


@IN_NO_TIME
async def test_a_frame_that_has_begun_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many bytes still come; between frames a peer may be silent, and each frame has its own time."""
    monkeypatch.setattr("pulse_actors.dispatcher.net.connection.FRAME_S", 0.25)
    frame = protocol.encode("ping", 1, {})
    heard: list[protocol.Frame] = []

    async def hear(source: Parts) -> None:
        with anyio.fail_after(5):
            async for group in PeerConnection(cast("Any", source), 2**30).frames():
                heard.extend(group)

    parts = [frame[:3], frame[3:] + frame[:2], frame[2:]] * 4
    parts += [frame[:3], *[frame[3:] + frame[:3]] * 9, frame[3:]]  # one always begins where the last one ends
    drops = Parts(*(bytes([one]) for one in protocol.encode("ping", 1, {"a": "x" * 90})))
    for source in (Parts(*parts, frame[:2]), drops):
        with pytest.raises(ProtocolError, match=r"^no whole frame within 0.25 s$"):
            await hear(source)
    assert len(heard) == 8 + 10
    assert len(drops.left) > 50
    with pytest.raises(TimeoutError):
        await hear(Parts(frame))


async def test_frames_that_have_begun_have_room_together() -> None:
    """The next one of the same source is read when there is room for all of it; a closed connection frees its room."""
    frame = protocol.encode("submit", 1, {"args": "x" * 900})
    begun, heard = MemoryBudget(1500), list[str]()

    async def hear(name: str, *parts: bytes, frames: int = 1, scope: anyio.CancelScope | None = None) -> None:
        connection = PeerConnection(cast("Any", Parts(*parts)), 2**30, begun=begun)
        with scope or anyio.fail_after(5):
            async for group in connection.frames():
                heard.extend(name for _ in group)
                if heard.count(name) == frames:
                    break
        connection.hear_no_more()

    scopes = [anyio.CancelScope() for _ in range(2)]
    async with anyio.create_task_group() as tasks:
        for scope in scopes:  # the first has room, and the second waits for it
            tasks.start_soon(lambda scope: hear("begins", frame[:700], scope=scope), scope)
            await anyio.wait_all_tasks_blocked()
        tasks.start_soon(lambda: hear("short", frame[:100], frame[100:] + frame[:100], frame[100:], frames=2))
        await hear("at once", *[frame] * 8, frames=8)
        assert heard == ["at once"] * 8
        scopes[1].cancel()
        scopes[0].cancel()
    assert heard[8:] == ["short"] * 2


@IN_NO_TIME
async def test_who_waits_for_room_is_not_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pulse_actors.dispatcher.net.connection.FRAME_S", 0.1)
    frame, room, heard = protocol.encode("submit", 1, {"args": "x" * 900}), MemoryBudget(1500), list[int | None]()
    assert room.try_reserve(1500)
    connection = PeerConnection(cast("Any", Parts(frame[:700], frame[700:])), 2**30, begun=room)

    async def hear() -> None:
        async with contextlib.aclosing(cast("Any", connection.frames())) as frames:
            heard.extend([one.request for one in await anext(frames)])

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hear)
            await anyio.sleep(0.3)
            room.release(1500)
    assert heard == [1]


async def test_a_clients_long_frame_has_room_until_it_is_handed_on() -> None:
    frame, short, room = (
        protocol.encode("submit", 1, {"args": "x" * 900}),
        protocol.encode("ping", 2, {}),
        MemoryBudget(1500),
    )
    found: list[bool] = []
    connection = PeerConnection(cast("Any", Parts(frame[:700], frame[700:], short)), 2**30, begun=room)
    connection.greeted()
    with anyio.fail_after(5):
        async for _ in connection.frames():
            found.append(room.try_reserve(1000))
            if len(found) == 2:
                break
    assert found == [False, True]


async def test_a_worker_has_a_room_of_its_own() -> None:
    frame = protocol.encode("report", 1, {"results": "x" * 900})
    shared, own, heard = MemoryBudget(1500), MemoryBudget(1500), list[int | None]()
    assert shared.try_reserve(1500)
    connection = PeerConnection(cast("Any", Parts(frame[:700], frame[700:])), 2**30, begun=shared)
    connection.greeted(None, own)
    with anyio.fail_after(5):
        async for group in connection.frames():
            heard += [one.request for one in group]
            assert own.try_reserve(1500)
            break
    assert heard == [1]
    client = PeerConnection(cast("Any", Pipe()), 2**30, begun=shared)
    client.greeted()
    assert client._begun is shared


def test_room() -> None:
    room = MemoryBudget(10)
    assert room.try_reserve(11)
    assert not room.try_reserve(1)
    room.release(11)
    assert room.try_reserve(5)
    assert room.try_reserve(5)
    assert not room.try_reserve(1)


class Others:
    turns = 0

    async def run(self) -> None:
        while True:
            self.turns += 1
            await checkpoint()


async def test_others_have_their_turn_between_the_frames_of_one() -> None:
    connection = PeerConnection(cast("Any", Source(4000)), 2**30)
    others, groups = Others(), 0
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(others.run)
        async for _ in connection.frames():
            groups += 1
            time.sleep(0.0002)  # noqa: ASYNC251 - the work that a frame is
        tasks.cancel_scope.cancel()
    assert groups == 1000
    assert others.turns > 100


async def test_only_nonsense_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses_s, now_s = list[float](), time.monotonic()

    async def pause(for_s: float) -> None:
        pauses_s.append(for_s)
        await checkpoint()

    parts = SimpleNamespace(sleep=pause, Semaphore=anyio.Semaphore, Lock=anyio.Lock)
    monkeypatch.setattr("pulse_actors.dispatcher.admission.request_limits.anyio", parts)
    for one in ("admission.request_limits", "net.connection"):  # else the first are forgiven before the last is made
        monkeypatch.setattr(f"pulse_actors.dispatcher.{one}.time", SimpleNamespace(monotonic=lambda: now_s))
    for code, is_mistake in (("not_found", False), ("bad_request", True), ("forbidden", True), ("too_large", True)):
        pauses_s.clear()
        connection = PeerConnection(cast("Any", Source(20)), 2**30)
        for _ in range(MISTAKES + 60):
            connection.refuse(1, code, "no")
        async for _ in connection.frames():
            pass
        assert any(pause_s > 50 / MISTAKES_A_SECOND for pause_s in pauses_s) is is_mistake, code


async def test_those_in_the_lane_have_a_stretch_together() -> None:
    """However many connections make many mistakes, others wait for a few frames at most."""
    others, heard = Others(), list[int]()

    async def listen() -> None:
        connection = PeerConnection(cast("Any", Source(40)), 2**30)
        for _ in range(2 * MISTAKES):  # for seconds
            connection.limits.mistake(time.monotonic())
        async for group in connection.frames():
            assert len(group) == 1
            heard.append(others.turns)
            time.sleep(STRETCH_S / 4)  # noqa: ASYNC251 - the work that a frame is

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(others.run)
        async with anyio.create_task_group() as listening:
            for _ in range(10):
                listening.start_soon(listen)
        tasks.cancel_scope.cancel()
    assert len(heard) == 400
    assert max(Counter(heard).values()) <= 6


WORDS: Final = b"".join(protocol.encode("ping", number, {}) for number in range(5000))  # more than is read at once
HALF: Final = protocol.encode("submit", 1, {"args": "x" * 900})[:700]


class Heard(list[int]):
    def __init__(self, connection: PeerConnection, other: socket.socket) -> None:
        super().__init__()
        self.connection, self.other = connection, other

    async def listen(self) -> None:
        async for group in self.connection.frames():
            self.extend(frame.request or 0 for frame in group)
        self.connection.hear_no_more()

    async def end(self) -> None:
        with anyio.fail_after(5):
            await self.connection.hear_out()


@contextlib.asynccontextmanager
async def listening(begun: MemoryBudget | None = None) -> AsyncIterator[Heard]:
    """To a peer on a real socket, which another process holds when it has died."""
    other, own = socket.socketpair()
    other.setblocking(False)
    with other:
        async with of_unix_socket(await anyio.abc.UNIXSocketStream.from_socket(own)) as stream:
            yield Heard(PeerConnection(stream, 2**30, begun=begun), other)


async def test_what_is_pushed_is_written_before_anything_else_has_its_turn() -> None:
    """As far as the socket takes it; the rest follows, once, in its order."""
    async with listening() as heard, anyio.create_task_group() as tasks:
        connection, reader, got = heard.connection, protocol.FrameReader(), list[int | None]()
        tasks.start_soon(connection.write)
        connection.send("ok", 0, {})
        connection.push()
        got += [frame.request for frame in reader.feed(heard.other.recv(65536))]
        assert (got, connection.backlog_bytes) == ([0], 0)
        for number in range(1, 5):
            connection.send("ok", number, {"text": "x" * 400_000})
            connection.push()
        assert connection.backlog_bytes > 0
        with anyio.fail_after(5):
            while len(got) < 5:
                await anyio.wait_readable(heard.other)
                got += [frame.request for frame in reader.feed(heard.other.recv(65536))]
        assert (got, connection.backlog_bytes) == ([0, 1, 2, 3, 4], 0)
        heard.other.close()
        connection.push()  # the next write meets the error
        connection.send("ok", 5, {})
        connection.hear_no_more()
    assert connection.is_cut


async def test_nothing_is_pushed_into_a_frame_that_is_being_written() -> None:
    async with listening() as heard, anyio.create_task_group() as tasks:
        connection, reader, got = heard.connection, protocol.FrameReader(), list[int | None]()
        tasks.start_soon(connection.write)
        connection.send("ok", 0, {"text": "x" * 1_000_000})
        await anyio.wait_all_tasks_blocked()  # the task waits in the middle of it
        data = heard.other.recv(65536)
        connection.send("ok", 1, {})
        connection.push()
        with anyio.fail_after(5):
            while len(got) < 2:
                got += [frame.request for frame in reader.feed(data)]
                if len(got) < 2:
                    await anyio.wait_readable(heard.other)
                    data = heard.other.recv(65536)
        assert got == [0, 1]
        connection.hear_no_more()
        connection.close()


@pytest.mark.parametrize("half", [b"", HALF])
async def test_all_that_a_dead_peer_wrote_is_heard_at_once(half: bytes) -> None:
    """It is in the socket: the dispatcher reads it without waiting for the end."""
    async with listening() as heard, anyio.create_task_group() as tasks:
        heard.other.sendall(WORDS + half)
        tasks.start_soon(heard.listen)
        await heard.end()
        assert heard == list(range(5000))
        with pytest.raises(BrokenPipeError, match="Broken pipe"):
            heard.other.send(b"what a child of it says")
        await heard.connection._stream.aclose()
        await heard.end()  # it has ended already


async def test_what_a_peer_wrote_before_it_died_has_its_time() -> None:
    over = list[int]()
    async with listening() as heard, anyio.create_task_group() as tasks:
        heard.other.sendall(WORDS)

        async def end() -> None:
            await heard.end()
            over.extend(heard)

        tasks.start_soon(end)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(heard.listen)
    assert over == list(range(5000))


@pytest.mark.parametrize("is_waiting", [False, True])
@pytest.mark.parametrize("by", ["others have the room", "mistakes", "answers that it does not read"])
async def test_a_dead_peer_is_heard_whatever_held_it_up(by: str, *, is_waiting: bool) -> None:
    """Its unfinished frame is dropped; a living one is read slowly, or not at all."""
    room = MemoryBudget(1500)
    assert room.try_reserve(1500)
    async with listening(room) as heard, anyio.create_task_group() as tasks:
        heard.other.sendall(WORDS + (HALF if by == "others have the room" else b""))
        if by == "mistakes":
            for _ in range(100 * int(MISTAKES_A_SECOND)):  # a hundred seconds of them
                heard.connection.limits.mistake(time.monotonic())
        if by == "answers that it does not read":
            heard.connection.send("ok", None, {"text": "x" * (UNREAD_BYTES + 1)})
        tasks.start_soon(heard.listen)
        if is_waiting:
            await anyio.wait_all_tasks_blocked()
            assert by == "others have the room" or len(heard) < 5000
        await heard.end()
        assert heard == list(range(5000))
