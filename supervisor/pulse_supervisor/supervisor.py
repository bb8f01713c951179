"""
The life of a supervisor: start everything, serve requests, stop everything, in an order that loses nothing.

Start: the actors, which import while PostgreSQL is prepared and started; they get their settings, with the DSN, when it
accepts connections. When all actors are ready, so is the supervisor, and the pools start.

Stop: the dispatcher stops claiming; the pools drain, and report through it; then the actors, in reverse order; then
PostgreSQL. Each has a ladder of signals with time limits. A second signal kills in the same order: pools, then, when
the dispatcher has had time to give back what they held, the actors; PostgreSQL still shuts down by itself.
"""

from __future__ import annotations

import errno
import functools
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import trio
from msgspec import Struct

from pulse import config
from pulse.errors import ConflictError, EmbeddedError, NotFoundError
from pulse.protocol import ActorRequest, DrainRequest, LogsRequest
from pulse.protocol.bus import HintEvent, OperatorAction
from pulse.protocol.roles import Access
from pulse.security.grants import Grants
from pulse.security.log_throttle import Refused
from pulse.system import processes
from pulse_supervisor.children.events import RestartAsked
from pulse_supervisor.children.lifecycle import EXIT_REFUSED, ChildPhase
from pulse_supervisor.children.spec import ChildKind, ChildSpec, Placeholder, stop_order
from pulse_supervisor.control.log_ring import LogRing, serve_ring
from pulse_supervisor.control.server import ControlServer, Requester
from pulse_supervisor.control.status import StatusCollector
from pulse_supervisor.runner import DISPATCHER, ChildRunner, ShutdownReason
from pulse_supervisor.slots import ChildSlot, SupervisorIdentity
from pulse_supervisor.systemd.notify import Notifier

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from pulse_supervisor.postgres.child import PostgresChild
    from pulse_supervisor.sockets import Sockets

EXIT_STOPPED: Final = 0
NAMES_S: Final = 2.0  # between two checks that the sockets still have their names
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)


class Plan(msgspec.Struct, frozen=True):
    """
    What a supervisor runs.

    Attributes:
        settings: Checked; ``dsn`` None means the embedded PostgreSQL.
        sockets: The runtime directory's.
        actors: In the order of their start.
        pools: Started when all actors are ready.
        grants: The roles of accounts.
        make_database: Prepares the embedded PostgreSQL; blocks, and runs programs. None without one.
        version: Version of pulse.
        services: Other services, from the beginning to the end.
    """

    settings: config.Settings
    sockets: Sockets
    actors: Sequence[ChildSpec]
    pools: Sequence[ChildSpec]
    grants: Grants
    make_database: Callable[[], PostgresChild] | None
    version: str
    services: Sequence[ChildSpec] = ()


class SupervisorRun:
    """
    One run.

    Args:
        plan: What to run.
        nursery: Runs all tasks.
        notifier: Notifies the service manager.
        log: Structured log.
    """

    def __init__(self, plan: Plan, nursery: trio.Nursery, notifier: Notifier, log: FilteringBoundLogger) -> None:
        self._plan = plan
        self._settings = plan.settings
        self._sockets = plan.sockets
        self._nursery = nursery
        self._notifier = notifier
        self._log = log
        shared = {Placeholder.LISTEN_FD: plan.sockets.client.fileno()}
        if plan.sockets.tcp is not None:
            shared[Placeholder.TCP_FD] = plan.sockets.tcp.fileno()
        identity = SupervisorIdentity(plan.version, trio.current_time())
        runner = self._runner = ChildRunner(identity, shared, nursery, notifier=notifier, log=log)
        self._hub, self._reaper = runner.hub, runner.reaper
        self._status_collector = StatusCollector(runner.describe, runner.hub.listeners)
        self._database: PostgresChild | None = None
        answers = {"status": self._status, "ping": self._ping, "actors.restart": self._restart, "drain": self._drain}
        answers["logs"] = self._logs
        welcome = {
            "server": f"pulse {plan.version}",
            "heartbeat_s": plan.settings.heartbeat_s,
            "lease_s": plan.settings.lease_s,
        }
        self._ring = LogRing()
        self._refused = Refused()
        self._server = ControlServer(
            answers, welcome, log.warning, grants=plan.grants, did=self._did, forbade=self._forbade
        )

    async def run(self) -> ShutdownReason:
        """Run until a signal, or until a child has failed for good; returns when every child has ended."""
        runner, nursery = self._runner, self._nursery
        await nursery.start(self._hear_signals)
        nursery.start_soon(runner.keep_time)
        await nursery.start(serve_ring, self._ring, self._sockets.directory, self._log.warning)
        nursery.start_soon(self._server.serve, self._sockets.control)
        nursery.start_soon(self._keep_names)
        async with trio.open_nursery() as starting:
            starting.start_soon(self._start)
            await runner.wait_until(lambda: runner.shutdown is not None)
            starting.cancel_scope.cancel()
        await self._stop()
        assert runner.shutdown is not None  # noqa: S101 - it ended the wait above
        return runner.shutdown

    async def _hear_signals(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with trio.open_signal_receiver(*_SIGNALS) as signals:
            task_status.started()
            async for number in signals:
                if number == signal.SIGCHLD:
                    self._reaper.reap_orphans()
                elif number == signal.SIGHUP:
                    self._reload()
                elif self._runner.shutdown is None:
                    self._log.info("supervisor_stopping", signal=signal.Signals(number).name)
                    self._runner.stop(ShutdownReason(EXIT_STOPPED))
                else:
                    self._log.warning("supervisor_hurries", signal=signal.Signals(number).name)
                    self._runner.hurry()

    def _reload(self) -> None:
        """Have the certificate read again; settings are read once, at start."""
        if self._sockets.tcp is None or self._settings.tls_cert is None:
            self._log.info("signal_ignored", signal="SIGHUP")
        elif not self._hub.tell_nowait(DISPATCHER, HintEvent.RELOAD):
            self._log.info("reload_later", reason="the dispatcher is being started, and reads the certificate then")

    async def _keep_names(self) -> None:
        """Restore the names of the sockets: without them nobody can connect."""
        lost: set[Path] = set()
        while True:
            await trio.sleep(NAMES_S)
            for path in self._sockets.put_back():
                self._log.warning("socket_name_put_back", path=str(path))
            gone = set(self._sockets.nameless())
            for path in sorted(gone - lost):
                told = "the runtime directory was removed: existing connections stay; restart pulse-supervisor"
                self._log.error("socket_name_lost", path=str(path), message=told)
            lost = gone

    async def _start(self) -> None:
        plan, settings = self._plan, self._settings
        for child in (*plan.services, *plan.actors):
            self._runner.start(child)
        if plan.make_database is not None:
            database = await self._make_database(plan.make_database)
            if database is None:
                return
            self._database = database
            settings = msgspec.structs.replace(settings, dsn=database.dsn)
            self._runner.start(database.child, database)
        await self._runner.wait_until(lambda: self._runner.are_running(ChildKind.DATABASE))
        self._runner.brief(config.dump(settings))
        await self._runner.wait_until(lambda: self._runner.are_running(ChildKind.ACTOR))
        for child in plan.pools:
            self._runner.start(child)
        self._tell_ready()

    async def _make_database(self, make: Callable[[], PostgresChild]) -> PostgresChild | None:
        database = None
        self._reaper.pause()
        try:
            database = await trio.to_thread.run_sync(make, abandon_on_cancel=True)
        except EmbeddedError as error:
            self._runner.stop(ShutdownReason(EXIT_REFUSED, error.message))
        # Not in a finally: a stop abandons the thread, which must still learn how its programs end. An initdb that was
        # killed and reaped elsewhere would look like one that succeeded.
        self._reaper.resume()
        return database

    def _tell_ready(self) -> None:
        sockets = self._sockets
        self._notifier.ready("ready")
        self._log.info(
            "supervisor_ready",
            message="pulse is ready",
            pulse_sock=str(sockets.client_path),
            supervisor_sock=str(sockets.control_path),
            tcp=sockets.tcp_address,
            start_ms=round(processes.age_s() * 1000),
        )

    async def _stop(self) -> None:
        self._notifier.stopping("stopping")
        self._runner.drain_dispatcher()
        # The order of starting: PostgreSQL got its slot after the actors', since it had to be prepared first.
        slots = [
            *self._runner.slots_of(ChildKind.SERVICE),
            *self._runner.slots_of(ChildKind.DATABASE),
            *self._runner.slots_of(ChildKind.ACTOR),
            *self._runner.slots_of(ChildKind.POOL),
        ]
        for batch in stop_order([slot.child for slot in slots]):
            for child in batch:
                self._runner.ask_to_stop(child.name)
            await self._runner.wait_until(functools.partial(self._runner.are_gone, [child.name for child in batch]))
        await self._runner.end_template()
        for left in await self._reaper.end_all():
            self._log.warning("process_left_behind", pid=left.pid, command=left.command)
        if self._database is not None:
            self._database.release()
        self._log.info("supervisor_stopped")

    async def _status(self, _request: Struct) -> dict[str, object]:
        return await self._status_collector.gather()

    async def _ping(self, _request: Struct) -> dict[str, object]:
        return {}

    async def _logs(self, request: Struct) -> dict[str, object]:
        assert isinstance(request, LogsRequest)  # noqa: S101 - the door decodes each kind as its type
        return await self._ring.answer(request)

    async def _restart(self, request: Struct) -> dict[str, object]:
        """Stop a child in its own time and answer when there is a new process."""
        assert isinstance(request, ActorRequest)  # noqa: S101 - the door decodes each kind as its type
        slot = self._slot_named(request.name)
        former = slot.process
        if self._runner.shutdown is not None or slot.state.phase in {ChildPhase.STOPPING, ChildPhase.FAILED}:
            raise ConflictError(f"{request.name} is {slot.state.shown}, it cannot be restarted now")
        self._runner.feed(request.name, RestartAsked())
        await self._runner.wait_until(lambda: slot.is_gone or slot.process not in {None, former})
        if slot.process is None:
            raise ConflictError(f"{request.name} was stopped for good meanwhile")
        return {"name": request.name, "pid": slot.process.pid}

    def _slot_named(self, name: str) -> ChildSlot:
        kinds = (ChildKind.ACTOR, ChildKind.POOL, ChildKind.SERVICE)
        slots = {slot.child.name: slot for kind in kinds for slot in self._runner.slots_of(kind)}
        if name not in slots:
            raise NotFoundError(f"there is no actor {name}; there are {', '.join(slots)}")
        return slots[name]

    async def _drain(self, request: Struct) -> dict[str, object]:
        """Drain the own pools and keep them stopped; with ``all``, have the dispatcher drain all other workers, too."""
        assert isinstance(request, DrainRequest)  # noqa: S101 - the door decodes each kind as its type
        if request.all:
            self._hub.tell_nowait(DISPATCHER, HintEvent.DRAIN_WORKERS)
        for slot in self._runner.slots_of(ChildKind.POOL):
            self._runner.ask_to_stop(slot.child.name)
        return {}

    def _did(self, request: Struct, requester: Requester) -> None:
        """Have an audit entry written for a restart or a drain."""
        match request:
            case ActorRequest(name):
                self._note("actors.restart", requester, {"name": name})
            case DrainRequest(everything):
                self._note("drain", requester, {"all": everything})
            case _:
                pass

    def _forbade(self, kind: str, needed: Access, requester: Requester) -> None:
        """The same for a request that lacked the role *needed*; once a minute."""
        times = self._refused.count((str(requester.uid), kind), trio.current_time())
        if times is not None:
            self._log.warning("forbidden", kind=kind, needs=needed.value, uid=requester.uid, times=times)
            self._note("forbidden", requester, {"kind": kind, "needs": needed.value, "times": times})

    def _note(self, action: str, requester: Requester, detail: Mapping[str, object]) -> None:
        """Send it to an actor that is connected to the database, whichever can receive it."""
        told = OperatorAction(action, requester.uid, requester.pid, behalf=requester.behalf, detail=dict(detail))
        if not any(self._hub.tell_nowait(hearer, HintEvent.OPERATOR, told) for hearer in ("watchdog", "pause")):
            error = "no actor hears it"
            self._log.warning("action_not_noted", action=action, uid=requester.uid, detail=detail, error=error)


async def supervise(plan: Plan, notifier: Notifier, log: FilteringBoundLogger) -> ShutdownReason:
    """Run a supervisor from start to end; returns when every process has ended."""
    if not processes.adopt_orphans():
        raise OSError(errno.EPERM, "the kernel gives no orphans to the supervisor (prctl PR_SET_CHILD_SUBREAPER)")
    async with trio.open_nursery() as nursery:
        reason = await SupervisorRun(plan, nursery, notifier, log=log).run()
        nursery.cancel_scope.cancel()
    return reason
