"""The dispatcher put together: the office, the door and the loops, on one actor runtime."""

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
from pulse_actors.dispatcher.admission.refusal_log import Refusals
from pulse_actors.dispatcher.claims.cross_host import News
from pulse_actors.dispatcher.claims.loop import Claims
from pulse_actors.dispatcher.context import Office
from pulse_actors.dispatcher.epochs.witness import Witness
from pulse_actors.dispatcher.liveness.hung_handlers import Overdue
from pulse_actors.dispatcher.liveness.process_watch import LATE_S, Deaths
from pulse_actors.dispatcher.liveness.silent_workers import Silence
from pulse_actors.dispatcher.liveness.stack_requests import Stacks
from pulse_actors.dispatcher.liveness.startup import bury_forgotten, bury_late
from pulse_actors.dispatcher.monitoring.answer import Stats
from pulse_actors.dispatcher.monitoring.incidents import Incidents
from pulse_actors.dispatcher.monitoring.memory_trim import Trimming, allocators_trim, resident_bytes
from pulse_actors.dispatcher.monitoring.refused_statements import FailingStatements
from pulse_actors.dispatcher.net.listener import Reception
from pulse_actors.dispatcher.services import Desktop
from pulse_actors.dispatcher.workers.registry import Desk
from pulse_actors.dispatcher.writes.heartbeat import Leases
from pulse_actors.dispatcher.writes.report import Obituary, Results
from pulse_actors.dispatcher.writes.submit import Submits
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
        desk = Desk()
        host = identities.this_host(settings.host_id)
        mine = host if settings.proof_of_death else None
        claims = Claims(store, desk, mine, lease_s=settings.lease_s, poll_s=settings.poll_s, batch=settings.batch)
        self.witness = Witness(store, desk, claims, host.id, store.timelines.directory, lease_s=settings.lease_s)
        store.knowledge = self.witness
        self.failing = FailingStatements(store.failing)
        results = Results(store, desk, claims, keep=settings.retention_s != 0)
        leases = Leases(store, desk, host, lease_s=settings.lease_s)
        stacks, stats = Stacks(desk), Stats(store, desk)
        deaths, self.silence, overdue = None, None, None
        if settings.proof_of_death:
            deaths = Deaths(store, desk, claims, results)
            self.silence = Silence(
                store, desk, claims, deaths, results, host, unwritten=leases.unwritten, lease_s=settings.lease_s
            )
            overdue = Overdue(desk, deaths, stacks, obey_s=settings.obey_s, heartbeat_s=settings.heartbeat_s)
            claims.learned = overdue.started
        self.news = News(store, desk)
        claims.work_left = self.news.work
        self._living: list[str] = []
        self.office = Office(
            Desktop(
                store,
                desk,
                claims,
                runtime.bus,
                host,
                stacks,
                stats,
                Incidents(store.incidents, self._known_wrong),
                settings.heartbeat_s,
                Redaction(settings.redact),
                _server_policy(settings),
            ),
            claims,
            results,
            leases,
            Submits(store, claims),
            host,
            f"pulse {version.VERSION}",
            settings.heartbeat_s,
            settings.lease_s,
            deaths,
            overdue,
            Refusals(store),
        )
        self.reception = Reception(self.office, settings)

    async def prime(self, *, boot: bool) -> None:
        """Write the server's defaults where every submit finds them."""
        settings = self._runtime.settings
        await self.witness.step()
        await self._runtime.store.set_server_defaults(settings.max_attempts, settings.max_crashes, settings.backoff)
        await self._read_policies()
        if settings.proof_of_death:
            self._living, locked = await bury_forgotten(
                self._runtime.store, self.office.host, boot=boot, sweep_s=settings.sweep_s
            )
            if locked:
                self.office.results.batcher.put(Obituary(locked))
        await self._runtime.store.warm()

    async def turn(self, turn: Turn) -> TurnResult:
        """Hear hints: something may be claimable, a policy changed, or a drain began."""
        if not turn.inbox or any(hint.event == "policies changed" for hint in turn.inbox):
            await self._read_policies()  # once, however many hints there are; and one may be lost
        for hint in turn.inbox:
            match hint.event:
                case "drain" | "drain_workers":
                    self.drain(reconnect=hint.event == "drain")
                case "lapsed" if self.silence is not None:
                    await self.silence.lapsed(hint.data.get("workers"))
                case "canceled":
                    self._stop_canceled(hint.data.get("jobs"))
                case "failing":
                    self.failing.heard(hint.peer, hint.data.get("statements"))
                case "reload":
                    self.reception.reload()
                case "policies changed":
                    pass
                case "ready":
                    self._note_reaped(hint.data.get("reaped"))
                    self._wake(hint.data.get("delays_s"))
                    self.news.work_somewhere()
                case "work":
                    for delay_s in self.news.heard(hint.data.get("from"), turn.now_s):
                        self.office.claims.wake_recent(delay_s)
                case _:
                    self.office.claims.wake()
        return TurnResult(TICK_S)

    def _stop_canceled(self, jobs: object) -> None:
        """A schedule canceled these: their handlers are stopped here at once, elsewhere at their next heartbeat."""
        for job in cast("list[str]", jobs) if isinstance(jobs, list) else ():
            identity = uuid.UUID(job).bytes
            holder = self.office.desktop.desk.holder_of(identity)
            if holder is not None:
                worker, attempt = holder
                self.office.claims.forget([(identity, attempt)])
                worker.link.send("stop", None, {"jobs": [(identity, attempt, "canceled")]})

    def _known_wrong(self) -> list[Finding]:
        """What is wrong that no look at the database tells."""
        return [*self.witness.findings(), *self.failing.findings()]

    def _note_reaped(self, count: object) -> None:
        """The watchdog has ended so many attempts whose leases had lapsed."""
        if isinstance(count, int):
            self.office.desktop.desk.tally.reaped["lease_expired"] += count

    async def _read_policies(self) -> None:
        """What of the topics' policies is kept in memory; while the database is away, what was known is good."""
        try:
            await self.office.desktop.read_policies()
        except UnavailableError as error:
            log_unavailable(error, "policies")

    def _wake(self, delays_s: object) -> None:
        """Something can be claimed, now or after each of these delays."""
        self.office.claims.wake_recent()
        for delay_s in cast("list[object]", delays_s) if isinstance(delays_s, list) else ():
            if isinstance(delay_s, float):
                self.office.claims.wake_recent(delay_s)

    def drain(self, *, reconnect: bool) -> None:
        """No more claims; workers come back to a successor, or finish and leave. Each is told once."""
        desk = self.office.desktop.desk
        desk.closed = desk.closed or reconnect
        for worker in desk.workers():
            if not worker.draining:
                worker.draining = True
                worker.leaving = worker.leaving or not reconnect
                worker.link.send("drain", None, {"reconnect": reconnect})

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
        if self.office.deaths is not None:
            tasks.start_soon(self.office.deaths.run)
        if self.silence is not None:
            tasks.start_soon(self.silence.run, self._living)
            tasks.start_soon(self._look_again)
        if self.office.overdue is not None:
            tasks.start_soon(self.office.overdue.run)

    async def _look_again(self) -> None:
        """What the dispatcher before this one claimed may have been committed after it was killed."""
        await anyio.sleep(LATE_S)
        backoff = Backoff()
        while True:
            try:
                await bury_late(self._runtime.store, self.office.host, self._has_seen)
            except UnavailableError:
                await anyio.sleep(backoff.next_s())
            else:
                return

    def _has_seen(self, identity: str) -> bool:
        return identity in self._living or self.office.desktop.desk.has_met(identity)

    async def flush(self) -> None:
        """Let the claim that is under way come in, and write the reports and submits that have arrived."""
        with anyio.move_on_after(FLUSH_DEADLINE_S):
            async with self.office.claims.lock:
                pass
            if self.office.deaths is not None:
                await self.office.deaths.settle()
            await self.office.results.batcher.wait_idle()
            await self.office.submits.batcher.wait_idle()


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
        office = actor.office
        async with anyio.create_task_group() as tasks:
            for loop in (
                office.claims.run,
                office.claims.bad_jobs.run,
                actor.witness.run,
                office.results.run,
                office.leases.batcher.run,
                office.leases.checkpoints.run,
                office.leases.unwritten.run,
                office.submits.batcher.run,
                office.desktop.stats.run,
                office.desktop.incidents.run,
                actor.news.run,
                Trimming(allocators_trim(), resident_bytes).run,
            ):
                tasks.start_soon(loop)
            actor.look_after(tasks)
            for listening, remote in listeners:
                listener = await anyio.abc.SocketListener.from_socket(listening)
                tasks.start_soon(functools.partial(actor.reception.serve, listener, remote=remote))
            await runtime.loop(actor)
            actor.drain(reconnect=True)  # the supervisor's hint may have come together with its stop
            await actor.flush()
            tasks.cancel_scope.cancel()

    return main
