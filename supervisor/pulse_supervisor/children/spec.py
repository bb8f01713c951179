"""
The children of the supervisor, as data: what is started, in which order, how it is asked to stop, when it comes back.

Stages start top to bottom, each when the one above it is ready, and stop bottom to top; so do the children within a
stage, except that they start at once, because four interpreters import their modules faster side by side.
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
    """A word of a command line that is known only when the child is spawned; a file descriptor is passed on with it."""

    PARENT_PID = "--parent-pid"
    BUS_FD = "--bus-fd"
    LISTEN_FD = "--listen-fd"
    TCP_FD = "--tcp-fd"


DESCRIPTORS: Final = (Placeholder.BUS_FD, Placeholder.LISTEN_FD, Placeholder.TCP_FD)


class ChildKind(enum.Enum):
    """What a child is, as ``status`` sorts it."""

    DATABASE = "database"
    ACTOR = "actor"
    POOL = "pool"
    SERVICE = "service"


class StopStep(msgspec.Struct, frozen=True):
    """
    One rung of the ladder by which a child is stopped.

    Attributes:
        signal: What to send; None: a ``stop`` frame on the bus.
        wait_s: How long to wait for the end before the next rung.
    """

    signal: signal.Signals | None
    wait_s: float


_UNTIL_DEAD_S: Final = (
    5.0  # after SIGKILL a process can only be stuck in the kernel; then it is reported, not waited for
)

NEVER_TOO_OFTEN: Final = Intensity(max_restarts=1_000_000)
ACTOR_STOP: Final = (
    StopStep(None, 5.0),  # statements of an actor are bounded by 5 s; what it holds is committed or given up by then
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
_POOL_REPORT_S: Final = 5.0  # what a pool may take beyond the drain to have its last results acknowledged


class LivenessLimits(msgspec.Struct, frozen=True):
    """
    How long an actor may keep silent, in seconds.

    Attributes:
        hello_s: From spawn to hello: an interpreter and its imports on a machine that is busy with three others.
        ready_s: From the ``start`` frame to ready, at boot: a schema's installation, behind another supervisor's.
        ping_s: Between two pings: what a wake-up of each actor per second costs is not measurable.
        pong_s: Since the last sign of life: three pings. A loop that blocks for so long fails all who wait for it.
        priming_pong_s: The same before ready, where imports and large first results block the loop legitimately.
        turn_s: Age of an unfinished turn: every statement is bounded by 5 s, so nothing sound takes this long.
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
        name: Unique in the tree; where hints are addressed to.
        kind: What it is.
        argv: Its command line; a Slot is written as its option and the number that fills it.
        restart: Which ends call for a new start.
        intensity: How many restarts are too many.
        delay: How long restarts wait.
        stop: The ladder by which it is stopped.
        at_once: The ladder of the impatient.
        limits: How long it may keep silent; None: it does not speak on the bus.
        env: Variables on top of the supervisor's own environment.
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


def actor(name: str, *slots: Placeholder) -> ChildSpec:
    """A child that runs one of the actors; -P keeps the current directory's modules from shadowing ours."""
    command = (sys.executable, "-P", "-m", "pulse_actors", name)
    argv: tuple[str | Placeholder, ...] = (*command, Placeholder.BUS_FD, Placeholder.PARENT_PID, *slots)
    return ChildSpec(name, ChildKind.ACTOR, argv, limits=LivenessLimits())


def actors(*, tcp: bool = False) -> list[ChildSpec]:
    """
    The four actors; the dispatcher last, since what it hands out the others must be able to look after.

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
        settings: Its sizes and drain; what else it is to know goes into its environment, and no secret.
        socket_path: Where the dispatcher listens.
    """
    counts = {"processes": settings.processes, "concurrency": settings.concurrency, "spares": settings.spares}
    sizes = [word for name, count in counts.items() for word in (f"--{name}", str(count))]
    command = (sys.executable, "-m", "pulse.worker", app)
    argv: tuple[str | Placeholder, ...] = (*command, *sizes, "--socket", str(socket_path), Placeholder.PARENT_PID)
    stop = (StopStep(signal.SIGTERM, settings.drain_s + _POOL_REPORT_S), StopStep(signal.SIGKILL, _UNTIL_DEAD_S))
    # As the supervisor has them, also where an option of its own command line decided; and a handler that submits jobs
    # looks for its server in PULSE_RUNTIME_DIR.
    told: dict[str, object] = {
        "PULSE_RUNTIME_DIR": socket_path.parent,
        "PULSE_DRAIN_S": settings.drain_s,
        "PULSE_LOG_LEVEL": settings.log_level,
        "PULSE_LOG_FORMAT": settings.log_format,
        "PULSE_CONFIG": settings.config,
    }
    env = tuple((name, str(value)) for name, value in told.items() if value is not None)
    return ChildSpec("pool", ChildKind.POOL, argv, stop=stop, env=env)


def metrics(address: str, settings: Settings, socket_path: Path) -> ChildSpec:
    """The Prometheus endpoint; however often it ends, nothing else does because of it."""
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
    """The child's argv with every Slot written out as its option and its value."""
    words: list[str] = []
    for word in child.argv:
        words += [word.value, str(values[word])] if isinstance(word, Placeholder) else [word]
    return words


def stop_order(children: Sequence[ChildSpec]) -> list[list[ChildSpec]]:
    """
    The order of stopping, given the order of starting: the reverse, but all pools at once.

    Pools come first because their last results need the dispatcher; they would add up their drains one by one.
    """
    pools = [child for child in children if child.kind is ChildKind.POOL]
    others = [[child] for child in reversed(children) if child.kind is not ChildKind.POOL]
    return [pools, *others] if pools else others
