"""
What hosts have seen of the database, and what begins when it has gone back: an epoch.

A restore, or a failover that loses what was written last, leaves a database that knows less than the hosts that use it.
It would hand out attempts that were handed out before. Each dispatcher therefore counts in a row of its own, remembers
how far it has come (``Witnessed``), and claims only from a database that knows as much.
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
from pulse.store.failures import IN_VAIN, is_safe_after
from pulse.store.statements import STATEMENTS

if TYPE_CHECKING:
    from asyncpg import Connection, Record

    from pulse.store.connections.pool import Pool
    from pulse.store.rows import Claim, Fence

FIRST_HIGHEST: Final = 1000  # attempts up to there are handed out before anything has to be remembered of them
APART_S: Final = 10.0  # hosts that were seen so long apart were both alive
AHEAD_S: Final = 3600.0  # ids of clocks that are so far ahead were still made before an epoch
WENT_BACK: Final = "the database went back: what it does not know any more is over"  # the error of such attempts
SHOWN: Final = 20  # jobs that are listed with an epoch
_CHUNK: Final = 20_000  # ids of one statement


class Witnessed(NamedTuple):
    """What must be true of the database for a claim to be made: the arguments of the statements, in their order."""

    instance: UUID | None
    counter: int | None = None
    epoch: int | None = None
    started_at: datetime | None = None
    relation: int | None = None


UNWITNESSED: Final = Witnessed(None)
NO_WITNESS: Final = UUID(int=0)  # there is no such witness
CLOSED: Final = Witnessed(NO_WITNESS)  # nothing is claimed


class Mark(NamedTuple):
    """How far a witness has counted, when that was by the database's clock, and the bound of its attempts."""

    counter: int
    seen_at: datetime
    highest: int = 0


class HostContact(NamedTuple):
    """A host that has come: its witness, its id, how far it has counted, and the bound of its attempts."""

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
    What the database says of itself and of this host.

    Attributes:
        lineage: Which database it is, whichever server it was restored to.
        timeline: Of PostgreSQL; None: it is a standby.
        place: Server, timeline, start and table in one: another place may know less.
        floor: Of the newest epoch.
        counter: How far this host has counted, None: it never has.
        epoch_seen: The epoch that it has accepted.
        back_to: What the database knew of this host, or else of any, when it was first seen at this place.
        elsewhere: How many other hosts were seen then and have not come to this place.
        behind: How many have not accepted the newest epoch, and are waited for.
        newest: The highest bound of attempts of all hosts.
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
    """What a dispatcher knows of the database; the store asks it before a claim, and tells it what came of it."""

    witnessed: Witnessed

    async def claimed(self, claims: Sequence[Claim]) -> None:
        """These are about to be handed out."""

    def forgets(self, pairs: Iterable[tuple[bytes, int]]) -> None:
        """These are about to complete their jobs, which will not be there any more, whether or not the answer comes."""

    def completed(self, pairs: Collection[tuple[bytes, int]]) -> None:
        """These attempts have completed their jobs."""


class EpochStore:
    """
    Witnesses and epochs.

    Args:
        pool: The hot connections: its plans do not depend on statistics.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def look(self, instance: UUID, back_to: datetime | None, wait_s: float) -> DatabaseState:
        """
        What the database says of itself and of *instance*.

        Args:
            instance: The witness.
            back_to: What was ``back_to`` when it was first seen at this place; None: this is the first time.
            wait_s: How long others are waited for after an epoch began.
        """
        async with self._pool.connection() as connection:
            row = await connection.fetchrow(STATEMENTS["look_at_epoch"].sql, instance, back_to, wait_s, APART_S)
        if row is None or row["lineage"] is None:
            raise UnavailableError("pulse.epochs is empty: somebody has deleted what was installed with the schema")
        said: Mapping[str, Any] = dict(row)
        return DatabaseState(**{"floor" if name == "attempts_floor" else name: value for name, value in said.items()})

    async def tick(self, known: Witnessed, highest: int, place: str) -> Mark | None:
        """Count; None: *known* is not true any more."""
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
        Accept the newest epoch, or raise a new one; what this host's workers held before it is over.

        Where the database refuses to end some of it, the epoch begins all the same: what can be ended is, and the rest
        lapses by its leases.

        Args:
            seen: What the database said of itself.
            coming: Who comes.
            epoch: The one to raise; None: accept the newest.
            known_until: What the database had known, as far as this host knows.
            held: What its workers hold, which is over; None: nothing ends, since this host has only come.

        Returns:
            The new epoch; and how far it has counted, None: another host was faster, look again.
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
        """In halves, until what is refused is alone: that stays as it is, and its lease lapses."""
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
        """Keep other hosts from beginning these, of which an attempt may run here yet."""
        async with self._pool.connection() as connection:
            await connection.execute(STATEMENTS["put_off_jobs"].sql, uuids(sorted(ids)), put_off_s, None)

    async def gone_back(self, handed_out: Mapping[bytes, int], forgotten: AbstractSet[bytes]) -> bool:
        """Whether one of these attempts, the newest of their jobs, is not known to the database, nor *forgotten*."""
        pairs = list(handed_out.items())
        async with self._pool.connection() as connection:
            is_kept = [job not in forgotten for job, _ in pairs]
            answer = await connection.fetchval(STATEMENTS["attempts_gone_back"].sql, *pair_columns(pairs), is_kept)
        return bool(answer)

    async def open_again(self, ids: Sequence[bytes]) -> list[bytes]:
        """Which of these jobs, that were completed, are listed as open."""
        found: list[bytes] = []
        for start in range(0, len(ids), _CHUNK):
            part, _ = pair_columns([(one, 0) for one in ids[start : start + _CHUNK]])
            async with self._pool.connection() as connection:
                rows = await connection.fetch(STATEMENTS["open_again"].sql, part)
            found += [row["id"] for row in rows]
        return found

    async def note_reopened(self, epoch: int, ids: Sequence[bytes]) -> None:
        """Tell with the epoch which jobs were known to be finished."""
        async with self._pool.connection() as connection:
            await connection.execute(STATEMENTS["note_reopened"].sql, epoch, len(ids), uuids(ids[:SHOWN]))


@dataclass(frozen=True, slots=True)
class Held:
    """
    What this host's workers hold when an epoch begins.

    Attributes:
        workers: Those that are known, by identity.
        fences: Attempts that may run yet.
        put_off_s: For how long no host begins these.
    """

    workers: Sequence[str]
    fences: Sequence[Fence]
    put_off_s: float


async def _lose(connection: Connection[Record], held: Held, host: str, only: Sequence[bytes] | None = None) -> None:
    """What the workers of *host* held is over; *only*: of these jobs alone."""
    fences = held.fences if only is None else [fence for fence in held.fences if fence.id in only]
    meant = None if only is None else uuids(only)
    await connection.execute(STATEMENTS["note_lost"].sql, *fence_columns(fences), WENT_BACK, None)
    await connection.fetchval(STATEMENTS["end_epoch"].sql, held.workers, host, WENT_BACK, meant, None, held.put_off_s)
    ids = uuids(sorted({fence.id for fence in fences}))
    await connection.execute(STATEMENTS["put_off_jobs"].sql, ids, held.put_off_s, None)
