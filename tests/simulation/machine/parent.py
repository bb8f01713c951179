"""A simulated pool parent: it beats for children that cannot, and shows where they hang."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import trio

from pulse.client.async_transport import FrameStream
from pulse.errors import PulseError
from pulse.protocol import TakeStack, decode_body, encode
from pulse.system import processes
from pulse.worker.pool.proxy_heartbeat import ProxyHeartbeats, Watch
from pulse.worker.session.reconnect import Dialer
from tests.simulation.machine.process import Process

if TYPE_CHECKING:
    from tests.simulation.world import World


class Parent:
    """A pool parent."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name
        self._heartbeats = ProxyHeartbeats(processes.state)
        self._heartbeats.heartbeat_s = world.settings.heartbeat_s
        self._watches: dict[int, Watch] = {}
        self._dialer = Dialer(None, self._hello, world.log)
        self._number = 0
        self._sending = trio.Lock()

    def _hello(self) -> Mapping[str, object]:
        return {"protocol": 1, "role": "worker", "worker": self._name, "topics": [], "names": [], "capacity": 0}

    # What children's notes say: they come through a pipe, whatever the parent is doing.

    def added(self, pid: int) -> None:
        self._watches[pid] = self._heartbeats.add(pid, pid)

    def removed(self, pid: int) -> None:
        self._watches.pop(pid, None)
        self._heartbeats.remove(pid)

    def connected(self, pid: int, session: bytes) -> None:
        self._watches[pid].connected(session, trio.current_time())

    def answered(self, pid: int) -> None:
        if pid in self._watches:
            self._watches[pid].answered(trio.current_time())

    async def main(self, _process: Process) -> int:
        while True:
            stream, _ = await self._dialer.dial()
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._read, stream, nursery.cancel_scope)
                    nursery.start_soon(self._speak, stream, nursery.cancel_scope)
            finally:
                await stream.aclose()
            await self._dialer.pause()

    async def _read(self, stream: FrameStream, scope: trio.CancelScope) -> None:
        try:
            while True:
                for frame in await stream.receive():
                    if frame.kind == "stack":
                        session = decode_body(TakeStack, frame).session
                        answer = encode("stack", frame.request, {"stack": self._stack_of(session)})
                        async with self._sending:
                            await stream.send(answer)
        except PulseError:
            scope.cancel()

    def _stack_of(self, session: bytes) -> str | None:
        pid = next((watch.pid for watch in self._watches.values() if watch.session == session), 0)
        return "in the middle of it" if processes.state(pid) not in {"", "T", "Z"} else None

    async def _speak(self, stream: FrameStream, scope: trio.CancelScope) -> None:
        try:
            while True:
                for session in self._heartbeats.take_due(trio.current_time()):
                    self._number += 1
                    async with self._sending:
                        await stream.send(encode("heartbeat", self._number, {"session": session, "jobs": None}))
                await trio.sleep(max(0.05, min(1.0, self._heartbeats.next_due_s() - trio.current_time())))
        except PulseError:
            scope.cancel()
