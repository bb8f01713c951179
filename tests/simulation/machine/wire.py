"""
Connections as a Unix socket makes them: what is sent is in the other side's buffer at once, and stays readable.

By chance a write is torn into pieces, a read brings less than there is, and a reader is slow. A connection can
be cut at any byte: what came before the cut is read, then comes the end.
"""

from __future__ import annotations

import itertools
import socket
import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

import anyio
import trio
from anyio.abc import ByteStream, SocketAttribute

from tests.simulation.machine.process import PROCESS, Process

if TYPE_CHECKING:
    from tests.simulation.world import World

BUFFER_BYTES: Final = 16 * 1024  # then a writer waits for the reader
TEAR: Final = 0.02  # of writes
SHORT: Final = 0.05  # of reads, in a world that is not slow
SLOW: Final = 0.05
SLOW_S: Final = 0.03
SO_PEERPIDFD: Final = 77
_numbers = itertools.count(1)


class Link:
    """A connection; *budget*: bytes of both directions that still get through before it is cut, None: all."""

    def __init__(self, world: World, client: Process) -> None:
        self.world = world
        self.number = world.next_link()
        self.budget: int | None = None
        self.intact = True
        self.client = End(self)
        self.server = End(self)
        self.client.peer, self.server.peer = self.server, self.client
        self.client.belong(client)
        self.connector = client
        self.raw: RawSocket | None = None

    def cut(self) -> None:
        if self.intact:
            self.world.trace("cut", link=self.number)
            self.intact = False
            for end in (self.client, self.server):
                end.shut()


class End(ByteStream):
    peer: End

    def __init__(self, link: Link) -> None:
        self.link = link
        self.owner: Process | None = None
        self._buffer = bytearray()
        self._ended = False  # nothing more will come
        self._closed = False  # by this side
        self._deaf = False  # this side reads what has come, and then the end
        self._changed = trio.Event()

    def belong(self, process: Process) -> None:
        self.owner = process
        process.ends.append(self)

    @property
    def unread_bytes(self) -> int:
        return len(self._buffer)

    @property
    def is_open(self) -> bool:
        return not self._closed and not self._ended

    async def send(self, item: bytes) -> None:
        chance, left = self.link.world.chance, item
        await trio.lowlevel.checkpoint()
        while left:
            self._check()
            room = BUFFER_BYTES - self.peer.unread_bytes
            if room <= 0:
                await self._wait()
                continue
            part = left[:room]
            if len(part) > 1 and chance.random() < TEAR:
                part = part[: chance.randrange(1, len(part))]
            budget = self.link.budget
            if budget is not None:
                part = part[:budget]
                self.link.budget = budget - len(part)
            self.peer.take(part)
            left = left[len(part) :]
            if self.link.budget == 0:
                self.link.cut()
            elif left:
                await trio.sleep(chance.uniform(0.0, SLOW_S))

    def _check(self) -> None:
        if self._closed:
            raise anyio.ClosedResourceError
        if self._ended or self.peer._deaf or (self.owner is not None and self.owner.dead):
            raise anyio.BrokenResourceError

    def take(self, part: bytes) -> None:
        self._buffer += part
        self.wake()

    async def receive(self, max_bytes: int = 65536) -> bytes:
        chance = self.link.world.chance
        if self._buffer:
            await trio.lowlevel.checkpoint()
        while not self._buffer:
            if self._closed:
                raise anyio.ClosedResourceError
            if self._ended or self._deaf:
                raise anyio.EndOfStream
            await self._wait()
        if chance.random() < SLOW * self.link.world.scenario.slowness:
            await trio.sleep(chance.expovariate(1 / SLOW_S))
        if self._closed:
            raise anyio.ClosedResourceError
        count = min(max_bytes, len(self._buffer))
        if count > 1 and chance.random() < SHORT * self.link.world.scenario.slowness:
            count = chance.randrange(1, count)
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        self.peer.wake()
        return data

    async def _wait(self) -> None:
        await self._changed.wait()

    def wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def hear_no_more(self) -> None:
        self._deaf = True
        self.wake()

    async def send_eof(self) -> None:
        raise NotImplementedError

    async def aclose(self) -> None:
        self.shut()
        await trio.lowlevel.checkpoint()

    def shut(self) -> None:
        """Close it, as the kernel does for a process that has ended; a link that was cut can still be read."""
        if self.link.intact and not self._closed:
            self._closed = True
            self._buffer.clear()
        self._ended = self.peer._ended = True
        if self.owner is not None and self in self.owner.ends:
            self.owner.ends.remove(self)
        self.wake()
        self.peer.wake()

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        return {SocketAttribute.raw_socket: self._raw}

    def _raw(self) -> RawSocket:
        if self.link.raw is None:
            self.link.raw = RawSocket(self.link)
        return self.link.raw


class RawSocket:
    _UCRED: ClassVar = struct.Struct("3i")

    def __init__(self, link: Link) -> None:
        self._link = link

    def getsockopt(self, _level: int, option: int, _size: int = 0) -> Any:
        process = self._link.connector
        if option == SO_PEERPIDFD:
            if self._link.world.has_peerpidfd:
                return process.machine.open_pidfd(process)
            raise OSError
        assert option == socket.SO_PEERCRED
        pid = process.pid if process.pidns == PROCESS.get().pidns else 0
        return self._UCRED.pack(pid, process.uid, process.uid)

    def shutdown(self, how: int) -> None:
        assert how == socket.SHUT_RD
        self._link.server.hear_no_more()
