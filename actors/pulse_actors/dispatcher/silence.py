"""
Kill, then requeue: what a silent process of this host holds is handed out again only when that process is dead.

A worker that was stopped by a signal, or has hung with its pool parent, beats no more; but it lives, and may go on at
any moment. Its lease says nothing about that, so the watchdog leaves it alone, and here its leases are renewed, so that
no watchdog of another host ends them either. When it has been silent for a whole lease, it is asked, told to end, and
killed, each with a bound; a word from it stops that. Only then are its attempts over, as lapsed leases.

Whom this process may not signal (another user's worker) and whom it cannot see (another host's, another pid
namespace's) is known by leases only.
"""

from __future__ import annotations

import enum
import signal
import time
from collections.abc import Sequence
from typing import Final

import anyio
import anyio.abc
import structlog

from pulse import procs
from pulse.errors import UnavailableError
from pulse.store.rows import Ending, EndingKind, Renewal
from pulse.store.store import Store
from pulse_actors import identity as identities
from pulse_actors.dispatcher.deaths import Deaths
from pulse_actors.dispatcher.desk import Desk, Sentence, Worker
from pulse_actors.dispatcher.results import Obituary, Results

REASON: Final = "worker lease expired"
ASK_S: Final = 1.0  # for an answer to a question
TERM_S: Final = 2.0  # between SIGTERM and SIGKILL
LOOKS: Final = 10  # per lease
TOO_LATE: Final = 3.0  # looks
MARGIN: Final = 0.3  # share of a lease that must be left; at least two looks
SLACK: Final = 0.05  # share of a lease: two clocks, and the way between them
STOPPED: Final = frozenset({"T", "t"})  # it cannot obey: no use in asking

log = structlog.get_logger()


class Verdict(enum.Enum):
    """What to do about a worker some of whose leases are about to lapse."""

    LEAVE = enum.auto()  # it beats: it will extend what it holds
    END = enum.auto()  # it beats, and does not hold what has lapsed
    HOLD = enum.auto()  # silent, not for a lease yet: renew
    KILL = enum.auto()  # silent for a lease


def judge(worker: Worker, *, left_s: float, awake_s: float, now_s: float, lease_s: float) -> Verdict:
    """
    What to do about *worker*.

    Args:
        worker: Of this host, alive, in hand.
        left_s: Until its first lease lapses; negative: since it did.
        awake_s: Since when this process hears what is said to it; monotonic.
        now_s: Monotonic.
        lease_s: Length of a lease.
    """
    if now_s - max(worker.beaten_s, awake_s) >= lease_s:
        return Verdict.KILL
    renewed_s = now_s - (lease_s - left_s)  # when that lease was
    if worker.extended_s > renewed_s + SLACK * lease_s:
        return Verdict.END if left_s < 0 else Verdict.LEAVE
    return Verdict.HOLD


class Silence:
    """
    Looks after the workers of this host that let their leases lapse.

    Args:
        store: The database.
        desk: Who is connected.
        deaths: Who is watched; kills, and buries.
        results: Writes endings.
        host: This host.
        lease_s: Length of a lease.
    """

    def __init__(
        self, store: Store, desk: Desk, deaths: Deaths, results: Results, host: identities.Host, *, lease_s: float
    ) -> None:
        self._store = store
        self._desk = desk
        self._deaths = deaths
        self._results = results
        self._host = host
        self._lease_s = lease_s
        self._awake_s = time.monotonic()
        self._being_killed: set[str] = set()

    async def run(self, living: Sequence[str]) -> None:
        """
        Look after them until cancelled.

        Args:
            living: Workers of this host that hold jobs, and were alive before anybody said hello.
        """
        pause_s = self._lease_s / LOOKS
        async with anyio.create_task_group() as tasks:
            for identity in living:
                with _while_the_database_is_there():
                    await self._deaths.adopt(self._host, identity)
            self._awake_s = looked_s = time.monotonic()
            while True:
                await anyio.sleep(pause_s)
                now_s = time.monotonic()
                if now_s - looked_s > TOO_LATE * pause_s:  # it was stopped itself: what was said is still unread
                    self._awake_s = now_s
                looked_s = now_s
                with _while_the_database_is_there():
                    await self.look(now_s, tasks)

    async def look(self, now_s: float, tasks: anyio.abc.TaskGroup) -> None:
        """One look at all whose leases are about to lapse."""
        lapsing = await self._store.lapsing(MARGIN * self._lease_s)
        for identity, left_s in lapsing.items():
            worker = self._desk.get(identity) or self._deaths.watched(identity)
            if worker is None:
                worker = await self._deaths.adopt(self._host, identity)
            if worker is None or not worker.watched:
                continue  # by leases only
            match judge(worker, left_s=left_s, awake_s=self._awake_s, now_s=now_s, lease_s=self._lease_s):
                case Verdict.LEAVE:
                    pass
                case Verdict.END:
                    await self._end_lapsed(worker)
                case Verdict.HOLD:
                    await self._renew(worker)
                case Verdict.KILL:
                    await self._renew(worker)
                    if identity not in self._being_killed:
                        self._being_killed.add(identity)
                        tasks.start_soon(self._kill, worker)

    async def _renew(self, worker: Worker) -> None:
        running = await self._store.running_of(worker.identity)
        await self._store.extend([Renewal(*pair, worker.identity, None) for pair in running], self._lease_s)

    async def _end_lapsed(self, worker: Worker) -> None:
        """It beats and does not list them: it has no idea of them."""
        running = await self._store.running_of(worker.identity)
        strange = [pair for pair in running if pair not in self._desk.reporting]
        endings = [Ending(*pair, worker.identity, EndingKind.LEASE_EXPIRED, REASON) for pair in strange]
        self._results.batcher.put(Obituary(endings))  # each only if its own lease has lapsed

    async def _kill(self, worker: Worker) -> None:
        """The ladder: ask, SIGTERM, SIGKILL; then it is buried, and what it held is over."""
        began_s = time.monotonic()
        try:
            log.warning("worker_silent_too_long", worker=worker.identity, held=len(worker.held))
            if not await self._spoke(worker, began_s, ASK_S):
                self._deaths.signal(worker, signal.SIGTERM)
                if not await self._spoke(worker, began_s, TERM_S):
                    for pair, held in worker.held.items():
                        if held.started:
                            worker.sentences[pair] = Sentence(EndingKind.SILENT, REASON)
                    self._deaths.kill(worker, "silent for a lease")
                    await self._deaths.wait_buried(worker)
        finally:
            self._being_killed.discard(worker.identity)

    async def _spoke(self, worker: Worker, since_s: float, within_s: float) -> bool:
        """Whether it beats again, or is gone by itself, within that time; one that is stopped is not waited for."""
        until_s = time.monotonic() + within_s
        while time.monotonic() < until_s:
            if worker.beaten_s > since_s or self._deaths.watched(worker.identity) is not worker:
                return True
            if procs.state(worker.pid) in STOPPED:
                return False
            await anyio.sleep(min(within_s, ASK_S) / 20)
        return False


class _while_the_database_is_there:  # noqa: N801 - reads as the with statement that it is
    """Passes over a database that is away: nobody can be reaped either."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return kind is not None and issubclass(kind, UnavailableError)
