"""
One connection of a handler process, from its welcome to its loss.

It has three tasks. One reads. One writes, once per turn of the loop: everything that has started or ended since is sent
together, and handlers are called only after the kernel has the frame that names them. One sends heartbeats.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Protocol

import anyio

from pulse.client.async_transport import FrameStream
from pulse.client.discovery import ConnectionLostError
from pulse.common.waiting import WakeupEvent
from pulse.errors import PulseError, UnavailableError
from pulse.protocol import (
    Assign,
    BeatAnswer,
    Drain,
    ErrorBody,
    Frame,
    Reported,
    Stop,
    StopOrder,
    TakeStack,
    Welcome,
    decode_body,
    encode,
)
from pulse.system.failure_log import FailedAttempt, Log
from pulse.worker.execution.attempt import Attempt, Pair, StopReason
from pulse.worker.session.heartbeat import HeartbeatBody
from pulse.worker.session.ledger import Ledger

__all__ = ["Connection", "Owner"]

PROGRESS_S: Final = 1.0  # a person sees progress at once; a heartbeat costs the database one row per job
MAX_UNHEARD_BEATS: Final = 3  # then the server is gone: a connection can die silently
REFUSED_PAUSE_S: Final = 1.0  # before a report is sent again that the server could not store
_PASSING: Final = frozenset({UnavailableError.code, "internal"})


class Owner(Protocol):
    """The process that the connection belongs to."""

    def about_to_start(self) -> None:
        """Attempts may be taken to be started: give back those that must not."""

    def start(self, attempts: list[Attempt]) -> None:
        """Call these handlers: the server has their names."""

    def stop(self, pair: Pair, reason: StopReason) -> None:
        """Stop one attempt."""

    def changed(self) -> None:
        """Attempts are no longer held."""

    def failed(self, attempts: list[FailedAttempt]) -> None:
        """The server has written that these failed, and which jobs are dead letters now."""

    def assigned(self) -> None:
        """Attempts have arrived."""

    def beat_answered(self, sent_s: float) -> None:
        """The server extended the leases as of *sent_s*, monotonic."""

    def drain(self, order: Drain) -> None:
        """The server sends no more jobs; without ``reconnect`` the process must end."""

    def look(self, pair: Pair, answer: Callable[[str | None, int | None], None]) -> None:
        """Report the stacks of a handler, from another process if it is isolated; the answer may come later."""


class Connection:
    """
    One connection.

    Args:
        stream: The stream, after hello was answered.
        welcome: The answer to hello.
        ledger: What this process holds.
        owner: Carries out the server's orders.
        declarations: What to declare to the server: bodies by the kinds of their requests.
    """

    def __init__(
        self,
        stream: FrameStream,
        welcome: Welcome,
        ledger: Ledger,
        owner: Owner,
        log: Log,
        declarations: Mapping[str, dict[str, object]] = MappingProxyType({}),
    ) -> None:
        self._stream = stream
        self._welcome = welcome
        self._ledger = ledger
        self._owner = owner
        self._log = log
        self._wakeup = WakeupEvent()
        self._beat_wakeup = WakeupEvent()
        self._number = 0
        self._declarations = declarations
        self._declared: dict[int, str] = {}  # their kinds, by the number of the frame
        self._declare_at_beat: list[str] = []  # kinds of those that the server could not store now
        self._out: list[bytes] = []
        self._beats: dict[int, HeartbeatBody] = {}  # unanswered, by number
        self._assigns = 0  # assignment frames that were read
        self._unheard_beats = 0
        self._progressed = False
        self._reports_from_s: float | None = None  # the server could not store a report: wait until then

    async def run(self) -> PulseError:
        """Work until the connection is lost; returns why."""
        lost: list[PulseError] = []

        async def guarded(work: Callable[[], Awaitable[None]], group: anyio.abc.TaskGroup) -> None:
            try:
                await work()
            except PulseError as error:
                lost.append(error)
                group.cancel_scope.cancel()

        try:
            self._tell_again()
            async with anyio.create_task_group() as group:
                for work in (self._read, self._write, self._beat):
                    group.start_soon(guarded, work, group)
        finally:
            self._ledger.disconnected()
            await self._stream.aclose()
        return lost[0] if lost else ConnectionLostError("the connection was given up")

    def wake(self) -> None:
        """There is something to send: write in the next turn of the loop."""
        self._wakeup.wake()

    def progressed(self) -> None:
        """A handler reported progress: send a heartbeat soon."""
        self._progressed = True
        self._beat_wakeup.wake()

    def send_capacity(self, capacity: int) -> None:
        """Send how many jobs this process will hold from now on."""
        self._send("capacity", None, {"capacity": capacity})

    def _tell_again(self) -> None:
        """Send again what a restarted server cannot know, and handle what the welcome said."""
        named = self._ledger.named()
        if named:
            self._send("started", None, _started(named))
        for ref in self._welcome.lost or ():
            self._owner.stop(ref.pair, "lost")
        self._declare(self._declarations)
        self._wakeup.wake()

    def _declare(self, kinds: Iterable[str]) -> None:
        """Every process of every pool declares the same; without changes that costs the server a look."""
        for kind in kinds:
            number = self._next_number()
            self._declared[number] = kind
            self._send(kind, number, self._declarations[kind])

    def _send(self, kind: str, number: int | None, body: dict[str, object]) -> None:
        self._out.append(encode(kind, number, body))
        self._wakeup.wake()

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    async def _write(self) -> None:
        while True:
            if self._reports_from_s is None:
                await self._wakeup.wait()
            else:
                with anyio.move_on_after(self._reports_from_s - time.monotonic()):
                    await self._wakeup.wait()
                if time.monotonic() >= self._reports_from_s:
                    self._reports_from_s = None
            await self._turn()

    async def _turn(self) -> None:
        ledger = self._ledger
        self._owner.about_to_start()
        startable = ledger.take_startable()
        try:
            data = self._frames(startable)
            if data:
                await self._stream.send(data)
        except BaseException:
            ledger.put_back(startable)
            raise
        if startable:
            self._owner.start(startable)

    def _frames(self, startable: list[Attempt]) -> bytes:
        frames, self._out = self._out, []
        if startable:
            frames.append(encode("started", None, _started(startable)))
        if self._reports_from_s is None:
            self._add_results(frames)
        return frames[0] if len(frames) == 1 else b"".join(frames)

    def _add_results(self, frames: list[bytes]) -> None:
        max_bytes = self._welcome.max_frame_bytes
        number = self._next_number()
        while checkpoints := self._ledger.take_checkpoints(number, max_bytes):
            frames.append(encode("checkpoint", number, {"jobs": checkpoints}))
            number = self._next_number()
        while results := self._ledger.take_report(number, max_bytes):
            frames.append(encode("report", number, {"results": results}))
            number = self._next_number()

    async def _beat(self) -> None:
        heartbeat_s = self._welcome.heartbeat_s
        last_s = time.monotonic() - (heartbeat_s if self._ledger.held else 0.0)
        while True:
            pause_s = min(PROGRESS_S, heartbeat_s) if self._progressed else heartbeat_s
            left_s = last_s + pause_s - time.monotonic()
            if left_s > 0:
                with anyio.move_on_after(left_s):
                    await self._beat_wakeup.wait()
                continue
            if self._unheard_beats >= MAX_UNHEARD_BEATS:
                raise ConnectionLostError(f"nothing was heard for {MAX_UNHEARD_BEATS} heartbeats")
            last_s = time.monotonic()
            self._send_beat(last_s)

    def _send_beat(self, now_s: float) -> None:
        if self._beats:  # unanswered, perhaps because the database is away; the server answers pings without it
            self._send("ping", self._next_number(), {})
        again, self._declare_at_beat = self._declare_at_beat, []
        self._declare(again)
        number = self._next_number()
        sheet = self._beats[number] = self._ledger.beat_sheet(now_s)
        self._send("heartbeat", number, {"jobs": sheet.jobs, "assigns": self._assigns})
        self._unheard_beats += 1
        self._progressed = not sheet.complete

    async def _read(self) -> None:
        while True:
            frames = await self._stream.receive()
            self._unheard_beats = 0
            for frame in frames:
                self._take(frame)
            self._wakeup.wake()

    def _take(self, frame: Frame) -> None:
        match frame.kind:
            case "assign":
                self._ledger.assign(decode_body(Assign, frame).jobs, time.monotonic())
                self._assigns += 1
                self._owner.assigned()
            case "reported":
                self._take_reported(frame)
            case "beat":
                self._take_beat(frame)
            case "stop":
                for order in decode_body(Stop, frame).jobs:
                    self._take_stop(order)
            case "stack":
                self._take_question(frame)
            case "drain":
                self._owner.drain(decode_body(Drain, frame))
            case "error":
                self._take_error(frame)
            case _:
                pass  # the answer to a ping, or a frame of a newer server

    def _take_reported(self, frame: Frame) -> None:
        failed = self._ledger.reported(frame.request or 0)
        if failed:
            answer = decode_body(Reported, frame)
            stale, dead = {ref.pair for ref in answer.stale}, {ref.pair for ref in answer.dead}
            written = [one for one in failed if (one.id, one.attempt) not in stale]
            self._owner.failed([one._replace(is_dead=(one.id, one.attempt) in dead) for one in written])
        self._owner.changed()

    def _take_beat(self, frame: Frame) -> None:
        number, answer = frame.request or 0, decode_body(BeatAnswer, frame)
        sheet = self._beats.pop(number, None)
        if sheet is not None:
            if answer.kept:
                sheet.answered()
            self._owner.beat_answered(sheet.made_s)
        for ref in answer.lost:
            self._owner.stop(ref.pair, "lost")
        dropped = {ref.pair for ref in answer.dropped}
        self._ledger.checkpoints_answered(number, kept=answer.kept, dropped=dropped)  # after it knows which are lost

    def _take_stop(self, order: StopOrder) -> None:
        pair = (order.id, order.attempt)
        match order.reason:
            case "recall":
                self._ledger.recall(pair)
            case "canceled" | "lost" | "timeout" as reason:
                self._owner.stop(pair, reason)
            case _:
                self._owner.stop(pair, "canceled")  # a newer server's reason; it stops the attempt all the same

    def _take_question(self, frame: Frame) -> None:
        """The server asks for the stacks of a handler, which may take a second."""
        job = decode_body(TakeStack, frame).job

        def answer(stack: str | None, pid: int | None) -> None:
            self._send("stack", frame.request, {"stack": stack, "pid": pid})

        if job is not None:
            self._owner.look(job.pair, answer)

    def _take_error(self, frame: Frame) -> None:
        refusal = decode_body(ErrorBody, frame)
        number = frame.request or 0
        if self._beats.pop(number, None) is not None:
            return  # the next heartbeat tries again
        passing = refusal.code in _PASSING
        declared = self._declared.pop(number, None)
        if declared is not None:
            if passing:
                self._declare_at_beat.append(declared)
            else:
                self._log.warning("declaration_refused", kind=declared, code=refusal.code, cause=refusal.message)
            return
        dropped = self._ledger.refused(number, passing=passing)
        if passing:
            self._reports_from_s = time.monotonic() + REFUSED_PAUSE_S
        if frame.request is None or dropped:
            self._log.warning("frame_refused", code=refusal.code, cause=refusal.message, dropped=len(dropped))
            self._owner.changed()


def _started(attempts: Sequence[Attempt]) -> dict[str, object]:
    body: dict[str, object] = {"jobs": [attempt.pair for attempt in attempts]}
    apart = [attempt.pair for attempt in attempts if attempt.isolated]
    if apart:
        body["apart"] = apart
    return body
