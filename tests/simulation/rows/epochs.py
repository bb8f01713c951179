"""``pulse.store.recovery.epochs.EpochStore`` on the simulated database; the docstrings are there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from pulse.store.recovery.epochs import DatabaseState, Held, HostContact, Mark, NewEpoch, Witnessed
from tests.simulation.machine.process import PROCESS
from tests.support.store.model import FINISHED

if TYPE_CHECKING:
    from tests.simulation.rows.database import Database


class FakeEpochs:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._rows = database.rows
        self._do = database.do

    async def look(self, instance: UUID, back_to: datetime | None, wait_s: float) -> DatabaseState:
        database = self._database

        def act() -> DatabaseState:
            return self._rows.ledger.look(instance, back_to, wait_s, database.server, database.now())

        return await self._do("look", act)

    async def tick(self, known: Witnessed, highest: int, _place: str) -> Mark | None:
        database = self._database
        return await self._do("tick", lambda: self._rows.ledger.tick(known, highest, database.server, database.now()))

    async def begin(
        self,
        seen: DatabaseState,
        coming: HostContact,
        *,
        epoch: int | None = None,
        known_until: datetime | None = None,
        held: Held | None = None,
    ) -> tuple[NewEpoch | None, Mark | None]:
        database = self._database
        del known_until  # nobody reads it here

        def act() -> tuple[NewEpoch | None, Mark | None]:
            judge, dispatcher = database.world.judge, PROCESS.get()
            if (seen.started_at, seen.relation) != database.server:  # it is another one by now
                return None, None
            raised, mark = self._rows.begin_epoch(seen, coming, epoch, held, database.now())
            if raised is not None:
                judge.raised(dispatcher.machine)
            if mark is not None:
                judge.came(dispatcher, ends=held is not None)
            return raised, mark

        return await self._do("begin", act)

    async def put_off(self, ids: Sequence[bytes], put_off_s: float) -> None:
        await self._do("put_off", lambda: self._rows.put_off(ids, put_off_s, self._database.now()))

    async def gone_back(self, handed_out: Mapping[bytes, int], forgotten: AbstractSet[bytes]) -> bool:
        return await self._do("gone_back", lambda: self._rows.knows_less(handed_out, forgotten))

    async def open_again(self, ids: Iterable[bytes]) -> list[bytes]:
        wanted = list(ids)

        def act() -> list[bytes]:
            jobs = self._rows.jobs
            return [one for one in wanted if one in jobs and jobs[one].status not in FINISHED]

        return await self._do("open_again", act)

    async def unknown(self, ids: Iterable[bytes]) -> list[bytes]:
        wanted = list(ids)
        return await self._do("unknown", lambda: [one for one in wanted if one not in self._rows.jobs])

    async def note_unknown(self, _epoch: int, *, running: Sequence[bytes], finished: Sequence[bytes]) -> None:
        """Nobody reads it here."""

    async def note_reopened(self, _epoch: int, _ids: Sequence[bytes]) -> None:
        """Nobody reads it here."""
