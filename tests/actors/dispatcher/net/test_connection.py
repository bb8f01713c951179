"""A peer's connection, as the dispatcher writes to it."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from types import SimpleNamespace
from typing import Any, Final, cast

import anyio
import pytest
import trio.testing
from anyio.lowlevel import checkpoint

from pulse import protocol
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
