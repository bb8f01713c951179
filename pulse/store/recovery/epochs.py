"""
Epochs: how hosts notice that the database went back in time, and what they do then.

After a restore, or a failover that loses the last writes, the database has an older state than the hosts have seen. It
would hand out the same attempt numbers again. So each dispatcher increments a counter in a row of its own (its
witness), remembers it on disk (``Witnessed``), and claims only while the database has the same counter.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from uuid import UUID

import asyncpg

from pulse.errors import StatementError, UnavailableError
from pulse.store.arguments import fence_columns, pair_columns, uuids
from pulse.store.connections.session import in_schema
from pulse.store.failures import IN_VAIN, is_safe_after
from pulse.store.statements import STATEMENTS

if TYPE_CHECKING:
    from asyncpg import Connection, Record

    from pulse.store.connections.pool import Pool
    from pulse.store.rows import Claim, Fence

FIRST_HIGHEST: Final = 1000  # attempts up to this number need no note on disk
APART_S: Final = 10.0  # two hosts seen within this time were alive together
AHEAD_S: Final = 3600.0  # tolerance for clocks that run ahead, in telling whether an id is older than an epoch
WENT_BACK: Final = "the database went back: what it does not know any more is over"  # the error of such attempts
SHOWN: Final = 20  # finished jobs that are listed with an epoch
LISTED: Final = 1000  # unknown ones, of each host: somebody has to decide about each of them
_CHUNK: Final = 20_000  # ids of one statement


class Witnessed(NamedTuple):
    """What the database must know before a claim is allowed: arguments of the statements, in their order."""

    instance: UUID | None
    counter: int | None = None
    epoch: int | None = None
    started_at: datetime | None = None
    relation: int | None = None


UNWITNESSED: Final = Witnessed(None)
NO_WITNESS: Final = UUID(int=0)  # no witness has this id
CLOSED: Final = Witnessed(NO_WITNESS)  # matches no database: nothing is claimed


class Mark(NamedTuple):
    """A witness's counter, its time by the database's clock, and the highest attempt number it may have handed out."""

    counter: int
    seen_at: datetime
    highest: int = 0


class HostContact(NamedTuple):
    """A host that accepts an epoch: its witness, its id, its counter, and its highest attempt number."""

    instance: UUID
    host: str
    counter: int
    highest: int


class NewEpoch(NamedTuple):
    """A new epoch."""

    epoch: int
    floor: int


@dataclass(frozen=True, slots=True)
class DatabaseState:
    """
    The state of the database, and what it knows of this host.

    Attributes:
        lineage: The id of the database, which a restored copy keeps.
        timeline: PostgreSQL's timeline; None: it is a standby.
        place: Server, timeline, start and table in one text: if it differs, the state may be older.
        floor: Attempts of the newest epoch are numbered above this.
        counter: This host's counter; None: it has no row.
        epoch_seen: The epoch that this host has accepted.
        back_to: The last time this host, or else any, wrote its counter, when this place was first seen.
        elsewhere: How many other hosts were alive then and have not connected to this place.
        behind: How many have not accepted the newest epoch yet.
        newest: The highest attempt number that any host may have handed out.
    """

    lineage: UUID
    system_id: str
    timeline: int | None
    started_at: datetime
    relation: int
    place: str
    epoch: int
    floor: int
    counter: int | None
    epoch_seen: int | None
    back_to: datetime | None
    elsewhere: int
    behind: int
    newest: int | None


class ClaimWitness(Protocol):
    """The dispatcher's knowledge of the database; the store reads it before a claim, and reports the results."""

    witnessed: Witnessed

    async def claimed(self, claims: Sequence[Claim]) -> None:
        """These attempts are about to be handed out."""

    def forgets(self, pairs: Iterable[tuple[bytes, int]]) -> None:
        """These attempts are about to complete their jobs, which may be deleted even if the answer gets lost."""

    def completed(self, pairs: Collection[tuple[bytes, int]]) -> None:
        """These attempts have completed their jobs."""


class EpochStore:
    """
    Witnesses and epochs.

    Args:
        pool: The hot connections, whose plans do not depend on statistics.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def look(self, instance: UUID, back_to: datetime | None, wait_s: float) -> DatabaseState:
        """
        Read the state of the database, and its row of *instance*.

        Args:
            instance: The witness.
            back_to: ``back_to`` as it was when this place was first seen; None: this is the first time.
            wait_s: How long to wait for other hosts after an epoch began.
        """
        async with self._pool.connection() as connection:
            row = await connection.fetchrow(STATEMENTS["look_at_epoch"].sql, instance, back_to, wait_s, APART_S)
            table = in_schema(connection, "pulse.epochs")
        if row is None or row["lineage"] is None:
            raise UnavailableError(f"{table} is empty: somebody has deleted what was installed with the schema")
        said: Mapping[str, Any] = dict(row)
        return DatabaseState(**{"floor" if name == "attempts_floor" else name: value for name, value in said.items()})

    async def tick(self, known: Witnessed, highest: int, place: str) -> Mark | None:
        """Increment the counter; None: the database no longer has what is *known*."""
        async with self._pool.connection() as connection:
            row = await connection.fetchrow(STATEMENTS["tick_witness"].sql, *known, highest, place)
        return None if row is None else Mark(*row)

    async def begin(
        self,
        seen: DatabaseState,
        coming: HostContact,
        *,
        epoch: int | None = None,
        known_until: datetime | None = None,
        held: Held | None = None,
    ) -> tuple[NewEpoch | None, Mark | None]:
        """
        Accept the newest epoch, or begin a new one, and end the attempts that this host's workers held before.

        If the database refuses to end some of them, the epoch begins all the same: their leases lapse.

        Args:
            seen: The state of the database.
            coming: This host.
            epoch: The epoch to begin; None: accept the newest.
            known_until: The last time that this host knows the database had reached.
            held: What its workers hold, to be ended; None: end nothing, this host has just joined.

        Returns:
            The new epoch; and the host's counter, None: another host was faster, look again.
        """
        raised: NewEpoch | None = None
        is_lost = True
        async with self._pool.connection() as connection, connection.transaction():
            if epoch is not None:
                row = await connection.fetchrow(
                    STATEMENTS["raise_epoch"].sql,
                    *(epoch, coming.highest, coming.host, seen.back_to, known_until, APART_S),
                    *(seen.system_id, seen.timeline, AHEAD_S),
                )
                if row is None:
                    return None, None
                raised = NewEpoch(*row)
            number = seen.epoch if raised is None else raised.epoch
            row = await connection.fetchrow(
                STATEMENTS["accept_epoch"].sql,
                *(coming.instance, coming.host, coming.counter, number, coming.highest, seen.place),
                *(seen.started_at, seen.relation),
            )
            if row is not None and held is not None:
                try:
                    async with connection.transaction():
                        await _lose(connection, held, coming.host)
                except asyncpg.PostgresError as error:
                    if not is_safe_after(error):
                        raise
                    is_lost = False
        if held is not None and not is_lost:
            await self._lose_what_can_be(held, coming.host)
        return raised, None if row is None else Mark(*row)

    async def _lose_what_can_be(self, held: Held, host: str) -> None:
        """End them in halves, until the refused one is alone: it stays as it is, and its lease lapses."""
        with contextlib.suppress(UnavailableError):
            async with self._pool.connection() as connection:
                rows = await connection.fetch(STATEMENTS["running_on"].sql, held.workers, host)
            parts = [sorted({row["id"] for row in rows} | {fence.id for fence in held.fences})]
            refused, has_ended = 0, False
            while parts and (has_ended or refused < IN_VAIN):
                ids = parts.pop()
                try:
                    async with self._pool.connection() as connection, connection.transaction():
                        await _lose(connection, held, host, ids)
                    has_ended = True
                except StatementError:
                    middle = len(ids) // 2
                    parts += [ids[middle:], ids[:middle]] if middle else []
                    refused += not middle

    async def put_off(self, ids: Sequence[bytes], put_off_s: float) -> None:
        """Keep other hosts from claiming these jobs while an older attempt may still run here."""
        async with self._pool.connection() as connection:
            await connection.execute(STATEMENTS["put_off_jobs"].sql, uuids(sorted(ids)), put_off_s, None)

    async def gone_back(self, handed_out: Mapping[bytes, int], forgotten: AbstractSet[bytes]) -> bool:
        """Whether the database lacks one of these attempts, the newest of their jobs; *forgotten* jobs may be gone."""
        pairs = list(handed_out.items())
        async with self._pool.connection() as connection:
            is_kept = [job not in forgotten for job, _ in pairs]
            answer = await connection.fetchval(STATEMENTS["attempts_gone_back"].sql, *pair_columns(pairs), is_kept)
        return bool(answer)

    async def open_again(self, ids: Sequence[bytes]) -> list[bytes]:
        """Which of these completed jobs the database lists as not completed."""
        return await self._among("open_again", ids)

    async def unknown(self, ids: Sequence[bytes]) -> list[bytes]:
        """Which of these jobs the database does not have."""
        return await self._among("unknown_jobs", ids)

    async def _among(self, statement: str, ids: Sequence[bytes]) -> list[bytes]:
        found: list[bytes] = []
        for start in range(0, len(ids), _CHUNK):
            part, _ = pair_columns([(one, 0) for one in ids[start : start + _CHUNK]])
            async with self._pool.connection() as connection:
                rows = await connection.fetch(STATEMENTS[statement].sql, part)
            found += [row["id"] for row in rows]
        return found

    async def note_reopened(self, epoch: int, ids: Sequence[bytes]) -> None:
        """Store with the epoch which finished jobs the database lists as open."""
        async with self._pool.connection() as connection:
            await connection.execute(STATEMENTS["note_reopened"].sql, epoch, len(ids), uuids(ids[:SHOWN]))

    async def note_unknown(self, epoch: int, *, running: Sequence[bytes], finished: Sequence[bytes]) -> None:
        """Store with the epoch which jobs this host knows and the database does not, the first of each."""
        async with self._pool.connection() as connection:
            for name, ids in (("unknown_running", running), ("unknown_finished", finished)):
                if ids:
                    await connection.execute(STATEMENTS["note_unknown"].sql, epoch, name, uuids(ids[:LISTED]))


@dataclass(frozen=True, slots=True)
class Held:
    """
    What this host's workers hold when an epoch begins.

    Attributes:
        workers: Identities of the known workers.
        fences: Attempts that may still run.
        put_off_s: For how long no host may claim these jobs.
    """

    workers: Sequence[str]
    fences: Sequence[Fence]
    put_off_s: float


async def _lose(connection: Connection[Record], held: Held, host: str, only: Sequence[bytes] | None = None) -> None:
    """End what the workers of *host* held; *only*: of these jobs alone."""
    fences = held.fences if only is None else [fence for fence in held.fences if fence.id in only]
    meant = None if only is None else uuids(only)
    await connection.execute(STATEMENTS["note_lost"].sql, *fence_columns(fences), WENT_BACK, None)
    await connection.fetchval(STATEMENTS["end_epoch"].sql, held.workers, host, WENT_BACK, meant, None, held.put_off_s)
    ids = uuids(sorted({fence.id for fence in fences}))
    await connection.execute(STATEMENTS["put_off_jobs"].sql, ids, held.put_off_s, None)
