"""
The children of the supervisor, as data: their commands, order, ladders of stopping, and restarts.

Stages start top to bottom, each when the one above it is ready, and stop bottom to top; so do the children within a
stage, except that they start at once.
"""

from __future__ import annotations

import enum
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from pulse.config import Settings
from pulse.system.restart_policy import Delay, Intensity, Restart


class Placeholder(enum.Enum):
    """A word of a command line that is known only at the spawn; its file descriptor is inherited."""

    PARENT_PID = "--parent-pid"
    BUS_FD = "--bus-fd"
    LISTEN_FD = "--listen-fd"
    TCP_FD = "--tcp-fd"


DESCRIPTORS: Final = (Placeholder.BUS_FD, Placeholder.LISTEN_FD, Placeholder.TCP_FD)


class ChildKind(enum.Enum):
    """The kind of a child, by which ``status`` sorts it."""

    DATABASE = "database"
    ACTOR = "actor"
    POOL = "pool"
    SERVICE = "service"


class StopStep(msgspec.Struct, frozen=True):
    """
    One step of the ladder by which a child is stopped.

    Attributes:
        signal: The signal to send; None: a ``stop`` frame on the bus.
        wait_s: How long to wait before the next step.
    """

    signal: signal.Signals | None
    wait_s: float


_UNTIL_DEAD_S: Final = 5.0  # after SIGKILL a process can only hang in the kernel; then that is reported

NEVER_TOO_OFTEN: Final = Intensity(max_restarts=1_000_000)
ACTOR_STOP: Final = (
    StopStep(None, 5.0),  # statements of an actor are limited to 5 s; by then its work is committed or given up
    StopStep(signal.SIGTERM, 1.0),  # for an actor whose bus is stuck
    StopStep(signal.SIGKILL, _UNTIL_DEAD_S),
)
AT_ONCE: Final = (StopStep(signal.SIGKILL, _UNTIL_DEAD_S),)
POSTGRES_STOP: Final = (
    StopStep(signal.SIGINT, 30.0),  # fast: roll back and write a checkpoint; that much can be dirty on a slow disk
    StopStep(signal.SIGQUIT, 5.0),  # immediate: recovery at the next start
    StopStep(signal.SIGKILL, _UNTIL_DEAD_S),
)
POSTGRES_AT_ONCE: Final = (
    StopStep(signal.SIGINT, 1.0),  # usually enough, and it saves the next start a recovery
    StopStep(signal.SIGQUIT, 3.0),
    StopStep(signal.SIGKILL, _UNTIL_DEAD_S),
)
_POOL_REPORT_S: Final = 5.0  # for a pool, beyond the drain, to have its last results acknowledged


class LivenessLimits(msgspec.Struct, frozen=True):
    """
    How long an actor may be silent, in seconds.

    Attributes:
        hello_s: From spawn to hello: start and imports, on a busy machine.
        ready_s: From the ``start`` frame to ready, at boot: a schema's installation, after another supervisor's;
            during an upgrade from each pong.
        ping_s: Between two pings: one wake-up per second costs nothing measurable.
        pong_s: Since the last sign of life: three pings. A loop that blocks longer fails its clients anyway.
        priming_pong_s: The same before ready, where imports and large first results may block the loop.
        turn_s: Age of an unfinished turn: every statement is limited to 5 s, so a healthy turn is shorter.
    """

    hello_s: float = 30.0
    ready_s: float = 30.0
    ping_s: float = 1.0
    pong_s: float = 3.0
    priming_pong_s: float = 10.0
    turn_s: float = 30.0


class ChildSpec(msgspec.Struct, frozen=True):
    """
    One process to keep alive.

    Attributes:
        name: Unique; also the address for hints.
        kind: Its kind.
        argv: Its command line; a Slot is replaced by its option and number.
        restart: After which ends it is started again.
        intensity: How many restarts are too many.
        delay: Delay of restarts.
        stop: The ladder by which it is stopped.
        at_once: The ladder for a second signal.
        limits: How long it may be silent; None: it has no bus.
        env: Variables on top of the supervisor's own environment.
        forked: Whether it is forked from the template of the actors.
    """

    name: str
    kind: ChildKind
    argv: tuple[str | Placeholder, ...]
    restart: Restart = Restart.PERMANENT
    intensity: Intensity = Intensity()
    delay: Delay = Delay()
    stop: tuple[StopStep, ...] = ACTOR_STOP
    at_once: tuple[StopStep, ...] = AT_ONCE
    limits: LivenessLimits | None = None
    env: tuple[tuple[str, str], ...] = ()
    forked: bool = False


def actor(name: str, *slots: Placeholder) -> ChildSpec:
    """A child that runs one of the actors; -P keeps the current directory's modules from shadowing ours."""
    command = (sys.executable, "-P", "-m", "pulse_actors", name)
    argv: tuple[str | Placeholder, ...] = (*command, Placeholder.BUS_FD, Placeholder.PARENT_PID, *slots)
    return ChildSpec(name, ChildKind.ACTOR, argv, limits=LivenessLimits(), forked=True)


def actors(*, tcp: bool = False) -> list[ChildSpec]:
    """
    The four actors; the dispatcher last: the others must be ready for the jobs that it hands out.

    Args:
        tcp: Whether it listens on TCP, too.
    """
    doors = (Placeholder.LISTEN_FD, Placeholder.TCP_FD) if tcp else (Placeholder.LISTEN_FD,)
    return [actor("watchdog"), actor("pause"), actor("scheduler"), actor("dispatcher", *doors)]


def pool(app: str, settings: Settings, socket_path: Path) -> ChildSpec:
    """
    The worker pool that the settings describe.

    Args:
        app: ``MODULE:APP``.
        settings: Its sizes and drain time; other settings go into its environment, but no secrets.
        socket_path: Where the dispatcher listens.
    """
    counts = {"processes": settings.processes, "concurrency": settings.concurrency, "spares": settings.spares}
    sizes = [word for name, count in counts.items() for word in (f"--{name}", str(count))]
    command = (sys.executable, "-m", "pulse.worker", app)
    argv: tuple[str | Placeholder, ...] = (*command, *sizes, "--socket", str(socket_path), Placeholder.PARENT_PID)
    stop = (StopStep(signal.SIGTERM, settings.drain_s + _POOL_REPORT_S), StopStep(signal.SIGKILL, _UNTIL_DEAD_S))
    # The supervisor's values, also those from its command line; a handler that submits jobs looks for its server in
    # PULSE_RUNTIME_DIR.
    told: dict[str, object] = {
        "PULSE_RUNTIME_DIR": socket_path.parent,
        "PULSE_SCHEMA": settings.schema,  # handlers submit by SQL, too
        "PULSE_DRAIN_S": settings.drain_s,
        "PULSE_LOG_LEVEL": settings.log_level,
        "PULSE_LOG_FORMAT": settings.log_format,
        "PULSE_CONFIG": settings.config,
    }
    env = tuple((name, str(value)) for name, value in told.items() if value is not None)
    return ChildSpec("pool", ChildKind.POOL, argv, stop=stop, env=env)


def metrics(address: str, settings: Settings, socket_path: Path) -> ChildSpec:
    """The Prometheus endpoint; it may end any number of times without affecting other children."""
    command = (sys.executable, "-P", "-m", "pulse.cli.main", "metrics", "--listen", address)
    argv: tuple[str | Placeholder, ...] = (*command, "--socket", str(socket_path), Placeholder.PARENT_PID)
    told: dict[str, object] = {
        "PULSE_LOG_LEVEL": settings.log_level,
        "PULSE_LOG_FORMAT": settings.log_format,
        "PULSE_CONFIG": settings.config,
    }
    env = tuple((name, str(value)) for name, value in told.items() if value is not None)
    stop = (StopStep(signal.SIGTERM, 2.0), StopStep(signal.SIGKILL, _UNTIL_DEAD_S))
    delay = Delay(first_s=1.0, longest_s=30.0)
    return ChildSpec("metrics", ChildKind.SERVICE, argv, intensity=NEVER_TOO_OFTEN, delay=delay, stop=stop, env=env)


def postgres(argv: Sequence[str]) -> ChildSpec:
    """The embedded PostgreSQL, by the command line that ``embedded`` prepared."""
    delay = Delay(first_s=0.5, longest_s=2.0)  # the backends of a killed postmaster take up to 2 s to leave
    return ChildSpec(
        "postgres", ChildKind.DATABASE, tuple(argv), delay=delay, stop=POSTGRES_STOP, at_once=POSTGRES_AT_ONCE
    )


def command_line(child: ChildSpec, values: Mapping[Placeholder, int]) -> list[str]:
    """The child's argv with every Slot replaced by its option and value."""
    words: list[str] = []
    for word in child.argv:
        words += [word.value, str(values[word])] if isinstance(word, Placeholder) else [word]
    return words


def stop_order(children: Sequence[ChildSpec]) -> list[list[ChildSpec]]:
    """
    The order of stopping: the reverse of *started*, but all pools at once.

    Pools come first because their last results need the dispatcher; one after the other their drain times would add up.
    """
    pools = [child for child in children if child.kind is ChildKind.POOL]
    others = [[child] for child in reversed(children) if child.kind is not ChildKind.POOL]
    return [pools, *others] if pools else others
