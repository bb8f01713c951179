"""
Proof of death: the kernel says when a worker process of this host has ended, so nobody has to wait for its leases.

Every Unix peer that says hello as a worker is watched by pidfd, beyond the end of its connection: a connection that
broke proves nothing (the process may come back on another one), and one that did not break proves nothing either (a
child of the worker may hold it). When the pidfd says that the process is gone, what was still in its socket is read,
its process group is killed, and what it held is ended at once: attempts that it had named as started spend the crash
budget, with the exit status as the reason; those that it had not named were never started: given back uncharged.

A *stranger* is a living process of this host that holds jobs and has not said hello to this dispatcher: it is too busy
to come back after a restart, or another supervisor's. It is watched, too; who knows it better has a second to bury it.

Whoever is watched can also be killed, and that goes through here as well: deaths that pulse causes count for nobody but
the attempts that were sentenced.
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
from pulse.store.rows import Ending, EndingKind
from pulse.store.store import HeldCommit, Store
from pulse.system import process_tree, processes
from pulse_actors.dispatcher.claims.doubts import InDoubtClaims
from pulse_actors.dispatcher.monitoring.counters import DispatchCounters
from pulse_actors.dispatcher.monitoring.observe import OUT_OF_MEMORY, count_death
from pulse_actors.dispatcher.workers.records import Contact, ForcedEnding, HeldJob, Pair, RegisteredWorker, WorkerFacts
from pulse_actors.dispatcher.workers.registry import WorkerRegistry
from pulse_actors.dispatcher.writes.report import ReportWriter
from pulse_actors.dispatcher.writes.report_rows import Obituary
from pulse_actors.shared import identity as identities

LATE_S: Final = 6.0  # by then a statement that nobody waits for has been committed, or it never will
SENT_S: Final = 0.005
STRANGER_S: Final = 1.0  # for a dispatcher that the dead worker was connected to, which knows what had started

log = structlog.get_logger()


@dataclass(slots=True)
class WatchedProcess:
    """
    A living process that is watched.

    Attributes:
        hear_out: Waits until all is read that it wrote before it died.
        oom_kills: How often the kernel had killed for want of memory, a moment ago.
        is_stranger: It has not said hello here.
        is_over: The process has ended, and is being buried.
        buried: Set when what it held is on its way to the database.
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
        reports: Writes the endings, behind all reports that have arrived, as soon as the database takes them.
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
        """Hold the watches until cancelled."""
        async with anyio.create_task_group() as self._tasks:
            await anyio.sleep_forever()

    def watch(self, worker: RegisteredWorker, pidfd: int, hear_out: Callable[[], Awaitable[None]]) -> None:
        """
        Watch *worker*, which has said hello, until its process ends, or says hello again.

        Args:
            worker: Who said hello.
            pidfd: Of its process; closed here.
            hear_out: Waits until all is read that it wrote before it died.
        """
        self._watch(WatchedProcess(worker, pidfd, hear_out))

    async def adopt(self, host: identities.Host, identity: str) -> RegisteredWorker | None:
        """
        Watch the stranger *identity*, if its process lives and can be killed from here.

        Returns:
            The stranger, or whoever is watched already under that identity.

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
        if not is_same:  # the pid was used again before it was opened, or nobody can tell
            os.close(pidfd)
            return None
        worker = stranger(host, identity, process[0])
        worker.held.update(held)
        self._watch(WatchedProcess(worker, pidfd, checkpoint, is_stranger=True))
        log.info("stranger_watched", worker=identity, held=len(held))
        return worker

    def watched(self, identity: str) -> RegisteredWorker | None:
        """Who is watched under *identity*."""
        watch = self._watches.get(identity)
        return None if watch is None else watch.worker

    def release(self, stranger: RegisteredWorker) -> None:
        """*stranger* holds nothing any more: nobody's business here, unless it has died or said hello meanwhile."""
        watch = self._watches.get(stranger.identity)
        if watch is not None and watch.worker is stranger:
            watch.scope.cancel()

    def in_hand(self) -> list[RegisteredWorker]:
        """Everybody who is watched, lives and can be killed, connected or not."""
        return [watch.worker for watch in self._watches.values() if watch.worker.watched and not watch.is_over]

    def note_oom_kills(self) -> None:
        """Count anew: an end by SIGKILL soon after the count has grown was want of memory."""
        counts: dict[Path, processes.OomKills] = {}  # most share one
        for watch in self._watches.values():
            counted = watch.oom_kills
            if counted is not None:
                if counted.path not in counts:
                    counts[counted.path] = counted.again()
                watch.oom_kills = counts[counted.path]

    def signal(self, worker: RegisteredWorker, number: signal.Signals) -> bool:
        """Signal the process of *worker*, and no other; whether it was there."""
        watch = self._watches.get(worker.identity)
        if watch is None or watch.worker is not worker:
            return False
        try:
            signal.pidfd_send_signal(watch.pidfd, number)
        except OSError:
            return False
        return True

    def kill(self, worker: RegisteredWorker, why: str) -> None:
        """Kill the process of *worker*, and its group: what it held and is not sentenced is charged to nobody."""
        watch = self._watches.get(worker.identity)
        if watch is None or watch.worker is not worker:
            return  # it has said hello again: whoever judged it knew another connection
        worker.expect_end()
        log.warning("worker_killed", worker=worker.identity, why=why)
        self.signal(worker, signal.SIGKILL)
        _kill_group(worker)  # what carries its mark is killed when it is buried

    async def wait_buried(self, worker: RegisteredWorker) -> None:
        """Wait until *worker* is dead and buried, or has said hello again."""
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
        _kill_group(worker)  # first: what is dead by then is not waited for
        if watch.is_stranger:
            if code == processes.UNFINISHED:  # who is known here has told before
                worker.expect_end()
            await anyio.sleep(STRANGER_S)
            endings = obituary(worker, reason, code, await self._still_running(worker))
        else:
            await watch.hear_out()
            worker.link.close()
            # At once, whatever claim is under way: what that brings for it finds it gone, and goes to somebody else.
            self._registry.leave(worker)
            self._registry.away.pop(worker.identity, None)  # it is dead: what it held may be handed out at once
            reporting = self._registry.reporting  # those have ended before: they tell how themselves, and killed nobody
            held = {pair: one for pair, one in worker.held.items() if pair not in reporting}
            endings = obituary(worker, reason, code, held)
        commit = HeldCommit()
        async with anyio.create_task_group() as tasks:
            if endings:
                tasks.start_soon(self._reports.bury, endings, commit)
                with anyio.move_on_after(SENT_S):  # PostgreSQL is at it while this process looks for what is left
                    await commit.sent.wait()
            await _end_tree(worker)
            commit.may_commit.set()
        count_death(self._counters, worker, status, reason)
        say = log.warning if endings else log.info
        say("worker_died", worker=worker.identity, reason=reason, held=len(endings))
        if not watch.is_stranger:  # behind it: to ask for RUNNING rows may take long where dead rows are pinned
            await self._in_doubt.wait_handed_over()
            self._write(await self._unseen(worker))
            if self._tasks is not None:
                self._tasks.start_soon(self._look_again, worker)

    async def _look_again(self, worker: RegisteredWorker) -> None:
        """A claim for it whose answer was lost may have been committed after the first look."""
        await anyio.sleep(LATE_S)
        self._write(await self._unseen(worker))

    async def settle(self) -> None:
        """Wait until all who have died by now are buried."""
        for watch in list(self._watches.values()):
            if watch.is_over or processes.state(watch.worker.facts.pid) in {"Z", "X", ""}:
                await watch.buried.wait()

    def _write(self, endings: list[Ending]) -> None:
        if endings:
            self._reports.put(Obituary(endings))

    async def _still_running(self, worker: RegisteredWorker) -> Mapping[Pair, HeldJob]:
        """What a stranger held that nobody else has ended; which of it had started is not known."""
        try:
            running = await self._store.running_of(worker.identity)
        except UnavailableError:
            return worker.held  # as it was seen last: what somebody else has ended since stays ended
        return {pair: HeldJob(job.name, job.topic, started=True) for pair, job in running.items()}

    async def _unseen(self, worker: RegisteredWorker) -> list[Ending]:
        """Claims for it that it was never told of: their answer was lost, or came to light late."""
        try:
            running = await self._store.running_of(worker.identity)
        except UnavailableError:
            return []  # then they lapse
        seen = self._registry.listed(worker)
        return [Ending(*pair, worker.identity, EndingKind.UNASSIGNED) for pair in running if pair not in seen]


def obituary(
    worker: RegisteredWorker, reason: str, exit_code: int | None, held: Mapping[Pair, HeldJob]
) -> list[Ending]:
    """
    How what *worker* held ended: started attempts crashed, the others were never started.

    A worker that was leaving ended itself, or was killed because a handler outlasted the drain: nobody is charged. Of
    one that was killed for some of its attempts, only these are charged. Attempts in processes of their own, which died
    with it, did not kill it, as long as there is somebody else who may have; nor did those that had ended.
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
    """A worker of whom only its identity is known."""
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
    """The connection of somebody who has none."""

    backlog_bytes = 0

    def send(self, kind: str, request: int | None, body: Mapping[str, object]) -> None:
        """Nobody hears it."""

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
    """How it died, for people."""
    killed = status is not None and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    if killed and not watch.worker.leaving and watch.oom_kills is not None and watch.oom_kills.grew():
        return OUT_OF_MEMORY
    return processes.describe_exit(status)


async def _end_tree(worker: RegisteredWorker) -> None:
    """What a handler left running must not write beside the next attempt: all that carry the worker's mark die, too."""
    if worker.facts.mark is not None:
        await process_tree.end_tree(worker.facts.mark)


def _kill_group(worker: RegisteredWorker) -> None:
    """Only a group that the worker itself led: a shell makes one of all that stands in a pipeline with it."""
    if worker.facts.leads_group:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(worker.facts.pid, signal.SIGKILL)
