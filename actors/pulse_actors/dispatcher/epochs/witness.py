"""
Notices when the database has gone back in time, and begins a new epoch then.

The dispatcher increments a counter in the database (its witness), and remembers it in a file. Each claim compares both
inside its statement (``witnessed``): a database with an older state hands out nothing. The loop finds out why, and
begins a new epoch or accepts that of another host. The workers of this host lose the jobs from before; until they have
reported how these ended, no host hands the jobs out.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Final
from uuid import UUID, uuid4

import anyio
import anyio.to_thread
import msgspec
import structlog

from pulse.common.ids import ID_BYTES
from pulse.errors import UnavailableError
from pulse.ops.doctor import epochs
from pulse.ops.doctor.finding import Finding
from pulse.store.recovery.epochs import CLOSED, NO_WITNESS, DatabaseState, Held, HostContact, Mark, NewEpoch, Witnessed
from pulse.store.recovery.timelines import ServerTimeline
from pulse.store.rows import Claim, Fence
from pulse.store.store import Store
from pulse_actors.dispatcher.claims.doubts import InDoubtClaims
from pulse_actors.dispatcher.claims.work_signal import WorkSignal
from pulse_actors.dispatcher.workers.registry import WorkerRegistry
from pulse_actors.runtime.actor import Backoff, log_unavailable
from pulse_actors.shared.epoch_memory import Memory, MemoryFile
from pulse_actors.shared.epochs import Verdict, bound_of, judge, next_epoch, submitted_since

TICK_S: Final = 1.0  # so much may be lost before the counter shows it; the newest attempts themselves show less
SOON_S: Final = 0.1  # between two looks while claims wait for something
OTHERS_S: Final = 3.0  # for other hosts to connect to a new place: they look every second, and retry within 1.5 s
REJOIN_S: Final = 2.0  # for workers to reconnect to a dispatcher that was started on a database that has gone back
REFUSED_S: Final = 60.0  # a server that was refused longer ago may be gone
KEEP_S: Final = 2.0  # to write the file: claims may wait for it, behind their lock
OPEN_S: Final = 5.0  # to read it, before the first claim
PUT_OFF_S: Final = 3.0  # renewed at each tick while an attempt from before may still run
MOST_RECENT: Final = 200_000  # 3 MiB; at full speed the last half minute
_ID: Final = attrgetter("id")
_ATTEMPT: Final = attrgetter("attempt")
_FIRST: Final = itemgetter(0)

log = structlog.get_logger()


class RecentJobs:
    """
    A ring buffer of the ids of the last jobs of some kind.

    Args:
        most: How many are kept.
    """

    def __init__(self, most: int = MOST_RECENT) -> None:
        self._most_bytes = most * ID_BYTES
        self._ring = bytearray()
        self._at = 0

    def add(self, ids: Iterable[bytes]) -> None:
        """Add jobs; the oldest are dropped."""
        new = b"".join(ids)[-self._most_bytes :]
        free_bytes = self._most_bytes - self._at
        self._ring[self._at : self._at + len(new)] = new[:free_bytes]
        if len(new) > free_bytes:
            self._ring[: len(new) - free_bytes] = new[free_bytes:]
        self._at = (self._at + len(new)) % self._most_bytes

    def ids(self) -> list[bytes]:
        """All ids, in no order."""
        return [bytes(self._ring[at : at + ID_BYTES]) for at in range(0, len(self._ring), ID_BYTES)]


class Witness:
    """
    What this dispatcher has seen of the database.

    Args:
        in_doubt: Holds off claims while jobs are compared; looks into what workers hold.
        directory: Where the file is; None: only this process remembers.
        lease_s: How long to wait for hosts that have not accepted an epoch.

    Attributes:
        witnessed: What the database must have for a claim to succeed.
    """

    def __init__(
        self,
        store: Store,
        registry: WorkerRegistry,
        *,
        in_doubt: InDoubtClaims,
        signal: WorkSignal,
        host: str,
        directory: Path | None,
        lease_s: float,
    ) -> None:
        self._epochs = store.epochs
        self._timelines = store.timelines
        self._registry = registry
        self._in_doubt = in_doubt
        self._signal = signal
        self._host = host
        self._lease_s = lease_s
        self._file = MemoryFile(directory)
        self._memory: Memory | None = None
        self._writing = anyio.Lock()  # a tick and a claim may want to write at the same time
        self._handed_out: dict[bytes, int] = {}  # since the last tick: job -> attempt
        self._before: dict[bytes, int] = {}  # those of before the last tick, until that is confirmed
        self._started = RecentJobs()
        self._finished = RecentJobs()
        self._forgotten: set[bytes] = set()  # jobs handed out since that were completed and not kept
        self._back_to: datetime | None = None  # the last time in the database when this place was first seen
        self._others_until_s = 0.0
        self._behind_s = float("inf")  # since when others have not accepted the epoch
        self._rejoin_until_s = 0.0
        self._was_open = False
        self.witnessed: Witnessed = CLOSED

    def findings(self) -> Sequence[Finding]:
        """Findings that the database cannot show."""
        found = [] if self._file.problem is None else [epochs.memory(self._file.problem)]
        if self._timelines.refused is not None:
            message, at_s = self._timelines.refused
            found += [epochs.refused(message)] if time.monotonic() - at_s < REFUSED_S else []
        return found

    async def claimed(self, claims: Sequence[Claim]) -> None:
        """Remember what is about to be handed out; write the file first if a number is higher than any before."""
        self._handed_out.update(zip(map(_ID, claims), map(_ATTEMPT, claims), strict=True))
        self._started.add(map(_ID, claims))
        highest, memory = max(map(_ATTEMPT, claims)), self._memory
        if memory is not None and highest > memory.highest:
            await self._remember(msgspec.structs.replace(memory, highest=bound_of(highest)))

    def forgets(self, pairs: Iterable[tuple[bytes, int]]) -> None:
        """These will be deleted: that they are missing proves nothing."""
        self._forgotten.update(map(_FIRST, pairs))

    def completed(self, pairs: Collection[tuple[bytes, int]]) -> None:
        """Remember completed jobs."""
        self._finished.add(map(_FIRST, pairs))

    async def run(self) -> None:
        """Increment the counter until cancelled."""
        backoff = Backoff()
        while True:
            try:
                pause_s = await self.step()
            except UnavailableError as error:
                pause_s = backoff.failed(error, "witness")
            else:
                backoff.reset()
            await anyio.sleep(pause_s)

    async def step(self) -> float:
        """
        Look once, and act on the result.

        Returns:
            Seconds until the next one.

        Raises:
            UnavailableError: The database is away, or a standby.
        """
        memory = await self._recalled()
        seen = await self._epochs.look(memory.instance, self._back_to, self._lease_s)
        verdict = judge(memory, seen)
        if verdict is Verdict.MOVED and await self._knows_less():
            verdict = Verdict.BACK
        if verdict is Verdict.STANDBY:
            self.witnessed = CLOSED
            raise UnavailableError("the database is a standby: it takes no writes")
        if verdict in {Verdict.BACK, Verdict.ACCEPT}:
            await self._begin(memory, seen, is_new=verdict is Verdict.BACK)
        else:
            come = self._tick if verdict is Verdict.STAY else self._come
            if await come(memory, seen) and self._may_open(seen):
                self._back_to = None  # from now on the last tick shows what it had
                self._open(seen)
        await self._put_off()
        return SOON_S if self.witnessed is CLOSED else TICK_S

    async def _recalled(self) -> Memory:
        """The memory of the database that answers; in this process, of the one in use."""
        if self._memory is None:
            seen = await self._epochs.look(NO_WITNESS, None, self._lease_s)
            self._memory = await self._opened(seen.lineage)
            if self._file.problem is not None:
                log.warning("memory_not_kept", error=self._file.problem)
        return self._memory

    async def _knows_less(self) -> bool:
        """Whether the database lacks attempts that were handed out since the last tick."""
        pairs = self._before | self._handed_out
        return bool(pairs) and await self._epochs.gone_back(pairs, self._forgotten)

    async def _come(self, memory: Memory, seen: DatabaseState) -> bool:
        """Connect to a database or place that is new here: other hosts may know more of it."""
        self.witnessed = CLOSED
        _, mark = await self._epochs.begin(seen, self._coming(memory))
        if mark is None:
            return False
        for worker in self._registry.everybody():  # its last reports may be lost
            self._in_doubt.doubt(worker.identity)
        self._others_until_s, self._back_to = time.monotonic() + OTHERS_S, seen.back_to
        await self._counted(memory, seen, mark, seen.epoch)
        return True

    def _coming(self, memory: Memory) -> HostContact:
        return HostContact(memory.instance, self._host, memory.counter, highest=memory.highest)

    async def _tick(self, memory: Memory, seen: DatabaseState) -> bool:
        self._before |= self._handed_out
        self._handed_out = {}
        witnessed = Witnessed(
            memory.instance, memory.counter, memory.epoch, started_at=seen.started_at, relation=seen.relation
        )
        mark = await self._epochs.tick(witnessed, memory.highest, seen.place)
        if mark is None:
            self.witnessed = CLOSED  # the old values are no longer valid
            return False
        self._before = {}
        self._forgotten &= self._handed_out.keys()
        await self._counted(memory, seen, mark, memory.epoch)
        return True

    async def _begin(self, memory: Memory, seen: DatabaseState, *, is_new: bool) -> None:
        """Begin an epoch, or accept it; workers lose what they held from before."""
        self.witnessed = CLOSED
        async with self._in_doubt.no_claim_under_way():  # afterwards all claimed jobs are in the registry
            everybody = self._registry.everybody()
            fences = [Fence(*pair, worker.identity) for worker in everybody for pair in worker.held]
            held = Held([worker.identity for worker in everybody], fences, PUT_OFF_S)
            raised, mark = await self._epochs.begin(
                seen,
                self._coming(memory),
                epoch=next_epoch(memory, seen) if is_new else None,
                known_until=memory.seen_at,
                held=held,
            )
            if mark is None:
                return
            self._registry.lost = {fence[:2] for fence in fences}
            for worker in everybody:
                if worker.held:
                    worker.link.send("stop", None, {"jobs": [(*pair, "lost") for pair in worker.held]})
        epoch = raised or NewEpoch(seen.epoch, seen.floor)
        self._before, self._handed_out, self._forgotten, self._back_to = {}, {}, set(), None
        self._behind_s = float("inf")
        if not self._was_open:
            self._rejoin_until_s = time.monotonic() + REJOIN_S
        self._signal.wake_recent(PUT_OFF_S)  # for jobs that were given back
        await self._counted(memory, seen, mark, epoch.epoch)
        await self._tell(epoch, seen, memory, sorted({fence.id for fence in fences}))

    async def _tell(self, epoch: NewEpoch, seen: DatabaseState, memory: Memory, held: Sequence[bytes]) -> None:
        """Find jobs that were finished and are open now, and jobs that the database has lost; log the epoch."""
        reopened, running, finished = list[bytes](), list[bytes](), list[bytes]()
        try:
            done = self._finished.ids()
            reopened = await self._epochs.open_again(done)
            await self._epochs.note_reopened(epoch.epoch, reopened)
            unknown = {
                *await self._epochs.unknown(sorted({*held, *submitted_since(self._started.ids(), seen.back_to)}))
            }
            finished = sorted(unknown.intersection(done))
            running = sorted(unknown.difference(done))
            await self._epochs.note_unknown(epoch.epoch, running=running, finished=finished)
        except UnavailableError as error:
            log_unavailable(error, "finished jobs")
        log.error(
            "database_went_back",
            epoch=epoch.epoch,
            floor=epoch.floor,
            back_to=None if seen.back_to is None else seen.back_to.isoformat(),
            known_until=None if memory.seen_at is None else memory.seen_at.isoformat(),
            held=len(held),
            reopened=len(reopened),
            jobs=[str(UUID(bytes=job)) for job in reopened[:3]],
            unknown_running=len(running),
            unknown_finished=len(finished),
            unknown_jobs=[str(UUID(bytes=job)) for job in (running + finished)[:3]],
        )

    async def _counted(self, memory: Memory, seen: DatabaseState, mark: Mark, epoch: int) -> None:
        if memory.lineage != seen.lineage:  # another database under the same name
            await self._opened(seen.lineage)
        await self._remember(
            msgspec.structs.replace(
                memory,
                lineage=seen.lineage,
                counter=mark.counter,
                seen_at=mark.seen_at,
                epoch=epoch,
                highest=max((self._memory or memory).highest, mark.highest),
                place=seen.place,
                system_id=seen.system_id,
                timeline=seen.timeline or 0,
            )
        )
        if self.witnessed is not CLOSED:
            self._open(seen)

    async def _remember(self, memory: Memory) -> None:
        self._memory = memory
        if self._file.directory is None:
            return
        async with self._writing:
            with anyio.move_on_after(KEEP_S) as scope:  # a slow disk: a thread that hangs is left behind
                await anyio.to_thread.run_sync(self._file.keep, self._memory, abandon_on_cancel=True)
            if scope.cancelled_caught:
                self._file.hangs()
                log.warning("memory_not_kept", error=self._file.problem)

    async def _opened(self, lineage: UUID) -> Memory:
        if self._file.directory is None:
            return Memory(lineage, uuid4())
        timelines = self._timelines
        with anyio.move_on_after(OPEN_S):
            opened = await anyio.to_thread.run_sync(self._file.open, lineage, abandon_on_cancel=True)
            if opened.database in {"", timelines.database}:  # "": an old file without a name; it is not shared
                timelines.learn(ServerTimeline(opened.system_id, opened.timeline))
            return msgspec.structs.replace(opened, database=timelines.database)
        self._file.hangs()
        problem, self._file = self._file.problem, MemoryFile(None)  # an unreadable file is not overwritten
        self._file.problem = problem
        return Memory(lineage, uuid4())

    def _may_open(self, seen: DatabaseState) -> bool:
        """Whether all other hosts have connected, or were waited for by this host's clock; the other may go back."""
        now_s = time.monotonic()
        self._behind_s = min(self._behind_s, now_s) if seen.behind else float("inf")
        if now_s < self._rejoin_until_s or (seen.behind and now_s < self._behind_s + self._lease_s):
            return False
        return not seen.elsewhere or now_s >= self._others_until_s

    def _open(self, seen: DatabaseState) -> None:
        memory, was_closed = self._memory, self.witnessed is CLOSED
        if memory is not None:
            self.witnessed = Witnessed(
                memory.instance, memory.counter, memory.epoch, started_at=seen.started_at, relation=seen.relation
            )
            self._was_open = True
        if was_closed:
            self._signal.wake()

    async def _put_off(self) -> None:
        """Postpone jobs of which an old attempt may still run here; ended ones are sorted out when they are due."""
        held = {pair for worker in self._registry.everybody() for pair in worker.held}
        if time.monotonic() < self._rejoin_until_s:  # nothing was handed out yet: all attempts are from before
            self._registry.lost = held
        if not self._registry.lost:
            return
        left = self._registry.lost & held
        if left:
            await self._epochs.put_off([job for job, _ in left], PUT_OFF_S)
        if left != self._registry.lost:
            self._registry.lost = left
            self._signal.wake_recent(PUT_OFF_S)
