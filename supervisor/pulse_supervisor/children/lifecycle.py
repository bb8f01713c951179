"""
The life of one child, decided purely: (child, state, event, now_s) -> (state, effects).

Theory of operation
-------------------
``TABLE`` lists, for each phase, which events can happen and how each is handled; a missing key is the error. Nothing
here reads a clock, sends a byte or touches a process: ``runner`` carries out the effects, and their results return as
events. So every history, however unlikely, is a list in a test.

    STOPPED --StartAsked--> SPAWNING --SpawnOk--> SPAWNED --HelloReceived--> GREETED
    GREETED --Briefed--> PRIMING --ReadyReceived--> RUNNING
    any of these --Exited--> WAITING (restart due later) or SPAWNING (at once) or FAILED (one restart too many, refused)
    any of these --StopAsked, StopNow, RestartAsked, a fault--> STOPPING --Exited--> STOPPED or SPAWNING or WAITING

A state holds at most two times: ``due_s`` (the next step of the stop ladder, the restart, the boot deadline) and
``silent_by_s`` (when a silent actor counts as dead). The loop sleeps until the earliest of all children and sends
Deadline; there are no timers to cancel, hence none that fire late.

Two rules hold everywhere: Spawn is decided only while no process is alive (``pid`` is None), and SIGKILL is sent only
at the end of a ladder, by StopNow, or for a fault (silence, a stuck turn, a broken bus), where other signals are
useless.
"""

from __future__ import annotations

import enum
import signal
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias, TypeVar, cast

import msgspec
from msgspec.structs import replace

from pulse.system.restart_policy import RestartLog
from pulse_supervisor.children.events import (
    Briefed,
    BusBroken,
    Deadline,
    Effect,
    Event,
    Exited,
    ExtendStart,
    HelloReceived,
    PongReceived,
    ReadyReceived,
    RefusalReceived,
    RestartAsked,
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
from pulse_supervisor.children.spec import ChildKind, ChildSpec, StopStep

EXIT_REFUSED: Final = 1  # of the supervisor: it cannot work with the configuration or the database
EXIT_CONFIG: Final = 78  # of the supervisor: EX_CONFIG; it can never work with what the configuration names
EXIT_RESTART_LIMIT: Final = 70  # of the supervisor: EX_SOFTWARE; the service manager should start everything afresh
CHILD_LACKS_DATABASE: Final = 75  # of a child: EX_TEMPFAIL; never a reason to give up
CHILD_REFUSES: Final = 78  # of a child: EX_CONFIG; another start cannot help
CHILD_MEETS_POOLER: Final = 76  # of a child: EX_PROTOCOL; nor later


class ChildPhase(enum.Enum):
    """Where a child is in its life."""

    STOPPED = "stopped"
    SPAWNING = "spawning"  # ordered, not there yet
    SPAWNED = "spawned"  # a process without a hello
    GREETED = "greeted"  # waits for its settings
    PRIMING = "priming"  # reads what it needs
    RUNNING = "running"
    STOPPING = "stopping"
    WAITING = "waiting"  # dead; a restart is due
    FAILED = "failed"  # dead for good, or it cannot be killed


SHOWN: Final[Mapping[ChildPhase, str]] = {
    ChildPhase.STOPPED: "stopped",
    ChildPhase.SPAWNING: "starting",
    ChildPhase.SPAWNED: "starting",
    ChildPhase.GREETED: "starting",
    ChildPhase.PRIMING: "starting",
    ChildPhase.RUNNING: "running",
    ChildPhase.STOPPING: "stopping",
    ChildPhase.WAITING: "failed",
    ChildPhase.FAILED: "failed",
}
PINGED: Final = frozenset({ChildPhase.PRIMING, ChildPhase.RUNNING})  # before its settings an actor only waits for them


class ChildState(msgspec.Struct, frozen=True):
    """
    The state of one child.

    Attributes:
        phase: Its phase.
        pid: Its process, None when none is alive.
        spawned_s: When its process was spawned.
        due_s: The phase's own deadline, None: never.
        silent_by_s: When silence counts as death, None: it may be silent.
        rungs: The remaining steps of the stop ladder.
        sent: Signals sent to this process.
        again: Whether it starts again after it has stopped.
        fault: Why it is being killed, or the reason that it gave before it exited.
        boot: Whether its present start, else its next one, is its first.
        restarts: How often it was started again.
        log: The restarts that count against the intensity.
    """

    phase: ChildPhase = ChildPhase.STOPPED
    pid: int | None = None
    spawned_s: float = 0.0
    due_s: float | None = None
    silent_by_s: float | None = None
    rungs: tuple[StopStep, ...] = ()
    sent: tuple[signal.Signals, ...] = ()
    again: bool = False
    fault: str | None = None
    boot: bool = True
    restarts: int = 0
    log: RestartLog = RestartLog()

    @property
    def deadline_s(self) -> float | None:
        """When Deadline must be sent, if no other event comes first."""
        times = [time_s for time_s in (self.due_s, self.silent_by_s) if time_s is not None]
        return min(times, default=None)

    @property
    def shown(self) -> str:
        """The phase in the words of ``status``."""
        return SHOWN[self.phase]


Outcome: TypeAlias = tuple[ChildState, tuple[Effect, ...]]
Handler: TypeAlias = Callable[[ChildSpec, ChildState, Event, float], Outcome]
EventT = TypeVar("EventT", bound=Event)


class IllegalEventError(Exception):
    """An event that cannot happen in this phase."""


def step(child: ChildSpec, state: ChildState, event: Event, now_s: float) -> Outcome:
    """
    The next state of *child*, and the effects to carry out.

    Args:
        child: The child.
        state: Its state.
        event: What happened.
        now_s: When, monotonic.

    Raises:
        IllegalEventError: The event cannot happen in this phase.
    """
    handler = TABLE[state.phase].get(type(event))
    if handler is None:
        raise IllegalEventError(f"{child.name}: {type(event).__name__} while {state.phase.value}")
    return handler(child, state, event, now_s)


def accepts(state: ChildState, event: Event) -> bool:
    """Whether *event* can happen in this phase; check it for events that the child itself causes."""
    return type(event) in TABLE[state.phase]


def _stay(_child: ChildSpec, state: ChildState, _event: Event, _now_s: float) -> Outcome:
    return state, ()


def _spawn(_child: ChildSpec, state: ChildState, _event: Event, _now_s: float) -> Outcome:
    restarts = state.restarts if state.boot else state.restarts + 1
    return ChildState(ChildPhase.SPAWNING, boot=state.boot, restarts=restarts, log=state.log), (Spawn(),)


def _spawned(child: ChildSpec, state: ChildState, event: SpawnOk, now_s: float) -> Outcome:
    phase = ChildPhase.RUNNING if child.kind in {ChildKind.POOL, ChildKind.SERVICE} else ChildPhase.SPAWNED
    due_s = now_s + child.limits.hello_s if child.limits else None
    return replace(state, phase=phase, pid=event.pid, spawned_s=now_s, due_s=due_s), ()


def _spawn_failed(child: ChildSpec, state: ChildState, event: SpawnFailed, now_s: float) -> Outcome:
    if event.passes:  # not counted, however often: the supervisor must still be there when the shortage is over
        return _later(child, state, event.reason, now_s)
    return _restart(child, state, event.reason, now_s)


def _later(child: ChildSpec, state: ChildState, cause: str, now_s: float) -> Outcome:
    return replace(_dead(state, ChildPhase.WAITING, cause), due_s=now_s + child.delay.longest_s), ()


def _greeted(_child: ChildSpec, state: ChildState, _event: HelloReceived, _now_s: float) -> Outcome:
    return replace(state, phase=ChildPhase.GREETED, due_s=None), (SendStart(boot=state.boot),)


def _briefed(child: ChildSpec, state: ChildState, _event: Briefed, now_s: float) -> Outcome:
    assert child.limits is not None  # noqa: S101 - only children on the bus are greeted
    # After the first start the database may be away for any time; the actor waits for it, and answers pings.
    due_s = now_s + child.limits.ready_s if state.boot else None
    return replace(state, phase=ChildPhase.PRIMING, due_s=due_s, silent_by_s=now_s + child.limits.priming_pong_s), ()


def _ready(child: ChildSpec, state: ChildState, _event: ReadyReceived, now_s: float) -> Outcome:
    silent_by_s = now_s + child.limits.pong_s if child.limits else None
    return replace(state, phase=ChildPhase.RUNNING, due_s=None, silent_by_s=silent_by_s), ()


def _pong(child: ChildSpec, state: ChildState, event: PongReceived, now_s: float) -> Outcome:
    assert child.limits is not None  # noqa: S101 - only children on the bus are pinged
    if event.turn_age_s > child.limits.turn_s:
        return _kill(state, f"stuck: its turn takes {event.turn_age_s:.0f} s already", now_s, child)
    limit_s = child.limits.pong_s if state.phase is ChildPhase.RUNNING else child.limits.priming_pong_s
    heard = replace(state, silent_by_s=now_s + limit_s)
    if event.upgrades and state.due_s is not None:  # after a restart it would begin anew
        return replace(heard, due_s=now_s + child.limits.ready_s), (ExtendStart(child.limits.ready_s),)
    return heard, ()


def _refused(_child: ChildSpec, state: ChildState, event: RefusalReceived, _now_s: float) -> Outcome:
    return replace(state, fault=event.message), ()


def _bus_broken(child: ChildSpec, state: ChildState, event: BusBroken, now_s: float) -> Outcome:
    return _kill(state, f"broken bus: {event.reason}", now_s, child)


def _hello_overdue(child: ChildSpec, state: ChildState, _event: Deadline, now_s: float) -> Outcome:
    return _overdue(child, state, "no hello", now_s)


def _silent_or_overdue(child: ChildSpec, state: ChildState, _event: Deadline, now_s: float) -> Outcome:
    if state.silent_by_s is not None and state.silent_by_s <= now_s:
        return _kill(state, "silent: no answer to pings", now_s, child)
    return _overdue(child, state, "not ready", now_s)


def _overdue(child: ChildSpec, state: ChildState, what: str, now_s: float) -> Outcome:
    """At boot a person waits, so it becomes a message; later it is one more fault."""
    after = f"{what} {now_s - state.spawned_s:.0f} s after its start"
    stopped, effects = _kill(state, after, now_s, child)
    if state.boot:
        return stopped, (*effects, StopAll(EXIT_REFUSED, f"{child.name} does not start: {after}"))
    return stopped, effects


def _kill(state: ChildState, fault: str, now_s: float, child: ChildSpec) -> Outcome:
    killing = replace(state, phase=ChildPhase.STOPPING, again=True, fault=fault, silent_by_s=None)
    return _climb(replace(killing, rungs=child.at_once[-1:]), now_s)


def _stop(child: ChildSpec, state: ChildState, _event: Event, now_s: float) -> Outcome:
    # An actor that is not ready has nothing to save, and may not react for a long time.
    listens = state.phase is ChildPhase.RUNNING
    rungs = tuple(rung for rung in child.stop if rung.signal is not None or listens)
    return _climb(
        replace(state, phase=ChildPhase.STOPPING, rungs=rungs, again=False, fault=None, silent_by_s=None), now_s
    )


def _restart_asked(child: ChildSpec, state: ChildState, event: RestartAsked, now_s: float) -> Outcome:
    stopping, effects = _stop(child, state, event, now_s)
    return replace(stopping, again=True), effects


def _stop_now(child: ChildSpec, state: ChildState, event: StopNow, now_s: float) -> Outcome:
    rungs = tuple(rung for rung in child.at_once if rung.signal not in state.sent)
    stopping = replace(state, phase=ChildPhase.STOPPING, again=False, silent_by_s=None)
    if not rungs:
        return stopping, ()
    if event.not_before_s > now_s:
        return replace(stopping, rungs=rungs, due_s=event.not_before_s), ()
    return _climb(replace(stopping, rungs=rungs), now_s)


def _stop_for_good(_child: ChildSpec, state: ChildState, _event: StopAsked, _now_s: float) -> Outcome:
    return replace(state, again=False), ()


def _next_rung(child: ChildSpec, state: ChildState, _event: Deadline, now_s: float) -> Outcome:
    if state.rungs:
        return _climb(state, now_s)
    failed = replace(state, phase=ChildPhase.FAILED, due_s=None, fault="it does not die of SIGKILL")
    if state.again:  # two at the same time are not allowed
        return failed, (StopAll(EXIT_RESTART_LIMIT, f"{child.name} (pid {state.pid}) does not die of SIGKILL"),)
    return failed, ()


def _climb(state: ChildState, now_s: float) -> Outcome:
    rung, rungs = state.rungs[0], state.rungs[1:]
    if rung.signal is None:
        return replace(state, rungs=rungs, due_s=now_s + rung.wait_s), (SendStop(rung.wait_s),)
    sent = (*state.sent, rung.signal)
    return replace(state, rungs=rungs, due_s=now_s + rung.wait_s, sent=sent), (SendSignal(rung.signal),)


def _died(child: ChildSpec, state: ChildState, event: Exited, now_s: float) -> Outcome:
    if event.hopeless or event.code in {CHILD_REFUSES, CHILD_MEETS_POOLER}:
        message = event.hopeless or state.fault or f"{child.name} refuses to run (exit code {event.code})"
        code = EXIT_CONFIG if event.code == CHILD_MEETS_POOLER else EXIT_REFUSED
        return _dead(state, ChildPhase.FAILED, message), (StopAll(code, message),)
    if not child.restart.applies(normal=event.code == 0):
        return _dead(state, ChildPhase.STOPPED), ()
    if event.code == CHILD_LACKS_DATABASE:
        return _later(child, state, str(event), now_s)
    return _restart(child, state, str(event), now_s)


def _ended(child: ChildSpec, state: ChildState, event: Exited, now_s: float) -> Outcome:
    if not state.again:
        return _dead(state, ChildPhase.STOPPED), ()
    if state.fault is None:
        return _spawn(child, replace(state, boot=False), event, now_s)
    return _restart(child, state, state.fault, now_s)


def _restart(child: ChildSpec, state: ChildState, cause: str, now_s: float) -> Outcome:
    """Start it again, unless it was started too often; the log decides when."""
    log = state.log.record(now_s, child.intensity)
    if log.exceeds(child.intensity):
        many = f"{len(log.at_s)} times within {child.intensity.window_s:g} s"
        message = f"{child.name} died {many} (the last time: {cause}); giving up"
        return _dead(replace(state, log=log), ChildPhase.FAILED, cause), (StopAll(EXIT_RESTART_LIMIT, message),)
    dead = replace(_dead(state, ChildPhase.WAITING, cause), log=log)
    delay_s = child.delay.after(log.earlier)
    if delay_s == 0:
        return _spawn(child, dead, StartAsked(), now_s)
    return replace(dead, due_s=now_s + delay_s), ()


def _dead(state: ChildState, phase: ChildPhase, fault: str | None = None) -> ChildState:
    return ChildState(phase, boot=False, fault=fault, restarts=state.restarts, log=state.log)


def _unkillable_died(_child: ChildSpec, state: ChildState, _event: Exited, _now_s: float) -> Outcome:
    return _dead(state, ChildPhase.FAILED, state.fault), ()


def _slept(_child: ChildSpec, state: ChildState, event: Slept, _now_s: float) -> Outcome:
    due_s = None if state.due_s is None else state.due_s + event.slept_s
    silent_by_s = None if state.silent_by_s is None else state.silent_by_s + event.slept_s
    return replace(state, due_s=due_s, silent_by_s=silent_by_s), ()


def _gave_up_waiting(_child: ChildSpec, state: ChildState, _event: Event, _now_s: float) -> Outcome:
    return _dead(state, ChildPhase.STOPPED), ()


def _on(
    kind: type[EventT], handler: Callable[[ChildSpec, ChildState, EventT, float], Outcome]
) -> tuple[type[Event], Handler]:
    """One entry of the table; the handler's event type is checked here, against the key."""
    return kind, cast("Handler", handler)


_ALIVE: Final = (  # what can happen to every running process that is not being stopped
    _on(Exited, _died),
    _on(RefusalReceived, _refused),
    _on(BusBroken, _bus_broken),
    _on(StopAsked, _stop),
    _on(StopNow, _stop_now),
    _on(RestartAsked, _restart_asked),
    _on(Slept, _slept),
)
_LATE: Final = tuple(
    (kind, _stay) for kind in (HelloReceived, ReadyReceived, PongReceived, RefusalReceived, BusBroken)
)  # sent before it received the stop

TABLE: Final[Mapping[ChildPhase, Mapping[type[Event], Handler]]] = {
    ChildPhase.STOPPED: dict(
        [
            _on(StartAsked, _spawn),
            _on(RestartAsked, _spawn),
            _on(StopAsked, _stay),
            _on(StopNow, _stay),
            _on(Slept, _stay),
        ]
    ),
    ChildPhase.SPAWNING: dict(
        [
            _on(SpawnOk, _spawned),
            _on(SpawnFailed, _spawn_failed),
            _on(StopAsked, _gave_up_waiting),  # the start is still being prepared
            _on(StopNow, _gave_up_waiting),
            _on(RestartAsked, _stay),
            _on(Slept, _stay),
        ]
    ),
    ChildPhase.SPAWNED: dict(
        [*_ALIVE, _on(HelloReceived, _greeted), _on(ReadyReceived, _ready), _on(Deadline, _hello_overdue)]
    ),
    ChildPhase.GREETED: dict([*_ALIVE, _on(Briefed, _briefed)]),
    ChildPhase.PRIMING: dict(
        [*_ALIVE, _on(ReadyReceived, _ready), _on(PongReceived, _pong), _on(Deadline, _silent_or_overdue)]
    ),
    ChildPhase.RUNNING: dict(
        [*_ALIVE, _on(ReadyReceived, _stay), _on(PongReceived, _pong), _on(Deadline, _silent_or_overdue)]
    ),
    ChildPhase.STOPPING: dict(
        [
            *_LATE,
            _on(Exited, _ended),
            _on(StopAsked, _stop_for_good),
            _on(StopNow, _stop_now),
            _on(RestartAsked, _stay),
            _on(Deadline, _next_rung),
            _on(Slept, _slept),
        ]
    ),
    ChildPhase.WAITING: dict(
        [
            _on(Deadline, _spawn),
            _on(RestartAsked, _spawn),
            _on(StopAsked, _gave_up_waiting),
            _on(StopNow, _gave_up_waiting),
            _on(Slept, _slept),
        ]
    ),
    ChildPhase.FAILED: dict(
        [
            _on(Exited, _unkillable_died),
            _on(StopAsked, _stay),
            _on(StopNow, _stay),
            _on(RestartAsked, _stay),
            _on(Slept, _stay),
        ]
    ),
}
