"""
The supervisor at work: it passes events to the lifecycle of each child, and carries out the effects.

One task watches each process, one reads each bus, one keeps the time for all. They share the slots and change them only
by ``feed``, which does not await; so no lock is needed.
"""

from __future__ import annotations

import errno
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from pulse.errors import EmbeddedError
from pulse.protocol import bus
from pulse_supervisor.bus.hub import Hub
from pulse_supervisor.children import lifecycle
from pulse_supervisor.children.events import (
    Briefed,
    BusBroken,
    Deadline,
    Effect,
    Event,
    Exited,
    ExtendStart,
    ReadyReceived,
    SendSignal,
    SendStart,
    SendStop,
    Slept,
    Spawn,
    SpawnFailed,
    SpawnOk,
    StartAsked,
    StopAll,
    StopAsked,
    StopNow,
)
from pulse_supervisor.children.lifecycle import EXIT_REFUSED, PINGED, ChildPhase, ChildState
from pulse_supervisor.children.process import ChildProcess, spawn
from pulse_supervisor.children.reaper import Reaper
from pulse_supervisor.children.spec import ChildKind, ChildSpec, LivenessLimits, Placeholder
from pulse_supervisor.children.template import ActorTemplate
from pulse_supervisor.slots import ChildSlot, SupervisorIdentity, describe

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from pulse_supervisor.postgres.child import PostgresChild
    from pulse_supervisor.systemd.notify import Notifier

_PASSING: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM})
_SLEPT_S: Final = (
    0.5  # a wake-up so late means that the supervisor or the machine was stopped: children are not to blame
)
DISPATCHER: Final = "dispatcher"
BURIAL_S: Final = 0.5  # many times what the dispatcher needs to give back what killed workers held
_PING_S: Final = LivenessLimits().ping_s
_DATABASE_POLL_S: Final = 0.01  # PostgreSQL writes its readiness into a file, within a fraction of a second


class ShutdownReason(msgspec.Struct, frozen=True):
    """Why everything stops: the exit code, and a message if it is a failure."""

    exit_code: int
    message: str | None = None


class ChildRunner:
    """
    The slots, and the tasks that serve them.

    Args:
        identity: This supervisor.
        shared: Descriptors that children inherit, by purpose.
        nursery: Runs all tasks.
        notifier: Notifies the service manager.
        log: Structured log.

    Attributes:
        slots: By the names of their children, in the order of their start.
        shutdown: Why everything must stop; None while it goes on.
        hub: Routes between the actors.
        reaper: Reaps orphans.
    """

    def __init__(
        self,
        identity: SupervisorIdentity,
        shared: Mapping[Placeholder, int],
        nursery: trio.Nursery,
        notifier: Notifier,
        log: FilteringBoundLogger,
    ) -> None:
        self.slots: dict[str, ChildSlot] = {}
        self.shutdown: ShutdownReason | None = None
        self.hub = Hub(self._heard, self.describe, log.debug)
        self.reaper = Reaper(self._is_child)
        self._template = ActorTemplate(log)
        self._identity = identity
        self._shared = shared
        self._notifier = notifier
        self._log = log
        self._settings: Mapping[str, object] | None = None
        self._draining = False
        self._hurried = False
        self._pool_ended_s = float("-inf")
        self._nursery = nursery
        self._changed = trio.Event()
        self._rescheduled = trio.Event()
        self._wake_s = 0.0

    def start(self, child: ChildSpec, database: PostgresChild | None = None) -> None:
        """Give a child its slot, and start it; *database*: the embedded PostgreSQL, if it is the postmaster."""
        self.slots[child.name] = ChildSlot(child, database)
        self.feed(child.name, StartAsked())

    def describe(self) -> dict[str, object]:
        """The supervisor's own part of ``status``."""
        return describe(self._identity, self.slots.values(), trio.current_time())

    def feed(self, name: str, event: Event) -> None:
        """Let the lifecycle handle *event* of a child, and carry out the effects."""
        slot = self.slots[name]
        events = [event]
        while events:
            before = slot.state
            effects = slot.step(events.pop(0), trio.current_time())
            if slot.state.phase is not before.phase:
                self._note(slot, before)
            follow_ups = [self._carry_out(slot, effect) for effect in effects]
            events += [follow_up for follow_up in follow_ups if follow_up is not None]
        deadline_s = slot.state.deadline_s
        if deadline_s is not None and deadline_s < self._wake_s:
            self._rescheduled.set()

    def brief(self, settings: Mapping[str, object]) -> None:
        """Send the settings to every actor that waits for them, and from now on to each new one."""
        self._settings = settings
        for name, slot in self.slots.items():
            if slot.state.phase is ChildPhase.GREETED:
                self._send_start(slot, boot=slot.state.boot)
                self.feed(name, Briefed())

    def stop(self, reason: ShutdownReason) -> None:
        """Stop everything; the first reason counts."""
        if self.shutdown is None:
            self.shutdown = reason
            self._announce()

    def drain_dispatcher(self) -> None:
        """Tell the dispatcher to stop claiming; one that starts later gets the same hint."""
        if not self._draining:
            self._draining = True
            self._tell_of_drain()

    def ask_to_stop(self, name: str) -> None:
        """Begin to stop a child for good; in a hurry, with all of its kind."""
        if not self._hurried:
            self.feed(name, StopAsked())
            return
        kind = self.slots[name].child.kind
        # A dispatcher killed with the pools could not end their attempts: the next one would charge a crash.
        stop_now = StopNow(self._pool_ended_s + BURIAL_S if kind is ChildKind.ACTOR else 0.0)
        for slot in self.slots_of(kind):
            self.feed(slot.child.name, stop_now)

    def hurry(self) -> None:
        """Stop the pools at once, and the others as soon as ``ask_to_stop`` is called for them."""
        self._hurried = True
        self.drain_dispatcher()
        pools = self.slots_of(ChildKind.POOL)
        asked = [slot for slot in self.slots.values() if slot.state.phase is ChildPhase.STOPPING]
        # While a pool runs, an actor that stops will be started again, and is needed when workers die.
        for slot in asked if all(pool.is_gone for pool in pools) else pools:
            self.ask_to_stop(slot.child.name)

    async def end_template(self) -> None:
        """No more actors will be started."""
        await self._template.end()

    def are_running(self, kind: ChildKind) -> bool:
        """Whether all children of this kind run."""
        return all(slot.state.phase is ChildPhase.RUNNING for slot in self.slots_of(kind))

    def are_gone(self, names: Sequence[str]) -> bool:
        """Whether these children are stopped, or have failed."""
        return all(self.slots[name].is_gone for name in names)

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition on phases or on the shutdown."""
        while not condition():
            await self._changed.wait()

    def _announce(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _note(self, slot: ChildSlot, before: ChildState) -> None:
        """Report a change of phase: to the log, the service manager and the waiting tasks."""
        state, name = slot.state, slot.child.name
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
        if self.shutdown is None:
            missing = [f"{other.child.name} {other.state.shown}" for other in self._not_running()]
            self._notifier.status(", ".join(missing) or "ready")
        self._announce()

    def slots_of(self, kind: ChildKind) -> list[ChildSlot]:
        """The slots of one kind of child, in the order of their start."""
        return [slot for slot in self.slots.values() if slot.child.kind is kind]

    def _not_running(self) -> list[ChildSlot]:
        return [slot for slot in self.slots.values() if slot.state.phase is not ChildPhase.RUNNING]

    def _carry_out(self, slot: ChildSlot, effect: Effect) -> Event | None:
        """Carry out an effect; returns the event that follows at once, if one does."""
        match effect:
            case Spawn() if slot.database is not None:
                self._nursery.start_soon(self._spawn_database, slot, slot.database)
            case Spawn() if slot.child.forked:
                self._nursery.start_soon(self._fork, slot)
            case Spawn():
                return self._spawn(slot)
            case SendStart(boot) if self._settings is not None:
                self._send_start(slot, boot=boot)
                return Briefed()
            case SendStop(grace_s) if slot.link is not None:
                slot.link.send_nowait("stop", None, bus.body_of(bus.ActorStop(grace_s)))
            case SendSignal(number) if slot.process is not None:
                if number is signal.SIGKILL:
                    reason = slot.state.fault or "it did not stop in time, or was to stop at once"
                    self._log.warning("child_killed", name=slot.child.name, pid=slot.process.pid, reason=reason)
                slot.process.send_signal(number)
            case ExtendStart(by_s):
                self._notifier.extend_start(by_s)
            case StopAll(exit_code, message):
                self.stop(ShutdownReason(exit_code, message))
            case _:
                pass  # a frame or signal for a process that has ended, or settings that are not there yet
        return None

    def _spawn(self, slot: ChildSlot) -> SpawnOk | SpawnFailed:
        try:
            process = spawn(slot.child, self._shared)
        except OSError as error:
            return _failed(error)
        return self._begun(slot, process)

    async def _fork(self, slot: ChildSlot) -> None:
        self.reaper.pause()
        try:
            process = await self._template.spawn(slot.child, self._shared)
        except OSError as error:
            self._heard(slot.child.name, _failed(error))
        else:
            if slot.state.phase is ChildPhase.SPAWNING:
                self.feed(slot.child.name, self._begun(slot, process))
            else:  # it must stop meanwhile, or another one was faster
                await process.end()
        finally:
            self.reaper.resume()

    def _begun(self, slot: ChildSlot, process: ChildProcess) -> SpawnOk:
        link = slot.fill(process)
        self._nursery.start_soon(self._watch, slot, process)
        if link is not None:
            self.hub.attach(link)
            self._nursery.start_soon(self.hub.serve, link)
        return SpawnOk(process.pid)

    async def _spawn_database(self, slot: ChildSlot, database: PostgresChild) -> None:
        name = slot.child.name
        try:
            await trio.to_thread.run_sync(database.settle, abandon_on_cancel=True)
        except EmbeddedError as error:
            self._heard(name, SpawnFailed(error.message))
            return
        if slot.state.phase is not ChildPhase.SPAWNING:
            return  # it must stop meanwhile
        self.feed(name, self._spawn(slot))
        if (process := slot.process) is None:
            return
        # At boot a person waits for an answer; later, giving up on a long recovery gains nothing.
        with trio.move_on_after(database.start_s if slot.state.boot else float("inf")) as waiting:
            while not database.is_ready(process.pid):
                await trio.sleep(_DATABASE_POLL_S)
                if slot.process is not process:
                    return  # it ended, which is handled elsewhere
        if not waiting.cancelled_caught:
            self._heard(name, ReadyReceived())
        else:
            self.stop(ShutdownReason(EXIT_REFUSED, f"PostgreSQL is not ready in time: {database.last_words()}"))

    def _send_start(self, slot: ChildSlot, *, boot: bool) -> None:
        if slot.link is not None:
            embedded = any(one.database is not None for one in self.slots.values())
            slot.link.brief_nowait(bus.body_of(bus.ActorStart(dict(self._settings or {}), boot, embedded)))
            if self._draining and slot.child.name == DISPATCHER:
                self._tell_of_drain()

    def _tell_of_drain(self) -> None:
        self.hub.tell_nowait(DISPATCHER, bus.HintEvent.DRAIN)

    def _heard(self, name: str, event: Event) -> None:
        """Handle what a child sends; an event that its phase does not allow is the child's fault."""
        state = self.slots[name].state
        if not lifecycle.accepts(state, event):
            event = BusBroken(f"{type(event).__name__} while {state.phase.value}")
        if lifecycle.accepts(state, event):
            self.feed(name, event)

    async def _watch(self, slot: ChildSlot, process: ChildProcess) -> None:
        """Wait for the end of a process and report it, after its last frames were read."""
        exited = await process.wait_exited()
        if slot.link is not None:
            self.hub.hang_up(slot.link)
        slot.clear()
        if slot.child.kind is ChildKind.POOL:
            self._pool_ended_s = trio.current_time()
        self.reaper.reap_orphans()
        self._report_exit(slot, process.pid, exited)
        if slot.database is not None:
            exited = slot.database.judge(exited)
        self.feed(slot.child.name, exited)

    def _report_exit(self, slot: ChildSlot, pid: int, exited: Exited) -> None:
        is_expected = slot.state.phase is ChildPhase.STOPPING and slot.state.fault is None
        tell = self._log.info if is_expected else self._log.warning
        tell("child_exited", name=slot.child.name, pid=pid, how=str(exited), expected=is_expected)

    def _is_child(self, pid: int) -> bool:
        return any(slot.process is not None and slot.process.pid == pid for slot in self.slots.values())

    async def keep_time(self) -> None:
        """Ping once a second, and send Deadline when it is due; for ever."""
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
        found = {name: slot.state.deadline_s for name, slot in self.slots.items()}
        return {name: deadline_s for name, deadline_s in found.items() if deadline_s is not None}

    def _tell_all(self, event: Event) -> None:
        for name in self.slots:
            self.feed(name, event)

    def _ping_all(self, now_s: float) -> None:
        pinged = [slot for slot in self.slots.values() if slot.state.phase in PINGED and slot.link is not None]
        for slot in pinged:
            if slot.link is not None and slot.child.limits is not None:
                slot.link.ping_nowait()
        actors = self.slots_of(ChildKind.ACTOR)
        # An actor that was silent for too long has left these phases.
        if actors and all(slot.state.phase in PINGED for slot in actors):
            self._notifier.alive(now_s)


def _failed(error: OSError) -> SpawnFailed:
    return SpawnFailed(str(error), passes=error.errno in _PASSING)
