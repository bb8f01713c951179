"""
The supervisor at work: it feeds the machine with what happens, and does what the machine decides.

One task watches each process, one reads each bus, one keeps the time for all. They share the seats and change them only
by ``feed``, which is plain code between two awaits; so nothing here needs a lock.
"""

from __future__ import annotations

import errno
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from pulse.errors import EmbeddedError
from pulse_supervisor.bus.hub import Hub
from pulse_supervisor.bus.link import BusLink
from pulse_supervisor.children import lifecycle
from pulse_supervisor.children.events import (
    Briefed,
    BusBroken,
    Deadline,
    Effect,
    Event,
    Exited,
    ReadyReceived,
    SendStart,
    SendStop,
    Signal,
    Slept,
    Spawn,
    SpawnFailed,
    SpawnOk,
    StopAll,
    StopAsked,
    StopNow,
)
from pulse_supervisor.children.lifecycle import EXIT_REFUSED, PINGED, ChildPhase, ChildState
from pulse_supervisor.children.process import ChildProcess, spawn
from pulse_supervisor.children.reaper import Reaper
from pulse_supervisor.children.spec import ChildKind, ChildSpec, LivenessLimits, Placeholder
from pulse_supervisor.slots import ChildSlot, SupervisorIdentity, describe

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from pulse_supervisor.postgres.child import PostgresChild
    from pulse_supervisor.systemd.notify import Notifier

_PASSING: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM})
_SLEPT_S: Final = 0.5  # a wake-up that is so late was not the children's doing: we, or the whole machine, stood still
DISPATCHER: Final = "dispatcher"
BURIAL_S: Final = 0.5  # what the dispatcher needs, many times over, to give back what killed workers held
_PING_S: Final = LivenessLimits().ping_s
_DATABASE_POLL_S: Final = 0.01  # PostgreSQL tells its readiness in a file, within a fraction of a second


@dataclass(frozen=True, slots=True)
class ShutdownReason:
    """Why everything is stopped: the exit code, and one line for a person where it is a failure."""

    exit_code: int
    message: str | None = None


class ChildRunner:
    """
    The seats, and the tasks that attend to them.

    Args:
        identity: Which supervisor this is.
        shared: Descriptors that children inherit, by what they are for.
        notifier: Speaks to the service manager.
        log: Structured log.

    Attributes:
        seats: By the names of their children, in the order of their start.
        verdict: Why everything is to stop; None while it goes on.
        database: The embedded PostgreSQL, None without one.
        hub: Routes between the actors.
        reaper: Buries orphans.

    """

    def __init__(
        self,
        identity: SupervisorIdentity,
        shared: Mapping[Placeholder, int],
        notifier: Notifier,
        log: FilteringBoundLogger,
    ) -> None:
        self.seats: dict[str, ChildSlot] = {}
        self.verdict: ShutdownReason | None = None
        self.database: PostgresChild | None = None
        self.hub = Hub(self._heard, self.describe, log.debug)
        self.reaper = Reaper(self._is_child)
        self._identity = identity
        self._shared = shared
        self._notifier = notifier
        self._log = log
        self._settings: Mapping[str, object] | None = None
        self._draining = False
        self._hurried = False
        self._pool_ended_s = float("-inf")
        self._nursery: trio.Nursery | None = None
        self._changed = trio.Event()
        self._rescheduled = trio.Event()
        self._wake_s = 0.0

    def attend(self, nursery: trio.Nursery) -> None:
        """Use *nursery* for all tasks; to be called once, before any child is started."""
        self._nursery = nursery
        nursery.start_soon(self._keep_time)

    def add(self, child: ChildSpec) -> None:
        """Give a child its seat."""
        self.seats[child.name] = ChildSlot(child)

    def describe(self) -> dict[str, object]:
        """The supervisor's own part of ``status``."""
        return describe(self._identity, self.seats.values(), trio.current_time())

    def feed(self, name: str, event: Event) -> None:
        """Let the machine decide what *event* means for a child, and do it."""
        seat = self.seats[name]
        events = [event]
        while events:
            before = seat.state
            seat.state, effects = lifecycle.step(seat.child, before, events.pop(0), trio.current_time())
            if seat.state.phase is not before.phase:
                self._note(seat, before)
            follow_ups = [self._carry_out(seat, effect) for effect in effects]
            events += [follow_up for follow_up in follow_ups if follow_up is not None]
        deadline_s = seat.state.deadline_s
        if deadline_s is not None and deadline_s < self._wake_s:
            self._rescheduled.set()

    def brief(self, settings: Mapping[str, object]) -> None:
        """Send the settings to every actor that waits for them, and from now on to each that says hello."""
        self._settings = settings
        for name, seat in self.seats.items():
            if seat.state.phase is ChildPhase.GREETED:
                self._send_start(seat, boot=seat.state.boot)
                self.feed(name, Briefed())

    def stop(self, verdict: ShutdownReason) -> None:
        """Have everything stopped; the first verdict counts."""
        if self.verdict is None:
            self.verdict = verdict
            self._announce()

    def drain_dispatcher(self) -> None:
        """Have the dispatcher claim no more; one that is started after this is told too."""
        if not self._draining:
            self._draining = True
            self._tell_of_drain()

    def ask_to_stop(self, name: str) -> None:
        """Begin to stop a child for good; in a hurry, with all of its kind."""
        if not self._hurried:
            self.feed(name, StopAsked())
            return
        kind = self.seats[name].child.kind
        # Killed with the pools, the dispatcher could not bury them: the next one would charge their jobs with a crash.
        stop_now = StopNow(self._pool_ended_s + BURIAL_S if kind is ChildKind.ACTOR else 0.0)
        for seat in self._seats_of(kind):
            self.feed(seat.child.name, stop_now)

    def hurry(self) -> None:
        """Stop at once the pools, and the others as soon as their turn comes, as ``ask_to_stop`` is called for them."""
        self._hurried = True
        self.drain_dispatcher()
        pools = self._seats_of(ChildKind.POOL)
        asked = [seat for seat in self.seats.values() if seat.state.phase is ChildPhase.STOPPING]
        # While a pool is there, an actor can be stopping only to be started again, and is needed for the burials.
        for seat in asked if all(pool.is_gone for pool in pools) else pools:
            self.ask_to_stop(seat.child.name)

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that changes with a child's phase, or with the verdict."""
        while not condition():
            await self._changed.wait()

    def _announce(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _note(self, seat: ChildSlot, before: ChildState) -> None:
        """Tell of a change of phase: the log what matters, the service manager in one line, the waiters all."""
        state, name = seat.state, seat.child.name
        match state.phase:
            case ChildPhase.RUNNING:
                start_ms = round((trio.current_time() - state.spawned_s) * 1000)
                self._log.info("child_running", name=name, pid=state.pid, restarts=state.restarts, start_ms=start_ms)
            case ChildPhase.WAITING | ChildPhase.FAILED:
                self._log.error(f"child_{state.phase.value}", name=name, reason=state.fault)
            case ChildPhase.STOPPING if state.fault is not None:
                self._log.error("child_faulty", name=name, pid=before.pid, reason=state.fault)
            case phase:
                self._log.debug(f"child_{phase.value}", name=name, pid=state.pid)
        if self.verdict is None:
            missing = [f"{other.child.name} {other.state.shown}" for other in self._not_running()]
            self._notifier.status(", ".join(missing) or "ready")
        self._announce()

    def _seats_of(self, kind: ChildKind) -> list[ChildSlot]:
        return [seat for seat in self.seats.values() if seat.child.kind is kind]

    def _not_running(self) -> list[ChildSlot]:
        return [seat for seat in self.seats.values() if seat.state.phase is not ChildPhase.RUNNING]

    def _carry_out(self, seat: ChildSlot, effect: Effect) -> Event | None:
        """Do what the machine decided; the answer is what came of it at once."""
        match effect:
            case Spawn() if seat.child.kind is ChildKind.DATABASE:
                self._tasks.start_soon(self._spawn_database, seat)
            case Spawn():
                return self._spawn(seat)
            case SendStart(boot) if self._settings is not None:
                self._send_start(seat, boot=boot)
                return Briefed()
            case SendStop(grace_s) if seat.link is not None:
                seat.link.send_nowait("stop", None, {"grace_s": grace_s})
            case Signal(number) if seat.process is not None:
                if number is signal.SIGKILL:
                    reason = seat.state.fault or "it did not stop in time, or was to stop at once"
                    self._log.warning("child_killed", name=seat.child.name, pid=seat.process.pid, reason=reason)
                seat.process.send_signal(number)
            case StopAll(exit_code, message):
                self.stop(ShutdownReason(exit_code, message))
            case _:
                pass  # a frame or a signal for a process that has ended already, settings that are not there yet
        return None

    @property
    def _tasks(self) -> trio.Nursery:
        assert self._nursery is not None, "attend() comes first"  # noqa: S101 - an order within this package
        return self._nursery

    def _spawn(self, seat: ChildSlot) -> SpawnOk | SpawnFailed:
        try:
            process = spawn(seat.child, self._shared)
        except OSError as error:
            return SpawnFailed(str(error), passes=error.errno in _PASSING)
        seat.process = process
        self._tasks.start_soon(self._watch, seat, process)
        if process.bus is not None:
            seat.link = BusLink(seat.child.name, process.pid, process.bus)
            self.hub.attach(seat.link)
            self._tasks.start_soon(self.hub.serve, seat.link)
        return SpawnOk(process.pid)

    async def _spawn_database(self, seat: ChildSlot) -> None:
        assert self.database is not None  # noqa: S101 - its child is made from it
        name = seat.child.name
        try:
            await trio.to_thread.run_sync(self.database.settle, abandon_on_cancel=True)
        except EmbeddedError as error:
            self._heard(name, SpawnFailed(error.message))
            return
        if seat.state.phase is not ChildPhase.SPAWNING:
            return  # it was to stop meanwhile
        self.feed(name, self._spawn(seat))
        if (process := seat.process) is None:
            return
        # At boot somebody waits for an answer; later nothing is gained by giving up on a long recovery.
        with trio.move_on_after(self.database.start_s if seat.state.boot else float("inf")) as waiting:
            while not self.database.is_ready(process.pid):
                await trio.sleep(_DATABASE_POLL_S)
                if seat.process is not process:
                    return  # it ended, and that is dealt with elsewhere
        if not waiting.cancelled_caught:
            self._heard(name, ReadyReceived())
        else:
            self.stop(ShutdownReason(EXIT_REFUSED, f"PostgreSQL is not ready in time: {self.database.last_words()}"))

    def _send_start(self, seat: ChildSlot, *, boot: bool) -> None:
        if seat.link is not None:
            seat.link.send_nowait("start", None, {"settings": self._settings, "boot": boot})
            seat.link.briefed = True
            if self._draining and seat.child.name == DISPATCHER:
                self._tell_of_drain()

    def _tell_of_drain(self) -> None:
        self.hub.tell_nowait(DISPATCHER, "drain", {})

    def _heard(self, name: str, event: Event) -> None:
        """What a child says or does of its own accord; what it cannot mean is its fault, not ours."""
        state = self.seats[name].state
        if not lifecycle.accepts(state, event):
            event = BusBroken(f"{type(event).__name__} while {state.phase.value}")
        if lifecycle.accepts(state, event):
            self.feed(name, event)

    async def _watch(self, seat: ChildSlot, process: ChildProcess) -> None:
        """Wait for the end of a process and say so, after its last words on the bus have been heard."""
        exited = await process.wait_exited()
        if seat.link is not None:
            self.hub.hang_up(seat.link)
        seat.process, seat.link = None, None
        if seat.child.kind is ChildKind.POOL:
            self._pool_ended_s = trio.current_time()
        self.reaper.reap_orphans()
        self._report_exit(seat, process.pid, exited)
        if seat.child.kind is ChildKind.DATABASE and self.database is not None:
            exited = self.database.judge(exited)
        self.feed(seat.child.name, exited)

    def _report_exit(self, seat: ChildSlot, pid: int, exited: Exited) -> None:
        is_expected = seat.state.phase is ChildPhase.STOPPING and seat.state.fault is None
        tell = self._log.info if is_expected else self._log.warning
        tell("child_exited", name=seat.child.name, pid=pid, how=str(exited), expected=is_expected)

    def _is_child(self, pid: int) -> bool:
        return any(seat.process is not None and seat.process.pid == pid for seat in self.seats.values())

    async def _keep_time(self) -> None:
        """Ping once a second, and send Deadline to whom it is due."""
        ping_due_s = trio.current_time() + _PING_S
        while True:
            self._wake_s = min([ping_due_s, *self._deadlines().values()])
            self._rescheduled = trio.Event()
            with trio.move_on_at(self._wake_s):
                await self._rescheduled.wait()
            now_s = trio.current_time()
            slept_s = now_s - self._wake_s
            if slept_s > _SLEPT_S:
                self._log.warning("supervisor_slept", slept_s=round(slept_s, 3))
                self._tell_all(Slept(slept_s))
            for name, deadline_s in self._deadlines().items():
                if deadline_s <= now_s:
                    self.feed(name, Deadline())
            if now_s >= ping_due_s:
                self._ping_all(now_s)
                ping_due_s = now_s + _PING_S

    def _deadlines(self) -> dict[str, float]:
        found = {name: seat.state.deadline_s for name, seat in self.seats.items()}
        return {name: deadline_s for name, deadline_s in found.items() if deadline_s is not None}

    def _tell_all(self, event: Event) -> None:
        for name in self.seats:
            self.feed(name, event)

    def _ping_all(self, now_s: float) -> None:
        pinged = [seat for seat in self.seats.values() if seat.state.phase in PINGED and seat.link is not None]
        for seat in pinged:
            if seat.link is not None and seat.child.limits is not None:
                seat.link.ping_nowait()
        actors = self._seats_of(ChildKind.ACTOR)
        # Whoever was silent for too long is not in these phases any more.
        if actors and all(seat.state.phase in PINGED for seat in actors):
            self._notifier.alive(now_s)
