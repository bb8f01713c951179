"""
Proof of death: the kernel says when a worker process of this host has ended, so nobody has to wait for its leases.

Every Unix peer that says hello as a worker is watched by pidfd, beyond the end of its connection: a connection that
broke proves nothing (the process may come back on another one), and one that did not break proves nothing either (a
child of the worker may hold it). When the pidfd says that the process is gone, what was still in its socket is read,
its process group is killed, and what it held is ended at once: attempts that it had named as started spend the crash
budget, with the exit status as the reason; those that it had not named were never started: given back uncharged.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import Final

import anyio
import anyio.abc
import structlog

from pulse import procs
from pulse.errors import UnavailableError
from pulse.store.rows import Ending, EndingKind
from pulse.store.store import Store
from pulse_actors import identity as identities
from pulse_actors.dispatcher.claims import Claims
from pulse_actors.dispatcher.desk import Desk, Worker
from pulse_actors.dispatcher.results import Obituary, Results

QUIET_S: Final = 0.05  # an empty socket for that long has been read; EOF comes at once unless a child holds the socket
LAST_WORDS_S: Final = 1.0  # longest time to read what it had still written

log = structlog.get_logger()


class Deaths:
    """
    Watches the worker processes of this host.

    Args:
        store: The database.
        desk: Who holds what.
        claims: Whose lock keeps jobs from being handed to a worker while it is being buried.
        results: Writes the endings, behind all reports that have arrived, as soon as the database takes them.
    """

    def __init__(self, store: Store, desk: Desk, claims: Claims, results: Results) -> None:
        self._store = store
        self._desk = desk
        self._claims = claims
        self._results = results
        self._tasks: anyio.abc.TaskGroup | None = None
        self._scopes: dict[str, anyio.CancelScope] = {}

    async def run(self) -> None:
        """Hold the watches until cancelled."""
        async with anyio.create_task_group() as self._tasks:
            await anyio.sleep_forever()

    def watch(self, worker: Worker, pidfd: int, heard_out: anyio.Event) -> None:
        """
        Watch *worker* until its process ends, or says hello again.

        Args:
            worker: Who said hello.
            pidfd: Of its process; closed here.
            heard_out: Set when its connection has been read to its end.
        """
        if self._tasks is None:
            os.close(pidfd)
            return
        self._tasks.start_soon(self._watch, worker, pidfd, heard_out)

    async def _watch(self, worker: Worker, pidfd: int, heard_out: anyio.Event) -> None:
        older = self._scopes.pop(worker.identity, None)
        if older is not None:
            older.cancel()
        with anyio.CancelScope() as scope:
            self._scopes[worker.identity] = scope
            try:
                await anyio.wait_readable(pidfd)
                status = procs.exit_status(worker.pid, pidfd)
            finally:
                os.close(pidfd)
            await self._bury(worker, status, heard_out)
        if self._scopes.get(worker.identity) is scope:
            del self._scopes[worker.identity]

    async def _bury(self, worker: Worker, status: int | None, heard_out: anyio.Event) -> None:
        worker.draining, worker.leaving = True, worker.leaving or worker.draining
        with anyio.move_on_after(LAST_WORDS_S):
            while not heard_out.is_set():
                with anyio.move_on_after(QUIET_S):
                    await heard_out.wait()
                if not worker.link.unread_bytes:
                    break
        worker.link.close()
        if worker.topics:
            _kill_group(worker)
        async with self._claims.lock:  # a claim that is under way for it is in the book, or given back, after this
            self._desk.leave(worker)
            unseen = await self._unseen(worker)
        reason = f"worker process died: {procs.describe_exit(status)}"
        endings = obituary(worker, reason, None if status is None else os.waitstatus_to_exitcode(status)) + unseen
        say = log.warning if endings else log.info
        say("worker_died", worker=worker.identity, reason=reason, held=len(endings))
        if endings:
            self._results.batcher.put(Obituary(endings))

    async def _unseen(self, worker: Worker) -> list[Ending]:
        """Claims for it that it was never told of: their answer was lost, or came to light late."""
        try:
            running = await self._store.running_of(worker.identity)
        except UnavailableError:
            return []  # then they lapse
        seen = self._desk.reporting.union(worker.held)
        return [Ending(*pair, worker.identity, EndingKind.UNASSIGNED) for pair in running if pair not in seen]


def obituary(worker: Worker, reason: str, exit_code: int | None) -> list[Ending]:
    """
    How what *worker* held ended: started attempts crashed, the others were never started.

    A worker that was leaving ended itself, or was killed because a handler outlasted the drain: nobody is charged.
    """
    return [
        Ending(*pair, worker.identity, EndingKind.CRASHED, reason, exit_code=exit_code)
        if held.started and not worker.leaving
        else Ending(*pair, worker.identity, EndingKind.RELEASED)
        for pair, held in worker.held.items()
    ]


def _kill_group(worker: Worker) -> None:
    """What a handler left running must not write beside the next attempt; only a group that the worker itself led."""
    if worker.leads_group:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(worker.pid, signal.SIGKILL)


async def bury_forgotten(store: Store, host: identities.Host, *, boot: bool) -> None:
    """
    End what the workers of this host held that died while no dispatcher watched; before the first claim.

    Which of their attempts had started is known to nobody any more. After a restart of the dispatcher alone each spends
    the crash budget: a job that takes the dispatcher down with its worker must not do so for ever. At the start of the
    whole nobody is charged: somebody had stopped it all, perhaps in a hurry.

    Args:
        store: The database.
        host: Whose workers.
        boot: Whether the supervisor starts it for the first time.
    """
    kind = EndingKind.RELEASED if boot else EndingKind.CRASHED
    for identity in await store.running_workers():
        process = identities.process_of(host, identity)
        if process is None or identities.lives(process):
            continue
        held = await store.running_of(identity)
        reason = "worker process died: nobody saw how"
        await store.end([Ending(*pair, identity, kind, reason) for pair in held])
        log.warning("worker_died", worker=identity, reason=reason, held=len(held))
