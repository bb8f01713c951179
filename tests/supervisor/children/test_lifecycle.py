"""The machine by histories: a list of events, and the decisions after it."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence
from operator import attrgetter
from pathlib import Path

import pytest
from hypothesis import settings as profile
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from pulse.config import Settings
from pulse.system.restart_policy import Delay, Intensity, Restart
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
from pulse_supervisor.children.lifecycle import (
    CHILD_LACKS_DATABASE,
    EXIT_CONFIG,
    EXIT_REFUSED,
    EXIT_RESTART_LIMIT,
    SHOWN,
    TABLE,
    ChildPhase,
    ChildState,
    IllegalEventError,
    accepts,
    step,
)
from pulse_supervisor.children.spec import (
    POSTGRES_AT_ONCE,
    POSTGRES_STOP,
    ChildKind,
    ChildSpec,
    LivenessLimits,
    Placeholder,
    StopStep,
    actors,
    command_line,
    pool,
    stop_order,
)

ACTOR = ChildSpec("dispatcher", ChildKind.ACTOR, ("x",), limits=LivenessLimits())
POOL = ChildSpec("pool", ChildKind.POOL, ("x",), stop=(StopStep(signal.SIGTERM, 35.0), StopStep(signal.SIGKILL, 5.0)))
POSTGRES = ChildSpec("postgres", ChildKind.DATABASE, ("x",), stop=POSTGRES_STOP, at_once=POSTGRES_AT_ONCE)
BRIEF = replace(POOL, restart=Restart.TRANSIENT)
TO_RUNNING: tuple[Event, ...] = (StartAsked(), SpawnOk(1), HelloReceived(), Briefed(), ReadyReceived())
AGAIN: tuple[Event, ...] = (SpawnOk(2), HelloReceived(), Briefed(), ReadyReceived())
TWICE: tuple[Event, ...] = (Exited(code=1), SpawnOk(2), Exited(code=1))  # from running
SERVES: tuple[Event, ...] = (StartAsked(), SpawnOk(1), ReadyReceived())  # of a database
STOPPED_BETWEEN = (*TO_RUNNING, *TWICE[:2], StopAsked(), Exited(code=0), StartAsked(), SpawnOk(3))


EXAMPLES: tuple[Event, ...] = (
    *(
        StartAsked(), SpawnOk(1), SpawnFailed("x"), HelloReceived(), Briefed(), ReadyReceived(), PongReceived(0.0),
        RefusalReceived("x"), BusBroken("x"),
    ),
    *(Exited(code=0), StopAsked(), StopNow(), RestartAsked(), Deadline(), Slept(1.0)),
)  # fmt: skip
_ALIVE = "Exited RefusalReceived BusBroken StopAsked StopNow RestartAsked Slept"
POSSIBLE = {
    ChildPhase.STOPPED: "StartAsked RestartAsked StopAsked StopNow Slept",
    ChildPhase.SPAWNING: "SpawnOk SpawnFailed StopAsked StopNow RestartAsked Slept",
    ChildPhase.SPAWNED: f"{_ALIVE} HelloReceived ReadyReceived Deadline",
    ChildPhase.GREETED: f"{_ALIVE} Briefed",
    ChildPhase.PRIMING: f"{_ALIVE} ReadyReceived PongReceived Deadline",
    ChildPhase.RUNNING: f"{_ALIVE} ReadyReceived PongReceived Deadline",
    ChildPhase.STOPPING: f"{_ALIVE} HelloReceived ReadyReceived PongReceived Deadline",
    ChildPhase.WAITING: "Deadline RestartAsked StopAsked StopNow Slept",
    ChildPhase.FAILED: "Exited StopAsked StopNow RestartAsked Slept",
}


def play(child: ChildSpec, events: Iterable[Event], state: ChildState | None = None, now_s: float = 0.0) -> ChildState:
    """The state after *events*, all at one time."""
    state = state or ChildState()
    for event in events:
        state, _ = step(child, state, event, now_s)
    return state


def running(child: ChildSpec = ACTOR, now_s: float = 0.0) -> ChildState:
    return play(child, TO_RUNNING, now_s=now_s)


def signals(effects: Iterable[Effect]) -> list[signal.Signals]:
    return [effect.signal for effect in effects if isinstance(effect, SendSignal)]


HISTORIES: dict[str, tuple[ChildSpec, Sequence[Event], dict[str, object]]] = {
    "a pool runs as soon as it is spawned": (POOL, TO_RUNNING[:2], {"phase": ChildPhase.RUNNING}),
    "so does a service": (replace(POOL, kind=ChildKind.SERVICE), TO_RUNNING[:2], {"phase": ChildPhase.RUNNING}),
    "before hello only the boot deadline counts": (ACTOR, TO_RUNNING[:2], {"deadline_s": LivenessLimits().hello_s}),
    "a database that recovers for minutes costs no actor its life": (ACTOR, TO_RUNNING[:3], {"deadline_s": None}),
    "priming may be slow, but not silent": (ACTOR, TO_RUNNING[:4], {"silent_by_s": LivenessLimits().priming_pong_s}),
    "a database that is ready may be silent": (POSTGRES, SERVES, {"phase": ChildPhase.RUNNING, "deadline_s": None}),
    "restarts count from the second start on": (ACTOR, TO_RUNNING, {"restarts": 0}),
    "the first restart": (ACTOR, [*TO_RUNNING, *TWICE[:2]], {"restarts": 1}),
    "the second restart waits a little": (
        ACTOR, [*TO_RUNNING, *TWICE],
        {"phase": ChildPhase.WAITING, "deadline_s": ACTOR.delay.first_s, "shown": "failed"},
    ),
    "an operator's restart counts for nothing, whatever the child had said": (
        ACTOR, [*TO_RUNNING, RefusalReceived("x"), RestartAsked(), Exited(code=0)],
        {"phase": ChildPhase.SPAWNING, "log.at_s": ()},
    ),
    "nor do many of them": (
        ACTOR, [*TO_RUNNING, *[RestartAsked(), Exited(code=0), *AGAIN] * 20],
        {"phase": ChildPhase.RUNNING, "restarts": 20, "log.at_s": ()},
    ),
    "a stop does not wipe out what counts": (ACTOR, STOPPED_BETWEEN, {"log.at_s": (0.0,)}),
    "the next death after it": (ACTOR, [*STOPPED_BETWEEN, Exited(code=1)], {"phase": ChildPhase.WAITING}),
    "rungs that were climbed": (
        POSTGRES, [*SERVES, StopAsked(), Deadline()], {"sent": (signal.SIGINT, signal.SIGQUIT)},
    ),
    "a stop wins over a pending restart": (
        ACTOR, [*TO_RUNNING, *TWICE, StopAsked()], {"phase": ChildPhase.STOPPED, "deadline_s": None},
    ),
    **{
        f"a stop is for good {number}": (ACTOR, events, {"phase": ChildPhase.STOPPED})
        for number, events in enumerate((
            [*TO_RUNNING, RestartAsked(), StopAsked(), Exited(code=0)],
            [*TO_RUNNING, RestartAsked(), StopNow(), Exited(signal=9)],
            [*TO_RUNNING, BusBroken("x"), StopNow(), Exited(signal=9)],
            [*TO_RUNNING, StopAsked(), Exited(code=0)],
            [*TO_RUNNING, StopNow(not_before_s=1e9), Exited(code=70)],
            [StartAsked(), StopAsked()], [StartAsked(), StopNow()], [*TO_RUNNING, *TWICE, StopNow()],
        ))
    },
}  # fmt: skip
STARTS: tuple[dict[str, object], list[Effect]] = ({"phase": ChildPhase.SPAWNING}, [Spawn()])
KILLED: list[Effect] = [SendSignal(signal.SIGKILL)]
STEPS: dict[str, tuple[ChildSpec, Sequence[Event], Event, float, dict[str, object], list[Effect]]] = {
    "only the first start is a boot": (
        ACTOR, [*TO_RUNNING[:2], Exited(code=70), SpawnOk(2)], HelloReceived(), 0.0, {}, [SendStart(boot=False)],
    ),
    "a silent priming ends": (ACTOR, TO_RUNNING[:4], Deadline(), 10.0, {}, KILLED),
    "a stuck turn is as bad as silence": (
        ACTOR, TO_RUNNING, PongReceived(31.0), 1.0, {"fault": "stuck: its turn takes 31 s already"}, KILLED,
    ),
    "a long turn is not stuck yet": (
        ACTOR, TO_RUNNING, PongReceived(LivenessLimits().turn_s), 1.0, {"phase": ChildPhase.RUNNING}, [],
    ),
    "a broken bus is as bad as silence": (ACTOR, TO_RUNNING, BusBroken("x"), 1.0, {}, KILLED),
    "a database that misbehaves gets only the last rung": (POSTGRES, SERVES, BusBroken("x"), 1.0, {}, KILLED),
    "a restart starts what is not there": (ACTOR, [], RestartAsked(), 0.0, *STARTS),
    "a restart does not wait": (ACTOR, [*TO_RUNNING, *TWICE], RestartAsked(), 0.0, *STARTS),
    "a transient child that ends well stays away": (
        BRIEF, TO_RUNNING[:2], Exited(code=0), 0.0, {"phase": ChildPhase.STOPPED}, [],
    ),
    "a transient child that fails comes back": (BRIEF, TO_RUNNING[:2], Exited(code=1), 0.0, *STARTS),
    "so does one that is killed": (BRIEF, TO_RUNNING[:2], Exited(signal=15), 0.0, *STARTS),
    "a pool may drain": (POOL, TO_RUNNING[:2], StopAsked(), 0.0, {"deadline_s": 35.0}, [SendSignal(signal.SIGTERM)]),
    "every rung that was climbed stays climbed": (
        POSTGRES, [*SERVES, StopAsked(), Deadline()], StopNow(), 1.0, {}, KILLED,
    ),
    "what survives SIGKILL is not waited for": (
        ACTOR, [*TO_RUNNING, StopNow()], Deadline(), 5.0,
        {"phase": ChildPhase.FAILED, "pid": 1, "shown": "failed", "due_s": None, "fault": "it does not die of SIGKILL"},
        [],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("child", "events", "found"), HISTORIES.values(), ids=HISTORIES)
def test_histories(child: ChildSpec, events: Sequence[Event], found: dict[str, object]) -> None:
    state = play(child, events)
    assert {name: attrgetter(name)(state) for name in found} == found


@pytest.mark.parametrize(("child", "events", "event", "now_s", "found", "effects"), STEPS.values(), ids=STEPS)
def test_steps(
    child: ChildSpec, events: list[Event], event: Event, now_s: float, found: dict[str, object], effects: list[Effect]
) -> None:
    state, decided = step(child, play(child, events), event, now_s)
    assert ({name: attrgetter(name)(state) for name in found}, list(decided)) == (found, effects)


class TestStart:
    def test_an_actor_goes_through_hello_and_settings_to_ready(self) -> None:
        """Each step of a start leads to the next, and the settings are sent once, at hello."""
        state, phases, effects = ChildState(), list[ChildPhase](), list[Effect]()
        for event in TO_RUNNING:
            state, decided = step(ACTOR, state, event, 0.0)
            phases.append(state.phase)
            effects += decided
        assert phases == [
            ChildPhase.SPAWNING, ChildPhase.SPAWNED, ChildPhase.GREETED, ChildPhase.PRIMING, ChildPhase.RUNNING,
        ]  # fmt: skip
        assert effects == [Spawn(), SendStart(boot=True)]

    def test_no_hello_at_boot_stops_everything_with_a_reason(self) -> None:
        """A user waits for the start, so its failure is reported and not retried."""
        state, effects = step(ACTOR, play(ACTOR, [StartAsked(), SpawnOk(1)], now_s=7.0), Deadline(), 37.0)
        assert state.phase is ChildPhase.STOPPING
        assert effects[-1] == StopAll(EXIT_REFUSED, "dispatcher does not start: no hello 30 s after its start")

    def test_every_deadline_counts_from_now(self) -> None:
        again: list[Event] = [*TO_RUNNING, Exited(signal=9), SpawnOk(2), Exited(signal=9)]
        stopped: list[Event] = [*TO_RUNNING, StopAsked()]
        for history in (TO_RUNNING[:2], TO_RUNNING[:4], TO_RUNNING, again, stopped, [*stopped, Deadline()]):
            early, late = play(ACTOR, history), play(ACTOR, history, now_s=1000.0)
            for before_s, after_s in ((early.due_s, late.due_s), (early.silent_by_s, late.silent_by_s)):
                assert after_s == (None if before_s is None else before_s + 1000)
        assert running().due_s is None
        first, second, *_ = ACTOR.stop
        assert (play(ACTOR, stopped).due_s, play(ACTOR, [*stopped, Deadline()]).due_s) == (first.wait_s, second.wait_s)

    def test_not_ready_at_boot_stops_everything_with_a_reason(self) -> None:
        state = play(ACTOR, [StartAsked(), SpawnOk(1), HelloReceived(), Briefed()])
        state = play(ACTOR, [PongReceived(0.0)], state, now_s=29.0)
        assert state.deadline_s == LivenessLimits().ready_s
        _, effects = step(ACTOR, state, Deadline(), 30.0)
        assert effects[-1] == StopAll(EXIT_REFUSED, "dispatcher does not start: not ready 30 s after its start")

    def test_an_upgrade_takes_as_long_as_it_takes(self) -> None:
        """While it answers; the service manager waits as well. A start that is no upgrade has its deadline again."""
        state, limits = play(ACTOR, [StartAsked(), SpawnOk(1), HelloReceived(), Briefed()]), LivenessLimits()
        for now_s in range(1, 1000):
            state, effects = step(ACTOR, state, PongReceived(0.0, upgrades=True), float(now_s))
            assert effects == (ExtendStart(limits.ready_s),)
            assert (state.due_s, state.silent_by_s) == (now_s + limits.ready_s, now_s + limits.priming_pong_s)
        assert step(ACTOR, state, PongReceived(0.0), 1000.0)[0].due_s == state.due_s
        assert step(ACTOR, running(), PongReceived(0.0, upgrades=True), 1.0)[1] == ()

    def test_a_restarted_actor_may_prime_for_ever_as_long_as_it_answers(self) -> None:
        """While the database is away a restarted actor waits for it, and only silence ends it."""
        state = play(ACTOR, [*TO_RUNNING, Exited(signal=9), SpawnOk(2), HelloReceived(), Briefed()])
        for now_s in range(1, 1000):
            state = play(ACTOR, [PongReceived(0.0)], state, now_s=float(now_s))
            assert state.deadline_s == now_s + LivenessLimits().priming_pong_s

    def test_a_program_that_cannot_be_executed_is_a_death(self) -> None:
        state = play(ACTOR, [StartAsked(), SpawnFailed("no such file")])
        assert state.phase is ChildPhase.SPAWNING
        for _ in range(5):
            state = play(ACTOR, [SpawnFailed("no such file")], state)
            if state.phase is ChildPhase.WAITING:
                state = play(ACTOR, [Deadline()], state)
        assert state.phase is ChildPhase.FAILED

    def test_a_want_of_descriptors_is_waited_for(self) -> None:
        """A spawn that fails for want of anything does not count: that passes."""
        state = play(ACTOR, [StartAsked(), SpawnFailed("too many", passes=True)])
        for _ in range(20):
            state = play(ACTOR, [Deadline(), SpawnFailed("too many", passes=True)], state)
        assert (state.phase, state.due_s, state.log.at_s) == (ChildPhase.WAITING, ACTOR.delay.longest_s, ())

    def test_a_restarted_actor_that_says_no_hello_is_one_more_death(self) -> None:
        """Nobody waits for this start, so it is killed and tried again, and nothing else stops."""
        state = play(ACTOR, [*TO_RUNNING, Exited(signal=9), SpawnOk(2)])
        state, effects = step(ACTOR, state, Deadline(), 30.0)
        assert effects == (SendSignal(signal.SIGKILL),)
        assert play(ACTOR, [Exited(signal=9)], state).phase is ChildPhase.WAITING


class TestSilence:
    """A child that does not answer is dead, though its process lives."""

    def test_a_silent_actor_is_killed_and_started_again(self) -> None:
        """Three seconds without a pong: SIGKILL at once, and a new process after its end."""
        assert running().deadline_s == LivenessLimits().pong_s
        state, effects = step(ACTOR, running(), Deadline(), 3.0)
        assert (state.phase, signals(effects)) == (ChildPhase.STOPPING, [signal.SIGKILL])
        assert (state.fault, state.silent_by_s) == ("silent: no answer to pings", None)
        state, effects = step(ACTOR, state, Exited(signal=9), 3.1)
        assert (state.phase, effects) == (ChildPhase.SPAWNING, (Spawn(),))

    def test_the_supervisors_own_sleep_is_nobodys_fault(self) -> None:
        """Time in which the supervisor did not run is added to every deadline."""
        assert play(ACTOR, [Slept(100.0)], running(), now_s=102.0).deadline_s == pytest.approx(103.0)

    def test_sleep_moves_every_deadline_and_makes_none(self) -> None:
        """A start that lasts, a stop that lasts and a restart that is due: all wait for as much longer."""
        starting, stopping = play(ACTOR, TO_RUNNING[:2]), play(ACTOR, [*TO_RUNNING, StopAsked()])
        waiting = play(ACTOR, [*TO_RUNNING, Exited(code=1), SpawnOk(2), Exited(code=1)])
        for state in (starting, stopping, waiting):
            assert state.due_s is not None
            slept = play(ACTOR, [Slept(100.0)], state)
            assert (slept.due_s, slept.silent_by_s) == (state.due_s + 100.0, None)
        priming = play(ACTOR, [Slept(100.0)], play(ACTOR, TO_RUNNING[:4]))
        assert (priming.due_s, priming.silent_by_s) == (130.0, 110.0)

    def test_a_kill_for_silence_counts_against_the_intensity(self) -> None:
        state = running()
        for _ in range(5):
            state = play(ACTOR, [BusBroken("x"), Exited(signal=9)], state)
            state = play(ACTOR, [Deadline()], state) if state.phase is ChildPhase.WAITING else state
            state = play(ACTOR, AGAIN, state)
        state, effects = step(ACTOR, play(ACTOR, [BusBroken("x")], state), Exited(signal=9), 0.0)
        assert state.phase is ChildPhase.FAILED
        assert isinstance(effects[0], StopAll)

    def test_every_pong_buys_three_seconds(self) -> None:
        assert play(ACTOR, [PongReceived(0.0)], running(), now_s=2.9).deadline_s == pytest.approx(5.9)


class TestRestart:
    def test_six_deaths_in_a_minute_stop_everything_with_70(self) -> None:
        """The intensity is per child, and ends everything."""
        state = running()
        effects: tuple[Effect, ...] = ()
        for death in range(6):
            state, effects = step(ACTOR, state, Exited(code=1), float(death))
            if state.phase is ChildPhase.WAITING:
                state, effects = step(ACTOR, state, Deadline(), float(death))
            if state.phase is ChildPhase.SPAWNING:
                state = play(ACTOR, AGAIN, state, now_s=float(death))
        assert state.phase is ChildPhase.FAILED
        message = "dispatcher died 6 times within 60 s (the last time: exit code 1); giving up"
        assert effects == (StopAll(EXIT_RESTART_LIMIT, message),)
        assert (len(state.log.at_s), state.fault) == (6, "exit code 1")

    def test_deaths_that_are_far_apart_never_stop_anything(self) -> None:
        """A death every 13 s is five in a minute, for ever."""
        state = running()
        for death in range(100):
            state = play(ACTOR, [Exited(signal=11)], state, now_s=death * 13.0)
            state = play(ACTOR, [Deadline()], state) if state.phase is ChildPhase.WAITING else state
            state = play(ACTOR, AGAIN, state, now_s=death * 13.0)
        assert (state.phase, state.restarts) == (ChildPhase.RUNNING, 100)

    @pytest.mark.parametrize(("said", "how", "code", "told"), [
        ([RefusalReceived("schema 9 is too new")], Exited(code=78), EXIT_REFUSED, "schema 9 is too new"),
        ([], Exited(code=78), EXIT_REFUSED, "dispatcher refuses to run (exit code 78)"),
        # A pooler in the place of the database is there at the next start, too.
        ([RefusalReceived("a pooler")], Exited(code=76), EXIT_CONFIG, "a pooler"),
        # PostgreSQL has no exit code for it, so who knows its log says that another start is in vain.
        ([], Exited(code=1, hopeless="no room"), EXIT_REFUSED, "no room"),
    ])  # fmt: skip
    def test_a_child_that_refuses_stops_everything_and_says_why(
        self, said: list[Event], how: Exited, code: int, told: str
    ) -> None:
        _, effects = step(ACTOR, play(ACTOR, said, running()), how, 0.0)
        assert effects == (StopAll(code, told),)

    def test_the_database_is_no_reason_to_give_up(self) -> None:
        """An end for its sake costs no budget: the actor starts again after a pause."""
        state, now_s = running(), 0.0
        for _ in range(3 * Intensity().max_restarts):
            state, effects = step(ACTOR, state, Exited(code=CHILD_LACKS_DATABASE), now_s)
            assert (state.phase, effects, state.log.at_s) == (ChildPhase.WAITING, (), ())
            assert state.due_s == now_s + Delay().longest_s
            now_s += Delay().longest_s
            state, effects = step(ACTOR, state, Deadline(), now_s)
            assert effects == (Spawn(),)
            state = running()


PRIMING = play(ACTOR, TO_RUNNING[:4])
SERVING = play(POSTGRES, SERVES)


class TestStop:
    @pytest.mark.parametrize(("child", "state", "first", "tried"), [
        (ACTOR, running(), StopAsked(), [SendStop(5.0), SendSignal(signal.SIGTERM), SendSignal(signal.SIGKILL)]),
        # An actor that is not ready holds nothing, and may not listen.
        (ACTOR, PRIMING, StopAsked(), [SendSignal(signal.SIGTERM), SendSignal(signal.SIGKILL)]),
        (ACTOR, running(), StopNow(), [SendSignal(signal.SIGKILL)]),
        (POSTGRES, SERVING, StopAsked(), [*map(SendSignal, (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL))]),
        # At once goes on where the patient ladder stands.
        (
            POSTGRES, play(POSTGRES, [StopAsked()], SERVING), StopNow(),
            [*map(SendSignal, (signal.SIGQUIT, signal.SIGKILL))],
        ),
    ])  # fmt: skip
    def test_the_ladder(self, child: ChildSpec, state: ChildState, first: Event, tried: list[Effect]) -> None:
        """All rungs for a child that does not end."""
        state, effects = step(child, state, first, 0.0)
        found = list(effects)
        while state.phase is ChildPhase.STOPPING:
            assert state.deadline_s is not None
            state, effects = step(child, state, Deadline(), state.deadline_s)
            found += effects
        assert (state.phase, found) == (ChildPhase.FAILED, tried)

    @pytest.mark.parametrize("asked", [[], [StopAsked()]])
    def test_at_once_may_have_to_wait(self, asked: list[Event]) -> None:
        """A child that others still need is killed when they are done, no earlier, after any orders."""
        state = play(ACTOR, asked, running())
        for now_s in (1.0, 1.2):
            state, effects = step(ACTOR, state, StopNow(not_before_s=1.5), now_s)
            assert (state.phase, effects, state.deadline_s) == (ChildPhase.STOPPING, (), 1.5)
        state, effects = step(ACTOR, state, Deadline(), 1.5)
        assert signals(effects) == [signal.SIGKILL]
        assert step(ACTOR, state, StopNow(not_before_s=1.5), 1.6) == (state, ())

    def test_nothing_is_started_beside_a_process_that_cannot_be_killed(self) -> None:
        """A restart that would make two of them stops everything instead."""
        state, effects = step(ACTOR, play(ACTOR, [BusBroken("x")], running()), Deadline(), 5.0)
        assert effects == (StopAll(EXIT_RESTART_LIMIT, "dispatcher (pid 1) does not die of SIGKILL"),)
        state = play(ACTOR, [Exited(signal=9)], state)
        assert (state.phase, state.pid) == (ChildPhase.FAILED, None)

    def test_who_stops_may_be_silent(self) -> None:
        """Only its ladder is bounded: silence during a stop kills nobody."""
        for asked in (StopAsked(), RestartAsked(), StopNow(not_before_s=50.0)):
            state = play(ACTOR, [asked], running(), now_s=1.0)
            assert (state.phase, state.silent_by_s) == (ChildPhase.STOPPING, None)

    def test_what_an_actor_says_while_it_stops_changes_nothing(self) -> None:
        """Frames that crossed the stop on their way are no reason for anything."""
        state = play(ACTOR, [StopAsked()], running())
        assert play(ACTOR, [PongReceived(99.0), ReadyReceived(), RefusalReceived("x"), BusBroken("y")], state) == state


class TestTable:
    @pytest.mark.parametrize("phase", ChildPhase)
    def test_what_can_happen_when(self, phase: ChildPhase) -> None:
        """Exactly these events can happen in each phase; any other one raises, and changes nothing."""
        state = ChildState(phase)
        for event in EXAMPLES:
            possible = type(event).__name__ in POSSIBLE[phase].split()
            assert accepts(state, event) is possible, event
            if not possible:
                with pytest.raises(
                    IllegalEventError, match=f"dispatcher: {type(event).__name__} while {state.phase.value}"
                ):
                    step(ACTOR, state, event, 0.0)

    def test_stop_and_sleep_are_answered_in_every_phase(self) -> None:
        kinds = (StopAsked, StopNow, Slept)
        assert [(phase, kind) for phase, row in TABLE.items() for kind in kinds if kind not in row] == []
        assert set(TABLE) == set(SHOWN) == set(ChildPhase)
        assert set(SHOWN.values()) == {"stopped", "starting", "running", "stopping", "failed"}


class TestTree:
    def test_the_order_of_stopping_is_the_reverse_with_all_pools_first(self) -> None:
        """Pools at once and before the dispatcher, which their reports need; PostgreSQL last."""
        second = replace(POOL, name="pool2")
        names = [[child.name for child in batch] for batch in stop_order([POSTGRES, *actors(), POOL, second])]
        assert names == [["pool", "pool2"], ["dispatcher"], ["scheduler"], ["pause"], ["watchdog"], ["postgres"]]

    def test_slots_become_options_with_their_numbers(self) -> None:
        words = command_line(actors()[-1], {Placeholder.BUS_FD: 5, Placeholder.LISTEN_FD: 6, Placeholder.PARENT_PID: 7})
        assert " ".join(words[1:]) == "-P -m pulse_actors dispatcher --bus-fd 5 --parent-pid 7 --listen-fd 6"

    def test_a_pool_is_told_where_the_dispatcher_listens(self) -> None:
        child = pool(
            "shop:app", Settings(processes=2, concurrency=5, spares=0, drain_s=30.0), Path("/run/x/pulse.sock")
        )
        words = command_line(child, {Placeholder.PARENT_PID: 7})[1:]
        sizes, places = "--processes 2 --concurrency 5 --spares 0", "--socket /run/x/pulse.sock --parent-pid 7"
        assert " ".join(words) == f"-m pulse.worker shop:app {sizes} {places}"
        assert child.stop[0] == StopStep(signal.SIGTERM, 35.0)

    def test_a_pool_knows_the_settings_of_its_supervisor_and_no_secret(self) -> None:
        """Options of the supervisor's own command line hold for its pool too, without the DSN."""
        settings = Settings(
            dsn="postgresql://u:secret@h/d", drain_s=3.5, log_level="debug", config=Path("/etc/p.toml"), schema="orders"
        )
        assert dict(pool("shop:app", settings, Path("/run/x/pulse.sock")).env) == {
            "PULSE_RUNTIME_DIR": "/run/x", "PULSE_DRAIN_S": "3.5", "PULSE_LOG_LEVEL": "debug",
            "PULSE_CONFIG": "/etc/p.toml", "PULSE_SCHEMA": "orders",
        }  # fmt: skip


class World(RuleBasedStateMachine):
    """A child in a world that does anything a world can do; the rules of the supervisor hold all the same."""

    @initialize(kind=st.sampled_from([ACTOR, POOL, POSTGRES]), max_restarts=st.integers(0, 3))
    def begin(self, kind: ChildSpec, max_restarts: int) -> None:
        self.child = replace(kind, intensity=Intensity(max_restarts, window_s=60.0))
        self.state = ChildState()
        self.now_s = 0.0
        self.alive: set[int] = set()
        self.next_pid = 1
        self.unasked_s: list[float] = []
        self.asked: list[object] = []
        self.told_kill = False
        self.must_spawn = False
        self.gave_up = False
        self.forever = False

    def feed(self, event: Event) -> None:
        """Feed an event, and let the world carry out the decisions."""
        if not accepts(self.state, event):
            before = self.state
            with pytest.raises(IllegalEventError, match=" while "):
                step(self.child, self.state, event, self.now_s)
            assert self.state is before
            return
        self.state, effects = step(self.child, self.state, event, self.now_s)
        for effect in effects:
            self.do(effect)

    def do(self, effect: Effect) -> None:
        match effect:
            case Spawn():
                assert not self.alive, "two living processes of one child"
                assert not self.forever, "started again after it was stopped for good"
                counted = [at_s for at_s in self.unasked_s if self.unasked_s[-1] - at_s < 60.0]
                assert len(counted) <= self.child.intensity.max_restarts, "one restart too many"
                self.must_spawn = True
            case SendSignal(signal.SIGKILL):
                polite = self.asked and self.asked[-1] in {signal.SIGTERM, signal.SIGQUIT}
                assert polite or self.told_kill, f"SIGKILL after {self.asked}"
                self.asked.append(signal.SIGKILL)
            case SendSignal(number):
                self.asked.append(number)
            case SendStop():
                self.asked.append("frame")
            case StopAll():
                self.gave_up = True
            case _:
                pass

    @precondition(lambda self: self.state.phase in {ChildPhase.STOPPED, ChildPhase.FAILED} and not self.alive)
    @rule()
    def start(self) -> None:
        if self.state.phase is ChildPhase.FAILED:
            self.state, self.unasked_s = ChildState(), []
        self.forever = self.gave_up = False
        self.feed(StartAsked())

    @precondition(lambda self: self.must_spawn and self.state.phase is ChildPhase.SPAWNING)
    @rule(succeeds=st.booleans())
    def spawn(self, succeeds: bool) -> None:
        self.must_spawn = False
        if not succeeds:
            self.unasked_s.append(self.now_s)
            self.feed(SpawnFailed("no room"))
            return
        self.alive.add(self.next_pid)
        self.asked, self.told_kill = [], False
        self.feed(SpawnOk(self.next_pid))
        self.next_pid += 1

    @precondition(lambda self: self.alive)
    @rule(how=st.sampled_from([*(Exited(code=code) for code in (0, 1, 76, 78)), Exited(signal=9), Exited(signal=11)]))
    def exit(self, how: Exited) -> None:
        self.alive.clear()
        is_killed_for_a_fault = self.state.fault is not None and not self.forever
        if self.state.phase is not ChildPhase.STOPPING or is_killed_for_a_fault:
            self.unasked_s.append(self.now_s)
        self.feed(how)

    @precondition(lambda self: self.alive and self.child.kind is ChildKind.ACTOR)
    @rule(event=st.sampled_from([HelloReceived(), ReadyReceived(), PongReceived(0.0), RefusalReceived("no")]))
    def say(self, event: Event) -> None:
        self.feed(event)

    @precondition(lambda self: self.alive and self.child.kind is ChildKind.ACTOR)
    @rule(event=st.sampled_from([PongReceived(99.0), BusBroken("x")]))
    def misbehave(self, event: Event) -> None:
        self.told_kill = True
        self.feed(event)

    @precondition(lambda self: self.state.phase is ChildPhase.GREETED)
    @rule()
    def brief(self) -> None:
        self.feed(Briefed())

    @precondition(lambda self: self.state.phase is ChildPhase.SPAWNED and self.child.kind is ChildKind.DATABASE)
    @rule()
    def database_ready(self) -> None:
        self.feed(ReadyReceived())

    @precondition(lambda self: self.state.deadline_s is not None)
    @rule()
    def wait(self) -> None:
        assert self.state.deadline_s is not None
        self.now_s = max(self.now_s, self.state.deadline_s)
        self.told_kill = self.told_kill or self.state.phase is not ChildPhase.STOPPING
        self.feed(Deadline())

    @rule(pause_s=st.floats(0.0, 30.0), asleep=st.booleans())
    def pass_time(self, pause_s: float, asleep: bool) -> None:
        """Time passes; the supervisor may have slept through it, else it would have woken for the deadline."""
        deadline_s = self.state.deadline_s
        if asleep:
            self.now_s += pause_s
            self.feed(Slept(pause_s))
        elif deadline_s is None or self.now_s + pause_s < deadline_s:
            self.now_s += pause_s

    @precondition(lambda self: self.state.phase is not ChildPhase.STOPPED)
    @rule()
    def ask_to_stop(self) -> None:
        self.forever = True
        self.must_spawn = False
        self.feed(StopAsked())

    @precondition(lambda self: self.state.phase is not ChildPhase.STOPPED)
    @rule()
    def stop_now(self) -> None:
        self.forever = self.told_kill = True
        self.must_spawn = False
        self.feed(StopNow())

    @precondition(lambda self: not self.forever)
    @rule()
    def ask_to_restart(self) -> None:
        self.feed(RestartAsked())

    @invariant()
    def pid_is_that_of_the_living(self) -> None:
        """Exactly the states that are alive have a pid."""
        assert {self.state.pid} - {None} == self.alive

    @invariant()
    def who_is_stopping_or_waiting_has_a_deadline(self) -> None:
        """Nothing hangs: every other state has a deadline."""
        if self.state.phase in {ChildPhase.STOPPING, ChildPhase.WAITING, ChildPhase.PRIMING}:
            assert self.state.deadline_s is not None

    @invariant()
    def giving_up_is_told(self) -> None:
        """A child that failed has said so to all, unless everything stopped anyway."""
        if self.state.phase is ChildPhase.FAILED and not self.forever:
            assert self.gave_up


World.TestCase.settings = profile(max_examples=300, stateful_step_count=40, deadline=None)
TestWorld = pytest.mark.rest(World.TestCase)
