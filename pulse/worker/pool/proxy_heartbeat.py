"""
What the parent sends for its children: heartbeats while they live, their stacks, and notice before they end.

A handler that holds the interpreter (a regular expression, a C extension) stops every thread of its process, and so its
heartbeats; but it works, and its jobs must not run elsewhere. The parent, which runs no user code, sees that the child
exists and is not stopped, and extends the leases of its session.

Nor can such a child show its stack: the parent sends it a signal, which faulthandler answers by itself.

Nor can it announce its end, which would look like a crash caused by its jobs. So when the pool stops, the parent
announces the end of all its children.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

import anyio
from anyio.abc import TaskGroup

from pulse.client.async_transport import FrameStream
from pulse.client.discovery import ConnectionLostError
from pulse.common.waiting import WakeupEvent
from pulse.errors import ProtocolError, PulseError
from pulse.protocol import Frame, TakeStack, decode_body, encode
from pulse.system import processes
from pulse.system.failure_log import Log
from pulse.worker.session.reconnect import Dialer, WorkerRefusedError

__all__ = ["ProxyHeartbeats", "Watch", "mind"]

SILENT_BEATS: Final = 1.2  # unanswered own heartbeats; more than one, since an answer may be slow
STABLE_S: Final = 5.0  # a connection that lasted this long was a good one; as for a child's
MAX_UNHEARD_PINGS: Final = 3  # one per heartbeat; as in a child's connection
_STOPPED_OR_DEAD: Final = frozenset({"", "T", "t", "Z", "X", "x"})


class Watch:
    """The state of one child. Pure."""

    __slots__ = ("answered_s", "beaten_s", "pid", "session", "take_stack")

    def __init__(self, pid: int, take_stack: Callable[[], Awaitable[str | None]] | None = None) -> None:
        self.pid: Final = pid
        self.take_stack: Final = take_stack
        self.session: bytes | None = None
        self.answered_s = 0.0
        self.beaten_s = 0.0

    def connected(self, session: bytes, now_s: float) -> None:
        """The child has a session."""
        self.session = session
        self.answered_s = now_s

    def answered(self, now_s: float) -> None:
        """The child's own heartbeat was answered."""
        self.answered_s = now_s

    def due_s(self, heartbeat_s: float) -> float:
        """When the parent must send a heartbeat, unless the child does."""
        if self.session is None:
            return float("inf")
        return max(self.answered_s + SILENT_BEATS * heartbeat_s, self.beaten_s + heartbeat_s)


class ProxyHeartbeats:
    """
    The children of a pool by slot, with those that are silent and those that end.

    Pure except for the look at the kernel, which is passed in.

    Args:
        state_of: The state of a process, as the kernel shows it.

    Attributes:
        heartbeat_s: How often the server expects a heartbeat of each.
    """

    def __init__(self, state_of: Callable[[int], str] = processes.state) -> None:
        self._watches: dict[int, Watch] = {}
        self._state_of = state_of
        self.heartbeat_s = 10.0
        self._leaving = False

    def add(self, slot: int, pid: int, take_stack: Callable[[], Awaitable[str | None]] | None = None) -> Watch:
        """A child was started; *take_stack* returns its stacks."""
        watch = self._watches[slot] = Watch(pid, take_stack)
        return watch

    async def stack_of(self, session: bytes) -> str | None:
        """The stacks of the child of *session*; None: there is none, or they cannot be taken."""
        for watch in self._watches.values():
            if watch.session == session and watch.take_stack is not None:
                return await watch.take_stack()
        return None

    def remove(self, slot: int) -> None:
        """A child has ended."""
        self._watches.pop(slot, None)

    def next_due_s(self) -> float:
        """When to look again; infinity if no child has a session."""
        return min((watch.due_s(self.heartbeat_s) for watch in self._watches.values()), default=float("inf"))

    def take_due(self, now_s: float) -> list[bytes]:
        """The sessions that need a heartbeat now: silent for too long, and alive."""
        sessions: list[bytes] = []
        for watch in self._watches.values():
            if watch.session is not None and watch.due_s(self.heartbeat_s) <= now_s:
                watch.beaten_s = now_s
                if self._state_of(watch.pid) not in _STOPPED_OR_DEAD:
                    sessions.append(watch.session)
        return sessions

    def leave(self) -> None:
        """The pool stops, and all its children with it."""
        self._leaving = True

    def leavers(self) -> list[bytes]:
        """The sessions that end because the pool stops."""
        watches = self._watches.values() if self._leaving else ()
        return [watch.session for watch in watches if watch.session is not None]


async def mind(
    heartbeats: ProxyHeartbeats, changed: WakeupEvent, socket: str | None, name: str, log: Log
) -> WorkerRefusedError:
    """
    Send for the children over a connection of the parent's own, until the server refuses it.

    Args:
        changed: Set when there may be more leavers.
        socket: The server's socket; None: it is looked for.
        name: The parent's name.
    """

    def hello() -> Mapping[str, object]:
        return {"protocol": 1, "role": "worker", "worker": name, "topics": [], "names": [], "capacity": 0}

    dialer = Dialer(socket, hello, log)
    while True:
        try:
            stream, welcome = await dialer.dial()
        except WorkerRefusedError as error:
            return error
        heartbeats.heartbeat_s = welcome.heartbeat_s
        since_s = time.monotonic()
        await _Line(stream, heartbeats, changed).run()
        if time.monotonic() - since_s >= STABLE_S:
            dialer.proved_good()
        await dialer.pause()


class _Line:
    """One connection of the parent."""

    def __init__(self, stream: FrameStream, heartbeats: ProxyHeartbeats, changed: WakeupEvent) -> None:
        self._stream = stream
        self._heartbeats = heartbeats
        self._changed = changed
        self._noticed: set[bytes] = set()
        self._sending = anyio.Lock()
        self._number = 0
        self._unheard = 0

    async def run(self) -> None:
        async def guarded(work: Callable[[], Awaitable[None]], group: TaskGroup) -> None:
            try:
                await work()
            except PulseError:
                group.cancel_scope.cancel()

        async def read(group: TaskGroup) -> None:
            while True:
                frames = await self._stream.receive()
                self._unheard = 0
                for frame in frames:
                    if frame.kind == "stack":  # it may take a second, and heartbeats go on
                        group.start_soon(guarded, partial(self._tell_stack, frame), group)

        try:
            async with anyio.create_task_group() as group:
                group.start_soon(guarded, partial(read, group), group)
                group.start_soon(guarded, self._speak, group)
        finally:
            await self._stream.aclose()

    async def _tell_stack(self, frame: Frame) -> None:
        try:
            session = decode_body(TakeStack, frame).session
        except ProtocolError:
            text = None  # of another version; an empty answer is better than none
        else:
            text = await self._heartbeats.stack_of(session)
        await self._send("stack", frame.request, {"stack": text})

    async def _speak(self) -> None:
        heartbeats = self._heartbeats
        own_s = time.monotonic() + heartbeats.heartbeat_s
        while True:
            await self._give_notice()
            now_s = time.monotonic()
            if now_s >= own_s:
                own_s = now_s + heartbeats.heartbeat_s
                await self._ping()
            for session in heartbeats.take_due(now_s):
                await self._ask("heartbeat", {"session": session, "jobs": None})
            # A child that connects meanwhile needs its first heartbeat one interval later at the earliest.
            with anyio.move_on_after(max(0.0, min(own_s, heartbeats.next_due_s()) - time.monotonic())):
                await self._changed.wait()

    async def _give_notice(self) -> None:
        """Once for each session and connection: a restarted dispatcher has not received it."""
        for session in self._heartbeats.leavers():
            if session not in self._noticed:
                self._noticed.add(session)
                await self._send("capacity", None, {"capacity": 0, "session": session})

    async def _ping(self) -> None:
        if self._unheard >= MAX_UNHEARD_PINGS:
            raise ConnectionLostError(f"{MAX_UNHEARD_PINGS} pings were not answered")
        self._unheard += 1
        await self._ask("ping", {})

    async def _ask(self, kind: str, body: Mapping[str, object]) -> None:
        self._number += 1
        await self._send(kind, self._number, body)

    async def _send(self, kind: str, number: int | None, body: Mapping[str, object]) -> None:
        async with self._sending:
            await self._stream.send(encode(kind, number, body))
