"""
A simulated handler process: the real desk and the real connection, and handlers that follow their jobs' plans.

The rest of a real one (a choice of event loops, threads, cells, pipes to the parent) is not here.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio

from pulse.app.handler import make_handler
from pulse.app.outcome import RELEASED, Discard, Outcome, RetryAfter, Snooze, crashed
from pulse.app.transactions.fence import FencePhase
from pulse.app.workflows.receipt import Receipt
from pulse.app.workflows.steps import SignalWaiting
from pulse.errors import PulseError
from pulse.protocol import Drain
from pulse.system.failure_log import FailedAttempt
from pulse.worker.execution.attempt import Attempt, Pair, Phase, StopReason
from pulse.worker.execution.link import AttemptLink
from pulse.worker.session.connection import Connection
from pulse.worker.session.ledger import Ledger
from pulse.worker.session.reconnect import Dialer, WorkerRefusedError
from tests.simulation.machine.asking import SimulatedReader
from tests.simulation.machine.observed import Observed
from tests.simulation.machine.process import Process

if TYPE_CHECKING:
    from tests.simulation.machine.parent import Parent
    from tests.simulation.world import World

STABLE_S: Final = 5.0
OBEY_S: Final = 2.0
DRAIN_S: Final = 3.0


async def _never_called() -> None:
    """Handlers are played here, not called."""


STALL_S: Final = 1.0
HANDLERS: Final = {
    "work": make_handler("work", _never_called),
    "rare": make_handler("rare", _never_called),
    "tells": make_handler("tells", _never_called, stall_s=STALL_S),  # progress, but here it never does
}


@dataclass(frozen=True, slots=True)
class Act:
    """
    What a handler does when it is called.

    Attributes:
        kind: ``ok error retry discard snooze``, how it ends; ``crash``: with its process; ``hang``: never, and it obeys
            no cancel; ``busy``: it holds the interpreter, then succeeds.
        seconds: How long it takes.
    """

    kind: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Wait:
    """A signal that a handler waits for."""

    name: str
    timeout_s: float | None


class Worker:
    """One handler process, which serves the handlers *names*."""

    schema = "pulse"

    def __init__(
        self, world: World, process: Process, name: str, names: Sequence[str], concurrency: int, parent: Parent | None
    ) -> None:
        self._world = world
        self.process = process
        self.name = name
        self._handlers = {one: HANDLERS[one] for one in names}
        self.desk = Ledger(self._handlers, concurrency)
        self.desk.cells_ready()
        self._capacity = concurrency
        self._parent = parent
        self._dialer = Dialer(None, self._hello, world.log)
        self._connection: Connection | None = None
        self._session: bytes | None = None
        self._empty = trio.Event()
        self._term = trio.Event()
        self._lease_s = 0.0
        self._confirmed_s = trio.current_time()
        self.connected_s = float("inf")
        self.hanging: set[Pair] = set()
        process.on_term = self._term.set

    async def main(self, _process: Process) -> int:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._stay_connected)
            await self._term.wait()
            self._start_draining()
        return 0

    # What the connection calls.

    def about_to_start(self) -> None:
        if self._lease_s and (now_s := trio.current_time()) > self._confirmed_s + self._lease_s:
            self.desk.give_back_lapsed(now_s, self._confirmed_s)

    def start(self, attempts: list[Attempt]) -> None:
        for attempt in attempts:
            attempt.named = True
            self._nursery.start_soon(self._call, attempt)
            if attempt.job.timeout_s is not None:
                self._nursery.start_soon(self._expire, attempt, attempt.job.timeout_s, "timeout")
            if attempt.job.name == "tells":
                self._nursery.start_soon(self._expire, attempt, STALL_S, "stalled")

    def stop(self, pair: Pair, reason: StopReason) -> None:
        attempt = self.desk.stop(pair, reason)
        if attempt is not None and attempt.begun and attempt.task is not None:
            attempt.task.cancel()
        self._wake()

    def failed(self, attempts: list[FailedAttempt]) -> None:
        """Nobody reads logs here."""

    def changed(self) -> None:
        if self.desk.draining and not self.desk.held:
            self._empty.set()

    def assigned(self) -> None:
        """There is no pace here, and no cells: a job that needs one is played as if it had one."""

    def beat_answered(self, sent_s: float) -> None:
        self._confirmed_s = max(self._confirmed_s, sent_s)
        if self._parent is not None:
            self._parent.answered(self.process.pid)

    def drain(self, order: Drain) -> None:
        if not order.reconnect:
            self._start_draining()

    # Handlers.

    async def _call(self, attempt: Attempt) -> None:
        if attempt.stopped is not None:
            self.ended(attempt, RELEASED)
            return
        self._world.judge.began(self.process, attempt.pair)
        attempt.begun = True
        attempt.make_link = partial(AttemptLink, self)
        value: object = _CancelledError()
        with trio.CancelScope() as scope:
            attempt.task = _Task(scope)
            value = await self._play(attempt)
        self._world.judge.finished(self.process, attempt.pair)
        self.ended(attempt, value if isinstance(value, Outcome) else attempt.ending(value))

    async def _play(self, attempt: Attempt) -> object:
        try:
            await self._wait_for_signals(attempt)
        except (SignalWaiting, PulseError) as ended:
            return ended
        return await self._do(self._world.act_of(attempt.pair), attempt)

    async def _wait_for_signals(self, attempt: Attempt) -> None:
        workflows = self._world.judge.workflows
        for number, wait in enumerate(self._world.jobs[attempt.pair[0]].waits):
            workflows.waits(attempt.pair, number)
            signal = await attempt.context.wait_for(wait.name, timeout_s=wait.timeout_s)
            workflows.got(self.process, attempt.pair, number, None if signal is None else signal.payload)

    async def _do(self, act: Act, attempt: Attempt) -> object:
        if (
            act.kind == "hang" and not attempt.isolated and self._world.in_hand(self.process)
        ):  # else nobody could kill it
            self.hanging.add(attempt.pair)
            with trio.CancelScope(shield=True):
                await self.process.died.wait()
        if act.kind == "busy":
            self.process.freeze(busy=True)
            self._world.timers.after(act.seconds, lambda: self.process.freeze(busy=False))
            await trio.lowlevel.checkpoint()
        else:
            await trio.sleep(1e9 if act.kind == "hang" else act.seconds)
        match act.kind:
            case "error":
                return ValueError("boom")
            case "retry":
                return RetryAfter(1.0, "not now")
            case "discard":
                return Discard("never")
            case "snooze":
                return Snooze(1.0)
            case "crash" if attempt.isolated:
                return crashed("SIGSEGV", -signal.SIGSEGV)
            case "crash":
                self.process.exit_by(signal.SIGSEGV)
                await trio.sleep_forever()
            case _:
                pass
        return "done"

    def ended(self, attempt: Attempt, ending: Outcome) -> None:
        self.desk.ended(attempt, ending)
        self._wake()

    def look(self, pair: Pair, answer: Callable[[str | None, int | None], None]) -> None:
        answer("somewhere" if self.desk.started_attempt(pair) is not None else None, None)

    async def _expire(self, attempt: Attempt, limit_s: float, reason: StopReason) -> None:
        await trio.sleep(limit_s)
        if attempt.phase is not Phase.ENDED:
            self.stop(attempt.pair, reason)

    def _wake(self) -> None:
        if self._connection is not None:
            self._connection.wake()

    # What the links of their contexts call.

    identity: str | None = None
    reader: Any = SimulatedReader()

    def lease_lost(self, attempt: Attempt) -> bool:
        return attempt.lost

    def fenced(self, attempt: Attempt, phase: FencePhase) -> None:
        """No handler has transactions here."""

    def progressed(self, attempt: Attempt, text: str) -> None:
        """Nor progress."""

    def checkpointed(self, attempt: Attempt, text: str, receipt: Receipt | None = None) -> None:
        self.desk.checkpoints.save(attempt, text, receipt)
        self._wake()

    # Its life, as in the service.

    async def _stay_connected(self) -> None:
        while True:
            try:
                stream, welcome = await self._dialer.dial()
            except WorkerRefusedError as error:
                self._world.judge.fail(f"{self.process}: {error.message}")
                return
            if welcome.session is not None:
                self._session = welcome.session
                if self._parent is not None:
                    self._parent.connected(self.process.pid, welcome.session)
            self._lease_s = welcome.lease_s
            since_s = self.connected_s = trio.current_time()
            self._connection = Connection(
                Observed(stream, self._world, self.process), welcome, self.desk, self, self._world.log
            )
            await self._connection.run()
            self._connection, self.connected_s = None, float("inf")
            if trio.current_time() - since_s >= STABLE_S:
                self._dialer.proved_good()
            await self._dialer.pause()

    def _start_draining(self) -> None:
        if self.desk.draining:
            return
        self.process.leaving = True
        self.desk.drain()
        if self._connection is not None:
            self._connection.send_capacity(0)
        self.changed()
        self._nursery.start_soon(self._drain)

    async def _drain(self) -> None:
        with trio.move_on_after(DRAIN_S):
            await self._empty.wait()
        if self.desk.held:
            for attempt in self.desk.started():
                self.stop(attempt.pair, "drain")
            with trio.move_on_after(OBEY_S):
                await self._empty.wait()
        self.process.exit((1 if self.desk.held else 0) << 8)

    def _hello(self) -> Mapping[str, object]:
        body: dict[str, object] = {
            "protocol": 1, "role": "worker", "worker": self.name, "topics": ["default", "other"],
            "names": sorted(self._handlers),
            "handlers": {name: handler.declared() for name, handler in self._handlers.items()},
            "capacity": 0 if self.desk.draining else self._capacity, "running": self.desk.running_list(),
        }  # fmt: skip
        if self._session is not None:
            body["session"] = self._session
        return body


class _CancelledError(BaseException):
    """What an interrupted handler raises."""


class _Task:
    def __init__(self, scope: trio.CancelScope) -> None:
        self._scope = scope

    def cancel(self) -> None:
        self._scope.cancel()

    def get_coro(self) -> object:
        return None
