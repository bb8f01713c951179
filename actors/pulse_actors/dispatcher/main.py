"""The dispatcher put together: its services, its listener and its loops, on one actor runtime."""

from __future__ import annotations

import functools
import socket
import uuid
from typing import Final, cast

import anyio
import anyio.abc

from pulse.common import version
from pulse.config import Settings, keeps
from pulse.errors import UnavailableError
from pulse.ops.doctor.finding import Finding
from pulse.security.redaction import Redaction
from pulse_actors.dispatcher.admission.refusal_log import RefusalLog
from pulse_actors.dispatcher.claims.cross_host import CrossHostHints
from pulse_actors.dispatcher.claims.doubts import InDoubtClaims
from pulse_actors.dispatcher.claims.handout import Handout
from pulse_actors.dispatcher.claims.loop import ClaimLoop
from pulse_actors.dispatcher.claims.quarantine import Quarantine
from pulse_actors.dispatcher.claims.refused_jobs import RefusedJobs
from pulse_actors.dispatcher.claims.work_signal import WorkSignal
from pulse_actors.dispatcher.context import PeerServices, ServerInfo, Services
from pulse_actors.dispatcher.epochs.witness import Witness
from pulse_actors.dispatcher.liveness.hung_handlers import HungHandlers
from pulse_actors.dispatcher.liveness.process_watch import LATE_S, ProcessWatch
from pulse_actors.dispatcher.liveness.silent_workers import SilentWorkers
from pulse_actors.dispatcher.liveness.stack_requests import StackRequests
from pulse_actors.dispatcher.liveness.startup import bury_forgotten, bury_late
from pulse_actors.dispatcher.monitoring.answer import StatsReporter
from pulse_actors.dispatcher.monitoring.counters import DispatchCounters
from pulse_actors.dispatcher.monitoring.incidents import Incidents
from pulse_actors.dispatcher.monitoring.memory_trim import MemoryTrim, allocators_trim, resident_bytes
from pulse_actors.dispatcher.monitoring.refused_statements import RefusedStatements
from pulse_actors.dispatcher.net.listener import Listener
from pulse_actors.dispatcher.workers.deadlines import HandlerDeadlines
from pulse_actors.dispatcher.workers.registry import WorkerRegistry
from pulse_actors.dispatcher.writes.heartbeat import HeartbeatWriter
from pulse_actors.dispatcher.writes.report import ReportWriter
from pulse_actors.dispatcher.writes.report_rows import Obituary
from pulse_actors.dispatcher.writes.submit import SubmitWriter
from pulse_actors.runtime.actor import ActorMain, Backoff, Runtime, Turn, TurnResult, database_status, log_unavailable
from pulse_actors.shared import identity as identities

TICK_S: Final = 60.0  # the dispatcher's own turns only hear hints; its work is done by its loops
FLUSH_DEADLINE_S: Final = 4.0  # the supervisor waits 5 s for this process's end


class Dispatcher:
    """
    The actor side: hints, priming, status.

    Args:
        runtime: Bus, settings, store.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        settings, store = runtime.settings, runtime.store
        self.registry = registry = WorkerRegistry()
        self.host = host = identities.this_host(settings.host_id)
        self.counters = counters = DispatchCounters()
        self.cross_host = CrossHostHints(store)
        self.signal = signal = WorkSignal(registry, self.cross_host, poll_s=settings.poll_s)
        deadlines = None
        if settings.proof_of_death:
            deadlines = HandlerDeadlines(registry, obey_s=settings.obey_s, heartbeat_s=settings.heartbeat_s)
        self.in_doubt = in_doubt = InDoubtClaims(store, registry, signal, deadlines)
        self.handout = handout = Handout(
            store,
            registry,
            signal,
            in_doubt=in_doubt,
            host=host if settings.proof_of_death else None,
            lease_s=settings.lease_s,
            counters=counters,
        )
        self.witness = Witness(
            store,
            registry,
            in_doubt=in_doubt,
            signal=signal,
            host=host.id,
            directory=store.timelines.directory,
            lease_s=settings.lease_s,
        )
        store.trust(self.witness)
        self.refused_statements = RefusedStatements(store.failing)
        self.reports = reports = ReportWriter(store, registry, signal, counters, keep=settings.retention_s != 0)
        self.heartbeats = HeartbeatWriter(store, registry, host, counters, lease_s=settings.lease_s)
        self.submits = SubmitWriter(
            store, registry, signal=signal, in_doubt=in_doubt, handout=handout, batch=settings.batch, counters=counters
        )
        stacks = StackRequests(registry)
        self.process_watch, self.silent_workers, self.hung_handlers = None, None, None
        if deadlines is not None:
            self.process_watch = watch = ProcessWatch(store, registry, in_doubt, reports, counters)
            self.silent_workers = SilentWorkers(
                store,
                registry,
                in_doubt,
                watch,
                reports,
                host,
                unwritten=self.heartbeats.unwritten,
                lease_s=settings.lease_s,
            )
            self.hung_handlers = HungHandlers(registry, deadlines, watch, stacks)
        quarantine = Quarantine()
        self.refused_jobs = RefusedJobs(store, registry, handout, in_doubt=in_doubt, signal=signal)
        self.claims = ClaimLoop(
            store,
            registry,
            signal=signal,
            in_doubt=in_doubt,
            handout=handout,
            refused_jobs=self.refused_jobs,
            quarantine=quarantine,
            batch=settings.batch,
        )
        self._living: list[str] = []
        self.services = Services(
            store=store,
            registry=registry,
            signal=signal,
            handout=handout,
            quarantine=quarantine,
            bus=runtime.bus,
            host=host,
            stacks=stacks,
            stats=StatsReporter(store, registry, counters),
            incidents=Incidents(store.incidents, self._own_findings),
            redaction=Redaction(settings.redact),
            server=ServerInfo(
                f"pulse {version.VERSION}", settings.heartbeat_s, settings.lease_s, _server_policy(settings)
            ),
        )
        peer_services = PeerServices(
            services=self.services,
            in_doubt=in_doubt,
            reports=reports,
            heartbeats=self.heartbeats,
            submits=self.submits,
            process_watch=self.process_watch,
            deadlines=deadlines,
            counters=counters,
            refusal_log=RefusalLog(store),
        )
        self.listener = Listener(peer_services, settings)

    async def prime(self, *, boot: bool) -> None:
        """Write the server's defaults where every submit finds them."""
        settings = self._runtime.settings
        await self.witness.step()
        await self._runtime.store.set_server_defaults(settings.max_attempts, settings.max_crashes, settings.backoff)
        await self._read_policies()
        if settings.proof_of_death:
            self._living, locked = await bury_forgotten(
                self._runtime.store, self.host, boot=boot, sweep_s=settings.sweep_s
            )
            if locked:
                self.reports.batcher.put(Obituary(locked))
        await self._runtime.store.warm()

    async def turn(self, turn: Turn) -> TurnResult:
        """Hear hints: something may be claimable, a policy changed, or a drain began."""
        if not turn.inbox or any(hint.event == "policies changed" for hint in turn.inbox):
            await self._read_policies()  # once, however many hints there are; and one may be lost
        for hint in turn.inbox:
            match hint.event:
                case "drain" | "drain_workers":
                    self.drain(reconnect=hint.event == "drain")
                case "lapsed" if self.silent_workers is not None:
                    await self.silent_workers.lapsed(hint.data.get("workers"))
                case "canceled":
                    self._stop_canceled(hint.data.get("jobs"))
                case "failing":
                    self.refused_statements.heard(hint.peer, hint.data.get("statements"))
                case "reload":
                    self.listener.reload()
                case "policies changed":
                    pass
                case "ready":
                    self._note_reaped(hint.data.get("reaped"))
                    self._wake(hint.data.get("delays_s"))
                    self.cross_host.work()
                case "work":
                    for delay_s in self.cross_host.heard(hint.data.get("from"), turn.now_s):
                        self.signal.wake_recent(delay_s)
                case _:
                    self.signal.wake()
        return TurnResult(TICK_S)

    def _stop_canceled(self, jobs: object) -> None:
        """A schedule canceled these: their handlers are stopped here at once, elsewhere at their next heartbeat."""
        for job in cast("list[str]", jobs) if isinstance(jobs, list) else ():
            identity = uuid.UUID(job).bytes
            holder = self.registry.holder_of(identity)
            if holder is not None:
                worker, attempt = holder
                self.handout.forget([(identity, attempt)])
                worker.link.send("stop", None, {"jobs": [(identity, attempt, "canceled")]})

    def _own_findings(self) -> list[Finding]:
        """What is wrong that no look at the database tells."""
        return [*self.witness.findings(), *self.refused_statements.findings()]

    def _note_reaped(self, count: object) -> None:
        """The watchdog has ended so many attempts whose leases had lapsed."""
        if isinstance(count, int):
            self.counters.reaped["lease_expired"] += count

    async def _read_policies(self) -> None:
        """What of the topics' policies is kept in memory; while the database is away, what was known is good."""
        try:
            await self.services.read_policies()
        except UnavailableError as error:
            log_unavailable(error, "policies")

    def _wake(self, delays_s: object) -> None:
        """Something can be claimed, now or after each of these delays."""
        self.signal.wake_recent()
        for delay_s in cast("list[object]", delays_s) if isinstance(delays_s, list) else ():
            if isinstance(delay_s, float):
                self.signal.wake_recent(delay_s)

    def drain(self, *, reconnect: bool) -> None:
        """No more claims; workers come back to a successor, or finish and leave. Each is told once."""
        registry = self.registry
        registry.closed = registry.closed or reconnect
        for worker in registry.workers():
            worker.drain(reconnect=reconnect)

    async def status(self) -> dict[str, object]:
        """Database, gate and counts."""
        store = self._runtime.store
        database = await database_status(store)
        if not database["ok"]:
            return {"database": database}
        counts, exact = await store.reads.counts()
        return {"database": database, "gate": await store.gate.get(), "jobs": counts, "jobs_exact": exact}

    def look_after(self, tasks: anyio.abc.TaskGroup) -> None:
        """Watch over the processes of this host, where the kernel is to be asked at all."""
        if self.process_watch is not None:
            tasks.start_soon(self.process_watch.run)
        if self.silent_workers is not None:
            tasks.start_soon(self.silent_workers.run, self._living)
            tasks.start_soon(self._look_again)
        if self.hung_handlers is not None:
            tasks.start_soon(self.hung_handlers.run)

    async def _look_again(self) -> None:
        """What the dispatcher before this one claimed may have been committed after it was killed."""
        await anyio.sleep(LATE_S)
        backoff = Backoff()
        while True:
            try:
                await bury_late(self._runtime.store, self.host, self._has_seen)
            except UnavailableError:
                await anyio.sleep(backoff.next_s())
            else:
                return

    def _has_seen(self, identity: str) -> bool:
        return identity in self._living or self.registry.has_met(identity)

    async def flush(self) -> None:
        """Let the claim that is under way come in, and write the reports and submits that have arrived."""
        with anyio.move_on_after(FLUSH_DEADLINE_S):
            await self.in_doubt.wait_handed_over()
            if self.process_watch is not None:
                await self.process_watch.settle()
            await self.reports.batcher.wait_idle()
            await self.submits.batcher.wait_idle()


def _server_policy(settings: Settings) -> dict[str, object]:
    """Those of the server's own values that are settings of each, and stand in no table."""
    keep_s, keep_dead_s = keeps(settings.retention_s)
    return {
        "lease_s": settings.lease_s,
        "retention_s": keep_s,
        "retention_dead_s": keep_dead_s,
        "backoff": settings.backoff,
    }


def dispatcher(listen_fd: int, tcp_fd: int | None = None) -> ActorMain:
    """
    The dispatcher's main part.

    Args:
        listen_fd: The listening socket, inherited, so that no client is refused while a dispatcher restarts.
        tcp_fd: Likewise, that of TCP; None: there is none.
    """

    async def main(runtime: Runtime) -> None:
        actor = Dispatcher(runtime)
        await runtime.prime(actor)
        listeners = [(socket.socket(fileno=listen_fd), False)]
        if tcp_fd is not None:
            listeners.append((socket.socket(fileno=tcp_fd), True))
        async with anyio.create_task_group() as tasks:
            for loop in (
                actor.claims.run,
                actor.refused_jobs.run,
                actor.witness.run,
                actor.reports.run,
                actor.heartbeats.batcher.run,
                actor.heartbeats.checkpoints.run,
                actor.heartbeats.unwritten.run,
                actor.submits.batcher.run,
                actor.services.stats.run,
                actor.services.incidents.run,
                actor.cross_host.run,
                MemoryTrim(allocators_trim(), resident_bytes).run,
            ):
                tasks.start_soon(loop)
            actor.look_after(tasks)
            for listening, remote in listeners:
                listener = await anyio.abc.SocketListener.from_socket(listening)
                tasks.start_soon(functools.partial(actor.listener.serve, listener, remote=remote))
            await runtime.loop(actor)
            actor.drain(reconnect=True)  # the supervisor's hint may have come together with its stop
            await actor.flush()
            tasks.cancel_scope.cancel()

    return main
