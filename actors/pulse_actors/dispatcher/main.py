"""Builds the dispatcher: its services, its listener and its loops, on one actor runtime."""

from __future__ import annotations

import functools
import socket
import uuid
from collections.abc import Sequence
from typing import Final

import anyio
import anyio.abc

from pulse.common import version
from pulse.config import Settings, keeps
from pulse.errors import UnavailableError
from pulse.ops.doctor.finding import Finding
from pulse.ops.doctor.running import ARRIVE_S
from pulse.protocol.bus import CanceledJobs, HintEvent, LapsedLeases, ReadyJobs, WorkSomewhere
from pulse.security.redaction import Redaction
from pulse.security.schema_name import DEFAULT
from pulse.system import processes
from pulse_actors.dispatcher.admission.refusal_log import RefusalLog
from pulse_actors.dispatcher.claims.parts import claim_parts
from pulse_actors.dispatcher.context import PeerServices, ServerInfo
from pulse_actors.dispatcher.epochs.witness import Witness
from pulse_actors.dispatcher.liveness.host_workers import HostWorkers
from pulse_actors.dispatcher.liveness.hung_handlers import HungHandlers
from pulse_actors.dispatcher.liveness.process_watch import ProcessWatch
from pulse_actors.dispatcher.liveness.silent_workers import SilentWorkers
from pulse_actors.dispatcher.liveness.stack_requests import StackRequests
from pulse_actors.dispatcher.monitoring.answer import StatsReporter
from pulse_actors.dispatcher.monitoring.counters import DispatchCounters
from pulse_actors.dispatcher.monitoring.findings import Findings
from pulse_actors.dispatcher.monitoring.memory_trim import MemoryTrim, allocators_trim, resident_bytes
from pulse_actors.dispatcher.monitoring.refused_statements import RefusedStatements
from pulse_actors.dispatcher.net.listener import Listener
from pulse_actors.dispatcher.workers.deadlines import HandlerDeadlines
from pulse_actors.dispatcher.workers.registry import WorkerRegistry
from pulse_actors.dispatcher.writes.heartbeat import HeartbeatWriter
from pulse_actors.dispatcher.writes.report import ReportWriter
from pulse_actors.dispatcher.writes.report_rows import Obituary
from pulse_actors.dispatcher.writes.submit import SubmitWriter
from pulse_actors.runtime.actor import ActorMain, Runtime, Turn, TurnResult, database_status, log_unavailable
from pulse_actors.shared import identity as identities

TICK_S: Final = 60.0  # turns of the dispatcher only process hints; loops do its work
FLUSH_DEADLINE_S: Final = 4.0  # the supervisor waits 5 s for this process's end


class Dispatcher:
    """The dispatcher as an actor: hints, priming, status."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._store, self._settings = store, settings = runtime.store, runtime.settings
        self.registry = registry = WorkerRegistry()
        self.host = identities.this_host(settings.host_id)
        self.counters = counters = DispatchCounters()
        self._deadlines = None
        if settings.proof_of_death:
            self._deadlines = HandlerDeadlines(registry, obey_s=settings.obey_s, heartbeat_s=settings.heartbeat_s)
        self.claims = claims = claim_parts(
            store,
            registry,
            counters,
            host=self.host if settings.proof_of_death else None,
            deadlines=self._deadlines,
            lease_s=settings.lease_s,
            poll_s=settings.poll_s,
            batch=settings.batch,
        )
        self.witness = Witness(
            store,
            registry,
            in_doubt=claims.in_doubt,
            signal=claims.signal,
            host=self.host.id,
            directory=store.timelines.directory,
            lease_s=settings.lease_s,
        )
        store.trust(self.witness)
        self.reports = ReportWriter(
            store, registry, claims.signal, counters=counters, failures=claims.failures, keep=settings.retention_s != 0
        )
        self.heartbeats = HeartbeatWriter(store, registry, self.host, counters=counters, lease_s=settings.lease_s)
        self.submits = SubmitWriter(
            store,
            registry,
            signal=claims.signal,
            in_doubt=claims.in_doubt,
            handout=claims.handout,
            batch=settings.batch,
            counters=counters,
        )
        self._stacks = StackRequests(registry)
        self.host_workers = None if self._deadlines is None else self._watch_host(self._deadlines)
        self.refused_statements = RefusedStatements(store.failing)
        self.services = self._make_services()
        self.listener = Listener(self.services, settings)

    def _watch_host(self, deadlines: HandlerDeadlines) -> HostWorkers:
        in_doubt = self.claims.in_doubt
        process_watch = ProcessWatch(self._store, self.registry, in_doubt, reports=self.reports, counters=self.counters)
        silent_workers = SilentWorkers(
            self._store,
            self.registry,
            in_doubt,
            process_watch=process_watch,
            reports=self.reports,
            host=self.host,
            unwritten=self.heartbeats.unwritten,
            lease_s=self._settings.lease_s,
        )
        hung_handlers = HungHandlers(self.registry, deadlines, process_watch, stacks=self._stacks)
        return HostWorkers(
            process_watch, silent_workers, hung_handlers, store=self._store, registry=self.registry, host=self.host
        )

    def _make_services(self) -> PeerServices:
        store, settings, claims = self._store, self._settings, self.claims
        return PeerServices(
            store=store,
            registry=self.registry,
            signal=claims.signal,
            handout=claims.handout,
            quarantine=claims.quarantine,
            bus=self._runtime.bus,
            host=self.host,
            stacks=self._stacks,
            stats=StatsReporter(store, self.registry, self.counters),
            findings=Findings(store.findings, self._served, self._own_findings),
            redaction=Redaction(settings.redact),
            server=ServerInfo(
                f"pulse {version.VERSION}",
                settings.heartbeat_s,
                settings.lease_s,
                policy=_server_policy(settings),
                schema=settings.schema or DEFAULT,
            ),
            in_doubt=self.claims.in_doubt,
            reports=self.reports,
            heartbeats=self.heartbeats,
            submits=self.submits,
            process_watch=None if self.host_workers is None else self.host_workers.process_watch,
            deadlines=self._deadlines,
            counters=self.counters,
            refusal_log=RefusalLog(self._store),
        )

    async def prime(self, *, boot: bool) -> None:
        """Write the server's defaults, which submits read."""
        settings, store = self._settings, self._store
        await self.witness.step()
        await store.set_server_defaults(settings.max_attempts, settings.max_crashes, settings.backoff)
        await self._read_policies()
        if self.host_workers is not None:
            locked = await self.host_workers.bury_forgotten(boot=boot, sweep_s=settings.sweep_s)
            if locked:
                self.reports.put(Obituary(locked))
        await store.warm()

    async def turn(self, turn: Turn) -> TurnResult:
        """Process hints: there may be work, a policy changed, or a drain began."""
        if not turn.inbox or any(hint.event == HintEvent.POLICIES_CHANGED for hint in turn.inbox):
            await self._read_policies()  # once, however many hints there are; hints may be lost
        for hint in turn.inbox:
            match hint.event:
                case HintEvent.DRAIN | HintEvent.DRAIN_WORKERS:
                    self.drain(reconnect=hint.event == HintEvent.DRAIN)
                case HintEvent.LAPSED if self.host_workers is not None:
                    await self.host_workers.silent_workers.lapsed(hint.read(LapsedLeases).workers)
                case HintEvent.CANCELED:
                    self._stop_canceled(hint.read(CanceledJobs).jobs)
                case HintEvent.FAILING:
                    self.refused_statements.heard(hint.peer, hint.data.get("statements"))
                case HintEvent.RELOAD:
                    self.listener.reload()
                case HintEvent.POLICIES_CHANGED:
                    pass
                case HintEvent.READY:
                    self._wake(hint.read(ReadyJobs))
                case HintEvent.WORK:
                    for delay_s in self.claims.cross_host.heard(hint.read(WorkSomewhere).sender, turn.now_s):
                        self.claims.signal.wake_recent(delay_s)
                case _:
                    self.claims.signal.wake()
        return TurnResult(TICK_S)

    def _stop_canceled(self, jobs: Sequence[str]) -> None:
        """A schedule canceled these: their handlers are stopped here at once, on other hosts at the next heartbeat."""
        for job in jobs:
            identity = uuid.UUID(job).bytes
            holder = self.registry.holder_of(identity)
            if holder is not None:
                worker, attempt = holder
                self.claims.handout.forget([(identity, attempt)])
                worker.link.send("stop", None, {"jobs": [(identity, attempt, "canceled")]})

    def _served(self) -> set[str] | None:
        """The topics that workers serve; None: after a start they may still be on their way."""
        return None if processes.age_s() < ARRIVE_S else self.registry.served()

    def _own_findings(self) -> list[Finding]:
        """Findings that the database cannot show."""
        return [*self.witness.findings(), *self.refused_statements.findings()]

    async def _read_policies(self) -> None:
        """Read the policies to keep in memory; while the database is away, the old ones stay."""
        try:
            await self.services.read_policies()
        except UnavailableError as error:
            log_unavailable(error, "policies")

    def _wake(self, ready: ReadyJobs) -> None:
        """Jobs can be claimed, here or on other hosts; attempts with lapsed leases were ended."""
        self.counters.reaped["lease_expired"] += ready.reaped or 0
        for delay_s in (0.0, *(ready.delays_s or ())):
            self.claims.signal.wake_recent(delay_s)
        self.claims.cross_host.work()

    def drain(self, *, reconnect: bool) -> None:
        """Stop claiming; workers reconnect to the next dispatcher, or finish and end. Each gets the order once."""
        self.registry.close(reconnect=reconnect)
        for worker in self.registry.workers():
            worker.drain(reconnect=reconnect)

    async def status(self) -> dict[str, object]:
        """Database, gate and counts."""
        store = self._store
        database = await database_status(store)
        if not database["ok"]:
            return {"database": database}
        counts, exact = await store.reads.counts()
        return {"database": database, "gate": await store.gate.get(), "jobs": counts, "jobs_exact": exact}

    async def flush(self) -> None:
        """Wait for the claim under way, and write reports and submits that have arrived."""
        with anyio.move_on_after(FLUSH_DEADLINE_S):
            await self.claims.in_doubt.wait_handed_over()
            if self.host_workers is not None:
                await self.host_workers.process_watch.settle()
            for batcher in (self.reports.batcher, self.submits.batcher):
                await batcher.wait_idle()


def _server_policy(settings: Settings) -> dict[str, object]:
    """The server's policy options that are settings, not columns."""
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
        listen_fd: The inherited listening socket, so that no client is refused while a dispatcher restarts.
        tcp_fd: The same for TCP; None: there is none.
    """

    async def main(runtime: Runtime) -> None:
        actor = Dispatcher(runtime)
        await runtime.prime(actor)
        listeners = [(socket.socket(fileno=listen_fd), False)]
        if tcp_fd is not None:
            listeners.append((socket.socket(fileno=tcp_fd), True))
        async with anyio.create_task_group() as tasks:
            for loop in (
                actor.claims.loop.run,
                actor.claims.signal.tell_left,
                actor.claims.refused_jobs.run,
                actor.witness.run,
                actor.reports.run,
                actor.heartbeats.batcher.run,
                actor.heartbeats.checkpoints.run,
                actor.heartbeats.unwritten.run,
                actor.submits.batcher.run,
                actor.claims.failures.run,
                actor.services.stats.run,
                actor.services.findings.run,
                actor.claims.cross_host.run,
                MemoryTrim(allocators_trim(), resident_bytes).run,
            ):
                tasks.start_soon(loop)
            if actor.host_workers is not None:
                tasks.start_soon(actor.host_workers.run)
            for listening, remote in listeners:
                listener = await anyio.abc.SocketListener.from_socket(listening)
                tasks.start_soon(functools.partial(actor.listener.serve, listener, remote=remote))
            await runtime.loop(actor)
            actor.drain(reconnect=True)  # the supervisor's drain may have come together with its stop
            await actor.flush()
            tasks.cancel_scope.cancel()

    return main
