"""
Proof of death: the kernel reports the end of a worker process on this host, so no lease has to be waited for.

Every worker that connects by Unix socket is watched by pidfd, also after its connection has ended: a lost connection
does not prove a death (the process may reconnect), and an open one does not prove life (a child of the worker may hold
it). When the process has ended, the rest of its socket is read, its process group is killed, and its attempts are ended
at once: those that it had named as started spend the crash budget, with the exit status as the reason; the others were
never started and are given back uncharged. (In names, to "bury" a worker is to end its attempts after its death.)

A *stranger* is a living process of this host that holds jobs and has not said hello to this dispatcher: it is too busy
to reconnect after a restart, or belongs to another supervisor, which gets a second to handle its death first.

Watched processes can be killed, too, always through this module: after a death that pulse causes, only the attempts
because of which it was killed are charged.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import anyio
import anyio.abc
import structlog
from anyio.lowlevel import checkpoint

from pulse.errors import UnavailableError
from pulse.store.connections.session import HeldCommit
from pulse.store.rows import Ending, EndingKind
from pulse.store.store import Store
from pulse.system import process_tree, processes
from pulse_actors.dispatcher.claims.doubts import InDoubtClaims
from pulse_actors.dispatcher.monitoring.counters import DispatchCounters
from pulse_actors.dispatcher.monitoring.observe import OUT_OF_MEMORY, count_death
from pulse_actors.dispatcher.workers.records import Contact, ForcedEnding, HeldJob, Pair, RegisteredWorker, WorkerFacts
from pulse_actors.dispatcher.workers.registry import WorkerRegistry
from pulse_actors.dispatcher.writes.report import ReportWriter
from pulse_actors.dispatcher.writes.report_rows import Obituary
from pulse_actors.shared import identity as identities

LATE_S: Final = 6.0  # by then a statement whose client has gone is committed, or never will be
SENT_S: Final = 0.005
STRANGER_S: Final = 1.0  # for the dispatcher that the dead worker was connected to, which knows what had started

log = structlog.get_logger()


@dataclass(slots=True)
class WatchedProcess:
    """
    A watched process.

    Attributes:
        hear_out: Waits until all that it wrote before its death is read.
        oom_kills: A recent count of the kernel's out-of-memory kills.
        is_stranger: Whether it has not said hello here.
        is_over: The process has ended, and its attempts are being ended.
        buried: Set when the ends of its attempts are on their way to the database.
    """

    worker: RegisteredWorker
    pidfd: int
    hear_out: Callable[[], Awaitable[None]]
    is_stranger: bool = False
    is_over: bool = False
    buried: anyio.Event = field(default_factory=anyio.Event)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    oom_kills: processes.OomKills | None = None


class ProcessWatch:
    """
    Watches the worker processes of this host.

    Args:
        reports: Writes the endings after all reports that have arrived, as soon as the database takes them.
    """

    def __init__(
        self,
        store: Store,
        registry: WorkerRegistry,
        in_doubt: InDoubtClaims,
        reports: ReportWriter,
        counters: DispatchCounters,
    ) -> None:
        self._store = store
        self._registry = registry
        self._in_doubt = in_doubt
        self._reports = reports
        self._counters = counters
        self._tasks: anyio.abc.TaskGroup | None = None
        self._watches: dict[str, WatchedProcess] = {}

    async def run(self) -> None:
        """Keep watching until cancelled."""
        async with anyio.create_task_group() as self._tasks:
            await anyio.sleep_forever()

    def watch(self, worker: RegisteredWorker, pidfd: int, hear_out: Callable[[], Awaitable[None]]) -> None:
        """
        Watch *worker*, which has said hello, until its process ends, or says hello again.

        Args:
            worker: The worker.
            pidfd: Of its process; closed here.
            hear_out: Waits until all that it wrote before its death is read.
        """
        self._watch(WatchedProcess(worker, pidfd, hear_out))

    async def adopt(self, host: identities.Host, identity: str) -> RegisteredWorker | None:
        """
        Watch the stranger *identity*, if its process lives and can be killed from here.

        Returns:
            The stranger, or the worker that is already watched under that identity.

        Raises:
            UnavailableError: The database is away.
        """
        process = identities.process_of(host, identity)
        if process is None or not identities.is_in_hand(host, identity):
            return None
        held = {
            pair: HeldJob(job.name, job.topic, started=True, timeout_s=job.timeout_s)
            for pair, job in (await self._store.running_of(identity)).items()
        }
        watched = self._watches.get(identity)
        if watched is not None:
            return watched.worker
        try:
            pidfd = os.pidfd_open(process[0])
        except OSError:
            return None
        is_same = processes.start_time(process[0]) == process[1] and processes.lives(*process)
        if not is_same:  # the pid was reused before it was opened, or that is unknown
            os.close(pidfd)
            return None
        worker = stranger(host, identity, process[0])
        worker.held.update(held)
        self._watch(WatchedProcess(worker, pidfd, checkpoint, is_stranger=True))
        log.info("stranger_watched", worker=identity, held=len(held))
        return worker

    def watched(self, identity: str) -> RegisteredWorker | None:
        """The watched worker *identity*."""
        watch = self._watches.get(identity)
        return None if watch is None else watch.worker

    def release(self, stranger: RegisteredWorker) -> None:
        """*stranger* holds no jobs any more: stop watching it, unless it has died or said hello meanwhile."""
        watch = self._watches.get(stranger.identity)
        if watch is not None and watch.worker is stranger:
            watch.scope.cancel()

    def in_hand(self) -> list[RegisteredWorker]:
        """All watched workers that live and can be killed, connected or not."""
        return [watch.worker for watch in self._watches.values() if watch.worker.watched and not watch.is_over]

    def note_oom_kills(self) -> None:
        """Read the count again: a SIGKILL soon after it grew means that memory ran out."""
        counts: dict[Path, processes.OomKills] = {}  # most workers share one
        for watch in self._watches.values():
            counted = watch.oom_kills
            if counted is not None:
                if counted.path not in counts:
                    counts[counted.path] = counted.again()
                watch.oom_kills = counts[counted.path]

    def signal(self, worker: RegisteredWorker, number: signal.Signals) -> bool:
        """Send a signal to the process of *worker*, never to another one; returns whether it was there."""
        watch = self._watches.get(worker.identity)
        if watch is None or watch.worker is not worker:
            return False
        try:
            signal.pidfd_send_signal(watch.pidfd, number)
        except OSError:
            return False
        return True

    def kill(self, worker: RegisteredWorker, why: str) -> None:
        """Kill the process of *worker* and its group; only its attempts with a forced ending are charged."""
        watch = self._watches.get(worker.identity)
        if watch is None or watch.worker is not worker:
            return  # it has said hello again: the caller meant the old connection
        worker.expect_end()
        log.warning("worker_killed", worker=worker.identity, why=why)
        self.signal(worker, signal.SIGKILL)
        _kill_group(worker)  # processes with its mark are killed when it is buried

    async def wait_buried(self, worker: RegisteredWorker) -> None:
        """Wait until *worker* is dead and its attempts are ended, or it has said hello again."""
        watch = self._watches.get(worker.identity)
        if watch is not None and watch.worker is worker:
            await watch.buried.wait()

    def _watch(self, watch: WatchedProcess) -> None:
        if self._tasks is None:
            os.close(watch.pidfd)
            return
        older = self._watches.get(watch.worker.identity)
        if older is not None:
            older.scope.cancel()
            older.buried.set()
        self._watches[watch.worker.identity] = watch
        self._registry.strangers.pop(watch.worker.identity, None)
        if watch.is_stranger:
            self._registry.strangers[watch.worker.identity] = watch.worker
        watch.worker.watch(can_kill=_may_kill(watch.pidfd))
        watch.oom_kills = processes.oom_kills(watch.worker.facts.pid)
        self._tasks.start_soon(self._see_through, watch)

    async def _see_through(self, watch: WatchedProcess) -> None:
        worker = watch.worker
        with watch.scope:
            try:
                await anyio.wait_readable(watch.pidfd)
                watch.is_over = True
                status = processes.exit_status(worker.facts.pid, watch.pidfd)
                await self._bury(watch, status)
            finally:
                os.close(watch.pidfd)
                if self._watches.get(worker.identity) is watch:
                    del self._watches[worker.identity]
                    self._registry.strangers.pop(worker.identity, None)
                    self._registry.away.pop(worker.identity, None)
                watch.buried.set()

    async def _bury(self, watch: WatchedProcess, status: int | None) -> None:
        worker = watch.worker
        worker.bury()
        reason = f"worker process died: {_describe(watch, status)}"
        code = None if status is None else os.waitstatus_to_exitcode(status)
        _kill_group(worker)  # first: no other step waits for processes that are dead already
        if watch.is_stranger:
            if code == processes.UNFINISHED:  # a connected worker has its exit status
                worker.expect_end()
            await anyio.sleep(STRANGER_S)
            endings = obituary(worker, reason, code, await self._still_running(worker))
        else:
            await watch.hear_out()
            worker.link.close()
            # At once, even during a claim: the claim does not find the worker then, and gives its jobs to another one.
            self._registry.leave(worker)
            self._registry.away.pop(worker.identity, None)  # it is dead: its jobs may be handed out at once
            reporting = self._registry.reporting  # they have ended: their reports count
            held = {pair: one for pair, one in worker.held.items() if pair not in reporting}
            endings = obituary(worker, reason, code, held)
        commit = HeldCommit()
        async with anyio.create_task_group() as tasks:
            if endings:
                tasks.start_soon(self._reports.bury, endings, commit)
                with anyio.move_on_after(SENT_S):  # PostgreSQL works while this process looks for leftovers
                    await commit.sent.wait()
            await _end_tree(worker)
            commit.may_commit.set()
        count_death(self._counters, worker, status, reason)
        say = log.warning if endings else log.info
        say("worker_died", worker=worker.identity, reason=reason, held=len(endings))
        if not watch.is_stranger:  # after that, since reading RUNNING rows may take long where dead rows are pinned
            await self._in_doubt.wait_handed_over()
            self._write(await self._unseen(worker))
            if self._tasks is not None:
                self._tasks.start_soon(self._look_again, worker)

    async def _look_again(self, worker: RegisteredWorker) -> None:
        """A claim for it whose answer was lost may have been committed after the first look."""
        await anyio.sleep(LATE_S)
        self._write(await self._unseen(worker))

    async def settle(self) -> None:
        """Wait until the attempts of all workers that have died by now are ended."""
        for watch in list(self._watches.values()):
            if watch.is_over or processes.state(watch.worker.facts.pid) in {"Z", "X", ""}:
                await watch.buried.wait()

    def _write(self, endings: list[Ending]) -> None:
        if endings:
            self._reports.put(Obituary(endings))

    async def _still_running(self, worker: RegisteredWorker) -> Mapping[Pair, HeldJob]:
        """What a stranger held and no other dispatcher has ended; which of it had started is unknown."""
        try:
            running = await self._store.running_of(worker.identity)
        except UnavailableError:
            return worker.held  # as last seen; attempts ended by others stay ended
        return {pair: HeldJob(job.name, job.topic, started=True) for pair, job in running.items()}

    async def _unseen(self, worker: RegisteredWorker) -> list[Ending]:
        """Claims for it that it never received: their answer was lost, or they were found late."""
        try:
            running = await self._store.running_of(worker.identity)
        except UnavailableError:
            return []  # then their leases lapse
        seen = self._registry.listed(worker)
        return [Ending(*pair, worker.identity, EndingKind.UNASSIGNED) for pair in running if pair not in seen]


def obituary(
    worker: RegisteredWorker, reason: str, exit_code: int | None, held: Mapping[Pair, HeldJob]
) -> list[Ending]:
    """
    How the attempts of *worker* ended: started ones crashed, the others were never started.

    A worker that was leaving ended by itself, or was killed because a handler outlasted the drain: nothing is charged.
    Of a worker that was killed for some of its attempts, only these are charged. Isolated attempts, which die with the
    worker, have not caused its death if another attempt may have; nor have attempts that had ended.
    """
    running = {pair: one for pair, one in held.items() if not one.ended}
    suspects = {pair for pair, one in running.items() if one.started and not one.apart} or running.keys()
    return [_end_of(worker, pair, one, reason, exit_code, is_suspect=pair in suspects) for pair, one in held.items()]


def _end_of(
    worker: RegisteredWorker, pair: Pair, held: HeldJob, reason: str, exit_code: int | None, *, is_suspect: bool
) -> Ending:
    forced: ForcedEnding | None = None if held.ended else worker.jobs.forced_endings.get(pair)
    if forced is not None:
        return Ending(*pair, worker.identity, forced.kind, error=forced.reason, exit_code=exit_code, stack=forced.stack)
    if held.started and is_suspect and not worker.leaving:
        return Ending(*pair, worker.identity, EndingKind.CRASHED, error=reason, exit_code=exit_code)
    was_hit = held.started and (not worker.leaving or bool(worker.jobs.forced_endings))
    return Ending(*pair, worker.identity, EndingKind.RELEASED, error=reason if was_hit else None)


def stranger(host: identities.Host, identity: str, pid: int) -> RegisteredWorker:
    """A worker of which only the identity is known."""
    session = identities.session_of(host, identity)
    name = identity.rpartition("/")[2]
    uid = identities.user_of(host, identity)
    facts = WorkerFacts(
        identity,
        name,
        session,
        pid=pid,
        uid=uid,
        topics=(),
        names=frozenset(),
        leads_group=identities.leads_group(pid),
        mark=process_tree.mark_of(pid),
    )
    now_s = time.monotonic()
    return RegisteredWorker(facts, 0, _NoWorkerLink(), contact=Contact(heard_s=now_s, beaten_s=now_s))


class _NoWorkerLink:
    """The link of a worker without a connection."""

    backlog_bytes = 0
    is_over = True

    def send(self, kind: str, request: int | None, body: Mapping[str, object]) -> None:
        """Dropped."""

    def push(self) -> None:
        """Nothing is queued."""

    def close(self) -> None:
        """There is nothing to close."""


def _may_kill(pidfd: int) -> bool:
    try:
        signal.pidfd_send_signal(pidfd, 0)
    except PermissionError:
        return False
    except OSError:
        pass  # it is dead already
    return True


def _describe(watch: WatchedProcess, status: int | None) -> str:
    """The cause of its death, for people."""
    killed = status is not None and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    if killed and not watch.worker.leaving and watch.oom_kills is not None and watch.oom_kills.grew():
        return OUT_OF_MEMORY
    return processes.describe_exit(status)


async def _end_tree(worker: RegisteredWorker) -> None:
    """Kill all processes with the worker's mark: leftovers of its handlers must not run beside the next attempt."""
    if worker.facts.mark is not None:
        await process_tree.end_tree(worker.facts.mark)


def _kill_group(worker: RegisteredWorker) -> None:
    """Kill the group only if the worker leads it: a shell puts all processes of a pipeline into one group."""
    if worker.facts.leads_group:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(worker.facts.pid, signal.SIGKILL)
