"""Small guards of the worker: of its ledger, its log, its heartbeats and checkpoints, its parent's watch."""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio.abc import SocketStream
from structlog.testing import capture_logs

from pulse.app.outcome import RELEASED
from pulse.client.async_transport import FrameStream
from pulse.client.discovery import ConnectionLostError
from pulse.common.waiting import WakeupEvent
from pulse.protocol import Frame, decode_any, encode
from pulse.worker.handler_process import _log_left_out
from pulse.worker.options import PoolOptions
from pulse.worker.pool.proxy_heartbeat import ProxyHeartbeats, Watch, _Line
from pulse.worker.session.declarations import OtherQueues
from pulse.worker.session.ledger import Ledger
from tests.pulse.worker.session.test_ledger import ROOM, app, job, running_of

SESSION = b"s" * 16


def test_what_has_ended_does_not_wait_for_cells() -> None:
    one = Ledger(app.handlers, 2)
    given_back = job("apart")
    one.assign([given_back], 0.0)
    assert one.waits_for_cells()
    one.recall((given_back.id, 1))
    assert not one.waits_for_cells()
    one.cells_ready()
    assert one.take_startable() == []


def test_what_needs_no_cell_waits_for_none() -> None:
    one = Ledger(app.handlers, 2)
    one.cells_ready()
    one.assign([job()], 0.0)
    one.cells_gone()
    assert not one.waits_for_cells()


def test_drained_before_it_was_named() -> None:
    one = Ledger(app.handlers, 2)
    taken = running_of(one)
    one.drain()
    one.put_back(taken)
    assert one.take_startable() == []
    assert [result[2] for result in one.take_report(1, ROOM)] == ["release"]


def test_which_attempt_runs() -> None:
    one = Ledger(app.handlers, 1)
    first, second = job(), job()
    one.assign([first, second], 0.0)
    (attempt,) = one.take_startable()
    assert one.running_attempt((first.id, 1)) is attempt
    assert one.running_attempt((second.id, 1)) is None
    assert one.running_attempt((first.id, 2)) is None
    one.stop((first.id, 1), "canceled")
    assert one.running_attempt((first.id, 1)) is None


def test_stops_and_recalls_of_nobody() -> None:
    one = Ledger(app.handlers, 1)
    one.recall((bytes(16), 1))
    assert one.stop((bytes(16), 1), "lost") is None
    one._saved(running_of(one))
    assert one.take_report(1, ROOM) == []


def test_what_was_named_is_told_again() -> None:
    one = Ledger(app.handlers, 2)
    first, _ = running_of(one, job(), job())
    first.named = True
    assert one.named() == [first]


def test_an_empty_report_is_not_under_way() -> None:
    one = Ledger(app.handlers, 1)
    assert one.take_report(1, ROOM) == []
    assert one._under_way == {}


def test_a_result_that_was_refused_alone_once_is_not_named_twice() -> None:
    one = Ledger(app.handlers, 1)
    (attempt,) = running_of(one)
    one.ended(attempt, RELEASED)
    one.take_report(1, ROOM)
    one._held.clear()
    assert one.refused(1, passing=False) == []


def test_one_checkpoint_of_an_attempt_in_a_frame() -> None:
    """However often it saved; and one that is larger than a frame goes alone."""
    one = Ledger(app.handlers, 2)
    first, second = running_of(one, job(), job())
    for text in ("1", "2"):
        one.checkpoints.save(first, text)
    one.checkpoints.save(second, "x" * 2000)
    assert one.checkpoints.take(1, 1000) == [(*first.pair, "2")]
    assert one.checkpoints.take(2, 1000) == [(*second.pair, "x" * 2000)]
    assert one.checkpoints.take(3, 1000) == []
    assert set(one.checkpoints._under_way) == {1, 2}
    for _ in range(2):
        one.checkpoints.save(first, "x" * 400)
    assert len(one.checkpoints.take(4, 1000)) == 1
    assert one.checkpoints.take(5, 1000) == []


def test_a_checkpoint_that_the_server_has_is_not_sent_again() -> None:
    """One that was saved again unchanged while it was under way is known by its turn."""
    one = Ledger(app.handlers, 2)
    first, second = running_of(one, job(), job())
    one.checkpoints.save(first, "1")
    one.checkpoints.save(second, "x" * 2000)
    one.checkpoints.save(first, "1")
    assert one.checkpoints.take(1, 1000) == [(*first.pair, "1")]
    one.checkpoints.answered(1)
    assert one.checkpoints.take(2, 1000) == [(*second.pair, "x" * 2000)]
    assert one.checkpoints.take(3, 1000) == []


async def _nowhere() -> str | None:
    return "nowhere"


@pytest.mark.anyio
async def test_the_stack_of_a_session() -> None:
    minder = ProxyHeartbeats(lambda _: "S")
    minder.add(0, 7, _nowhere).connected(b"seen", 0.0)
    minder.add(1, 8).connected(b"unseen", 0.0)
    assert await minder.stack_of(b"seen") == "nowhere"
    assert await minder.stack_of(b"unseen") is None
    assert await minder.stack_of(b"other") is None


def test_nobody_beats_before_a_session() -> None:
    minder = ProxyHeartbeats(lambda _: "S")
    watch = minder.add(0, 7)
    assert watch.due_s(1.0) == float("inf")
    watch.answered(-100.0)
    assert minder.take_due(1e9) == []
    minder.leave()
    assert minder.leavers() == []
    assert Watch(7).session is None


class Line:
    """A pool parent's connection, and the other end of it."""

    def __init__(self, minder: ProxyHeartbeats, parent: SocketStream, server: SocketStream) -> None:
        self.news = WakeupEvent()
        self.line = _Line(FrameStream(parent), minder, self.news)
        self.server = FrameStream(server)
        self.frames: list[Frame] = []

    async def receive(self, count: int) -> list[Frame]:
        with anyio.fail_after(10.0):
            while len(self.frames) < count:
                self.frames += await self.server.receive()
        taken, self.frames = self.frames[:count], self.frames[count:]
        return taken

    async def silent(self) -> bool:
        await anyio.wait_all_tasks_blocked()
        with anyio.move_on_after(0.05):
            self.frames += await self.server.receive()
        return not self.frames


@asynccontextmanager
async def line(minder: ProxyHeartbeats) -> AsyncIterator[Line]:
    here, there = socket.socketpair()
    async with await SocketStream.from_socket(here) as parent, await SocketStream.from_socket(there) as server:
        yield Line(minder, parent, server)


@pytest.mark.anyio
async def test_a_server_that_answers_no_pings_is_left() -> None:
    minder = ProxyHeartbeats(lambda _: "S")
    minder.heartbeat_s = 0.02
    async with line(minder) as at, anyio.create_task_group() as tasks:
        tasks.start_soon(at.line.run)
        pings = await at.receive(3)
        assert [(frame.kind, frame.request) for frame in pings] == [("ping", 1), ("ping", 2), ("ping", 3)]
        with pytest.raises(ConnectionLostError, match="the other side closed the connection"):
            await at.receive(1)
        tasks.cancel_scope.cancel()


@pytest.mark.anyio
async def test_each_leaver_is_told_once() -> None:
    minder = ProxyHeartbeats(lambda _: "S")
    minder.heartbeat_s = 1000.0
    minder.add(0, 7).connected(b"first", time.monotonic())
    minder.leave()
    async with line(minder) as at, anyio.create_task_group() as tasks:
        tasks.start_soon(at.line.run)
        (told,) = await at.receive(1)
        assert (told.kind, decode_any(told)) == ("capacity", {"capacity": 0, "session": b"first"})
        minder.add(1, 8).connected(b"late", time.monotonic())
        for _ in range(2):
            at.news.wake()
            await anyio.wait_all_tasks_blocked()
        (told,) = await at.receive(1)
        assert decode_any(told) == {"capacity": 0, "session": b"late"}
        assert await at.silent()
        tasks.cancel_scope.cancel()


@pytest.mark.anyio
async def test_only_who_asks_for_a_stack_gets_one() -> None:
    minder = ProxyHeartbeats(lambda _: "S")
    minder.heartbeat_s = 1000.0
    minder.add(0, 7, _nowhere).connected(SESSION, time.monotonic())
    async with line(minder) as at, anyio.create_task_group() as tasks:
        tasks.start_soon(at.line.run)
        await at.server.send(encode("ok", 1, {}) + encode("stack", 5, {"session": SESSION}))
        (told,) = await at.receive(1)
        assert (told.kind, told.request, decode_any(told)) == ("stack", 5, {"stack": "nowhere"})
        assert await at.silent()
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(("left_out", "levels"), [
    (OtherQueues(), []), (OtherQueues(topics=("a",)), ["info"]), (OtherQueues(without_route=("a",)), ["warning"]),
])  # fmt: skip
def test_topics_that_are_left_out_are_logged(left_out: OtherQueues, levels: list[str]) -> None:
    with capture_logs() as logs:
        _log_left_out(PoolOptions(app="x:y"), left_out)
    assert [line["log_level"] for line in logs] == levels
