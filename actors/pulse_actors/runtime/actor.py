"""
What all actors share: hello, settings, priming, the loop, pings, stop, logs and exit codes.

An actor supplies ``prime`` (read what it needs from the database; may refuse to start), ``turn`` (one step of its work,
called when a hint arrives or its pause is over) and ``status``. Tests call these by hand, without process, clock or
sleep. Actors hold no state that the database does not have, so a restarted one primes itself and goes on. While the
database is away an actor stays alive, answers pings, and retries with growing pauses: a restart would not help.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar, cast

import anyio
import anyio.abc
import msgspec
import structlog

from pulse import config
from pulse.errors import (
    ConfigError,
    PathError,
    ProtocolError,
    PulseError,
    SchemaError,
    StatementError,
    UnavailableError,
)
from pulse.logs import configure_logging
from pulse.ops.doctor.refusals import StatementFailure
from pulse.protocol import bus as bodies
from pulse.security.schema_name import DEFAULT
from pulse.store.connections.pool import Target
from pulse.store.connections.pooler import PoolerError
from pulse.store.failures import OF_DRIVER, Failure
from pulse.store.store import Store
from pulse.system import directories, processes
from pulse.worker.options import loop_options
from pulse_actors.runtime import gate_summary
from pulse_actors.runtime.bus import Bus, BusFrame, Hint
from pulse_actors.runtime.schema import see_to_schema

EXIT_STOPPED: Final = 0
EXIT_INTERNAL: Final = 70  # EX_SOFTWARE: restarted
EXIT_DATABASE: Final = 75  # EX_TEMPFAIL: restarted, however often, and not counted: no restart brings a database back
EXIT_REFUSED: Final = 78  # EX_CONFIG: a restart would not help
EXIT_POOLER: Final = 76  # EX_PROTOCOL: likewise: the DSN leads to a pooler
BOOT_DEADLINE_S: Final = 20.0  # how long a first start waits for the database before it refuses
RETRY_MIN_S: Final = 0.05
RETRY_MAX_S: Final = 1.5  # while the database is away: soon back after its return; a failed try costs a millisecond
REFUSED_EVERY_S: Final = 1.0  # between two log lines of one loop whose statement is refused
LOG_EVERY_S: Final = 10.0  # between log lines of each of the six loops that need the database
DISPATCHER: Final = "dispatcher"
MOST_REFUSED: Final = 5  # statements in one hint, which has 4 KiB
MOST_ERROR: Final = 300  # characters
MOST_NUDGES: Final = 100  # hints that wait; beyond that, hints that any database client can send are dropped
QUIET_S: Final = 1.0  # no log line while the database starts a moment later than the actor
_NOT_THERE: Final = (UnavailableError, ConfigError)  # errors that a status answer reports
_REFUSALS: Final = (ConfigError, SchemaError, UnavailableError)

log = structlog.get_logger()
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Turn:
    """
    One step of an actor.

    Attributes:
        now_s: Monotonic clock, seconds.
        inbox: Hints since the last turn; empty: the pause is over.
    """

    now_s: float
    inbox: tuple[Hint, ...] = ()


@dataclass(frozen=True, slots=True)
class TurnResult:
    """
    The result of a turn.

    Attributes:
        next_s: Longest pause until the next turn, seconds.
        hints: Hints for other actors.
    """

    next_s: float
    hints: Sequence[Hint] = ()


class Actor(Protocol):
    """What an actor supplies."""

    async def prime(self, *, boot: bool) -> None:
        """Read what is needed; ConfigError refuses to start, UnavailableError is retried."""

    async def turn(self, turn: Turn) -> TurnResult:
        """One step of work."""
        ...

    async def status(self) -> dict[str, object]:
        """Its part of the supervisor's status: ``database``, ``gate``, ``jobs``."""
        ...


@dataclass(slots=True)
class Pulse:
    """Age of the unfinished turn, for pongs: it shows that an actor is stuck. Or that it upgrades the schema."""

    since_s: float | None = None
    upgrades: bool = False

    def pong(self) -> bodies.ActorPong:
        """For the supervisor, now."""
        turn_age_s = 0.0 if self.since_s is None else time.monotonic() - self.since_s
        return bodies.ActorPong(turn_age_s, upgrades=self.upgrades)


def log_unavailable(error: UnavailableError, step: str) -> None:
    """Log that *step* failed, because the database is away or refuses a statement."""
    if isinstance(error, StatementError):
        log.error(
            "statement_refused", step=step, statement=error.statement, sqlstate=error.sqlstate, error=error.message
        )
    else:
        log.warning("database_away", step=step, error=error.message)


@dataclass(slots=True)
class Backoff:
    """Pauses between retries: doubling with jitter, at most RETRY_MAX_S; and a log line now and then."""

    pause_s: float = RETRY_MIN_S
    logged_s: float = field(default=-LOG_EVERY_S)

    def next_s(self) -> float:
        """The next pause."""
        pause_s, self.pause_s = self.pause_s, min(RETRY_MAX_S, self.pause_s * 2)
        return pause_s * random.uniform(0.5, 1.0)  # noqa: S311 - spreads retries, guards nothing

    def may_log(self, every_s: float = LOG_EVERY_S) -> bool:
        """Whether it is time for another log line."""
        now_s = time.monotonic()
        if now_s - self.logged_s < every_s:
            return False
        self.logged_s = now_s
        return True

    def failed(self, error: UnavailableError, step: str) -> float:
        """*step* failed: log it now and then; returns the next pause."""
        if self.may_log(REFUSED_EVERY_S if isinstance(error, StatementError) else LOG_EVERY_S):
            log_unavailable(error, step)
        return self.next_s()

    def reset(self) -> None:
        """The step succeeded."""
        self.pause_s = RETRY_MIN_S


async def until_available(step: Callable[[], Awaitable[T]], what: str, *, deadline_s: float | None = None) -> T:
    """
    Repeat *step* while the database is away.

    Raises:
        UnavailableError: It was away for longer than *deadline_s*.
    """
    backoff, started_s = Backoff(), time.monotonic()
    while True:
        try:
            return await step()
        except UnavailableError as error:
            if deadline_s is not None and time.monotonic() - started_s > deadline_s:
                raise
            is_early = time.monotonic() - started_s <= QUIET_S
            await anyio.sleep(backoff.next_s() if is_early else backoff.failed(error, what))


class Runtime:
    """
    One actor in its process.

    Args:
        name: The actor's name.
        boot: Whether the supervisor starts it for the first time.
        embedded: Whether the database is the supervisor's own, whose schema is upgraded here.
    """

    def __init__(
        self, name: str, bus: Bus, settings: config.Settings, store: Store, *, boot: bool, embedded: bool = False
    ) -> None:
        self.name = name
        self.bus = bus
        self.settings = settings
        self.store = store
        self.boot = boot
        self.embedded = embedded
        self.pulse = Pulse()
        self._inbox: list[Hint] = []
        self._arrived = anyio.Event()
        self._on_status: Callable[[], Awaitable[dict[str, object]]] | None = None
        self.stopping = anyio.Event()
        self.stop_grace_s = 0.0

    async def prime(self, actor: Actor) -> None:
        """See to the schema and let the actor read what it needs."""
        deadline_s = BOOT_DEADLINE_S if self.boot else None
        if self.boot:  # only then: later, clients are served already
            await until_available(self.store.check_sessions, "sessions", deadline_s=deadline_s)
        tells = self.name == DISPATCHER
        see_to = partial(see_to_schema, self.store, boot=self.boot, embedded=self.embedded, tells=tells)
        self.pulse.upgrades = self.boot and self.embedded
        await until_available(see_to, "schema", deadline_s=deadline_s)
        self.pulse.upgrades = False
        await until_available(lambda: actor.prime(boot=self.boot), "prime", deadline_s=deadline_s)
        self._on_status = actor.status
        gc.collect()
        gc.freeze()  # objects that exist now stay: a full collection would stop the process for 40 ms
        await self.bus.send("ready", None, {})

    async def loop(self, actor: Actor) -> None:
        """Run turns until the supervisor says stop."""
        backoff, pause_s = Backoff(), 0.0
        while not self.stopping.is_set():
            inbox = await self.hints(pause_s)
            if self.stopping.is_set():
                return
            self.pulse.since_s = time.monotonic()
            try:
                result = await actor.turn(Turn(time.monotonic(), inbox))
            except UnavailableError as error:
                pause_s = backoff.failed(error, "turn")
            else:
                backoff.reset()
                pause_s = result.next_s
                for hint in result.hints:
                    await self.bus.hint(hint)
            finally:
                self.pulse.since_s = None

    async def hints(self, pause_s: float) -> tuple[Hint, ...]:
        """Hints, as soon as there is one; () after *pause_s*."""
        with anyio.move_on_after(pause_s):
            await self._arrived.wait()
        self._arrived = anyio.Event()
        hints, self._inbox = tuple(self._inbox), []
        return hints

    def poke(self, hint: Hint) -> None:
        """Let the next turn process *hint* now."""
        self._inbox.append(hint)
        self._arrived.set()

    def nudge(self, hint: Hint) -> None:
        """The same for hints that any database client can send at any rate: dropped when too many wait."""
        if len(self._inbox) < MOST_NUDGES and hint not in self._inbox:
            self.poke(hint)

    async def listen(self, scope: anyio.CancelScope) -> None:
        """Answer the supervisor until it is gone, which ends this process, too."""
        async with anyio.create_task_group() as tasks:
            async for frame in self.bus.frames():
                await self._hear(frame, tasks)
            tasks.cancel_scope.cancel()
        if not self.stopping.is_set():
            log.warning("supervisor_gone", actor=self.name)
            self.stopping.set()
        scope.cancel()

    async def _hear(self, frame: BusFrame, tasks: anyio.abc.TaskGroup) -> None:
        match frame.kind:
            case "ping":
                await self._tell_failing()
                await self.bus.send("pong", frame.request, bodies.body_of(self.pulse.pong()))
            case "hint":
                self._hear_hint(frame.body)
            case "status":
                tasks.start_soon(self._answer_status, frame.request)
            case "stop":
                self.stop_grace_s = msgspec.convert(frame.body, bodies.ActorStop).grace_s
                self.stopping.set()
                self._arrived.set()
            case _:
                pass  # a newer supervisor: all that it sends unasked are hints

    def _hear_hint(self, body: dict[str, object]) -> None:
        try:
            self.poke(bodies.received_hint(body))
        except ProtocolError as error:  # a hint that is not understood is ignored
            log.warning("hint_ignored", actor=self.name, error=error.message)

    async def _tell_failing(self) -> None:
        """Report refused statements to the dispatcher, which shows those of all actors."""
        found = self.store.failing.now()[-MOST_REFUSED:]
        if found and self.name != DISPATCHER:
            told = [bodies.RefusedStatement(*refusal(self.name, one, time.monotonic())) for one in found]
            await self.bus.hint(bodies.hint(DISPATCHER, bodies.HintEvent.FAILING, bodies.RefusedStatementsHint(told)))

    async def _answer_status(self, request: int | None) -> None:
        answer: dict[str, object] = {"database": None, "gate": None, "jobs": None}
        if self._on_status is not None:
            try:
                answer |= await self._on_status()
            except _NOT_THERE as error:  # a failed status answer must not end the actor
                answer["database"] = _not_there(self.store, error)
        gate = answer["gate"]
        if isinstance(gate, dict):
            answer["gate"] = gate_summary.fitting(cast("dict[str, object]", gate))
        await self.bus.send("ok", request, answer)


def refusal(actor: str, one: Failure, now_s: float) -> StatementFailure:
    """A refused statement, as it is reported."""
    return StatementFailure(
        actor, one.statement, one.sqlstate, error=one.error[:MOST_ERROR], times=one.times, for_s=now_s - one.first_s
    )


async def database_status(store: Store) -> dict[str, object]:
    """The ``database`` part of a status answer, whether it is there or not."""
    try:
        return await store.reads.database()
    except _NOT_THERE as error:
        return _not_there(store, error)


def _not_there(store: Store, error: Exception) -> dict[str, object]:
    return {
        "ok": False,
        "dsn": store.query.target.shown,
        "schema": store.query.target.schema,
        "error": str(error) or type(error).__name__,
    }


ActorMain = Callable[[Runtime], Awaitable[None]]


def hear_loop(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """
    Drop an error of anyio that means nothing.

    anyio wakes a task that reads from a socket when data arrives, and when the socket was closed. If a peer connects
    and leaves at once both happen together; the second wake comes too late, which is harmless.
    """
    if isinstance(context.get("exception"), asyncio.InvalidStateError) and "set_result" in str(context.get("message")):
        return
    loop.default_exception_handler(context)


async def _run(name: str, bus_fd: int, main: ActorMain) -> int:
    asyncio.get_running_loop().set_exception_handler(hear_loop)
    bus = await Bus.over(bus_fd)
    await bus.send("hello", 0, bodies.body_of(bodies.ActorHello(name, processes.own_pid())))
    start = await _start_frame(bus)
    if start is None:
        return EXIT_STOPPED
    settings = config.restore(start.settings)
    configure_logging(settings.log_level, settings.log_format)
    structlog.contextvars.bind_contextvars(actor=name)
    if settings.dsn is None:
        message = "the supervisor gave no DSN"
        raise ConfigError(message)
    boot = start.boot
    store = Store(Target(settings.dsn, f"pulse {name}", settings.schema or DEFAULT), proved=not boot)
    store.timelines.directory = _state_dir(settings)
    runtime = Runtime(name, bus, settings, store=store, boot=boot, embedded=start.embedded)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runtime.listen, tasks.cancel_scope)
            try:
                await main(runtime)
            except PulseError as error:
                await bus.send("failed", None, bodies.body_of(bodies.ActorFailed(error.message)))
                log.warning("actor_refused", error=error.message)
                if isinstance(error, PoolerError):
                    return EXIT_POOLER
                if isinstance(error, UnavailableError) and not runtime.boot:
                    return EXIT_DATABASE
                return EXIT_REFUSED if isinstance(error, _REFUSALS) else EXIT_INTERNAL
            finally:
                tasks.cancel_scope.cancel()
    finally:
        store.close()
    return EXIT_STOPPED


def _state_dir(settings: config.Settings) -> Path | None:
    """The directory for files about the database; None: this user has none."""
    try:
        return directories.server_state_dir(os.environ, settings.state_dir)
    except PathError:
        return None


async def _start_frame(bus: Bus) -> bodies.ActorStart | None:
    async for frame in bus.frames():
        if frame.kind == "start":
            return msgspec.convert(frame.body, bodies.ActorStart)
    return None


def run(name: str, *, bus_fd: int, parent_pid: int, main: ActorMain) -> int:
    """
    Run an actor until it must stop; returns its exit code.

    Args:
        name: Which actor.
        bus_fd: The inherited end of the bus.
        parent_pid: The supervisor; if it dies, this process ends.
        main: The actor's own part.
    """
    processes.die_with_parent(parent_pid, signal.SIGKILL)
    processes.leave_no_core()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal group; the supervisor decides
    try:
        return anyio.run(_run, name, bus_fd, main, backend="asyncio", backend_options=loop_options("asyncio"))
    except BaseException as error:  # logs a bug that ends the process
        log.exception("actor_failed", actor=name, error=repr(error))
        return EXIT_DATABASE if _is_of_database(error) else EXIT_INTERNAL


def _is_of_database(error: BaseException) -> bool:
    """Whether *error*, or every error in the group, comes from the database and was not handled."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_of_database, cast("BaseExceptionGroup[BaseException]", error).exceptions))
    return isinstance(error, (UnavailableError, *OF_DRIVER))  # other OSErrors may have any cause


__all__ = [
    "Actor",
    "Backoff",
    "Runtime",
    "Turn",
    "TurnResult",
    "database_status",
    "run",
    "until_available",
]
