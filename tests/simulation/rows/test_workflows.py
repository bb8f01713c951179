"""Jobs that wait for others and for signals: the simulation's database against PostgreSQL, in random histories."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, TypeVar
from uuid import UUID

import pytest

from pulse.errors import ConflictError, NotFoundError
from pulse.store.operators.dependencies import FIRST
from pulse.store.rows import Completion, Ending, EndingKind, Renewal
from tests.plugins.databases import EMPTY
from tests.simulation.rows.workflow_rows import HELD, SentSignal, WorkflowRows
from tests.support.store.helpers import LEASE_S, Sql, job, new_id
from tests.support.store.model import FINISHED

if TYPE_CHECKING:
    from pulse.protocol import SubmittedJob
    from pulse.store.store import Store
    from tests.support.store.model import ModelJob

pytestmark = [pytest.mark.postgres, pytest.mark.anyio, pytest.mark.usefixtures("own_database")]

SEEDS: Final = 8
STEPS: Final = 120
OPERATIONS: Final = (
    *("submit",) * 4, *("begin_submit", "commit") * 2, *("claim", "complete", "end", "wait", "retry") * 3,
    *("send",) * 6, "begin_send", "look", "look", "keep", "put_off", "cancel", "by_hand", "walk", "delete",
)  # fmt: skip
NAMES: Final = ("go", "pay")
LATER_S: Final = 3600.0
SOON: Final = timedelta(minutes=1)
STEPS_KEPT: Final = '{"$steps": {"a": 1}, "checkpoint": 2}'
BY_HAND: Final = "UPDATE pulse.jobs SET status = 'CANCELED', completed_at = now() WHERE id = $1"
_JOBS: Final = """
    SELECT uuid_send(id), status::text, attempts, next_run_at, coalesce(is_parent, false), waiting_on,
        run_after IS NULL, coalesce(signals, 0), awaited_signal, checkpoint::text, last_error
    FROM pulse.jobs ORDER BY id"""
_EDGES: Final = """
    SELECT uuid_send(parent_id), uuid_send(child_id), on_failure, is_over
    FROM pulse.dependencies ORDER BY parent_id, child_id"""
_SUBMIT: Final = """
    SELECT pulse.submit('n', topic => $1, id => $2, delay_s => $3, max_attempts => 2, after => $4, on_failure => $5)"""
_SIGNALS: Final = "SELECT uuid_send(job_id), name, key FROM pulse.signals ORDER BY id"
T = TypeVar("T")


def _now() -> datetime:
    return datetime.now(UTC)


def _due(moment: datetime) -> str:
    return "held" if moment == HELD else "due" if moment <= _now() + SOON else "later"


class WorkflowHistories:
    """A real store and the model; *other* has the transactions that stay open."""

    def __init__(self, store: Store, connection: Sql, other: Sql, seed: int) -> None:
        self.store = store
        self.connection = connection
        self.other = other
        self.chance = random.Random(seed)
        self.rows = WorkflowRows()
        self.pending: Callable[[], object] | None = None  # what the model does when the open transaction commits
        self.keys = 0
        self.told: Counter[object] = Counter()

    def _some(self, jobs: list[ModelJob]) -> ModelJob | None:
        return self.chance.choice(jobs) if jobs else None

    def _any(self) -> ModelJob | None:
        return self._some([*self.rows.jobs.values()])

    def _running(self) -> tuple[ModelJob, tuple[bytes, int, str]] | None:
        running = self.rows.running()
        row = self._some([one for one in running if one.signals] or running)
        return None if row is None else (row, (row.id, row.attempts, row.locked_by or ""))

    def _new(self, known: list[bytes]) -> SubmittedJob:
        chance = self.chance
        after = chance.sample(known, min(len(known), chance.randrange(4)))
        return job(
            id=new_id(), delay_s=chance.choice((None, None, LATER_S)), max_attempts=2, after=after or None,
            on_failure=chance.choice((None, "run")) if after else None,
        )  # fmt: skip

    def _is_forgotten(self, parent: bytes) -> bool:
        """Nobody has told those that wait for it: a transaction that does keeps their rows locked."""
        edges = self.rows.edges.items()
        return self.rows.is_over(parent) and any(edge[0] == parent and not one.is_over for edge, one in edges)

    # What they do: the answers of both.

    async def do_submit(self) -> tuple[object, object]:
        jobs: list[SubmittedJob] = []
        for _ in range(self.chance.randrange(1, 4)):
            jobs.append(self._new([*self.rows.jobs, *(one.id for one in jobs if one.id)]))
        ids, woken = await self.store.unique.submit(jobs)
        said = self.rows.submit_held(jobs, self.rows.ended_parents(jobs), _now())
        return (ids, sum(one.jobs for one in woken)), ([one.id for one in jobs], sum(one.jobs for one in said))

    async def do_begin_submit(self) -> tuple[object, object]:
        if self.pending is None:
            new = self._new([one for one in self.rows.jobs if not self._is_forgotten(one)])
            await self.other.execute("BEGIN")
            await self.other.execute(
                _SUBMIT, new.topic, new.id and UUID(bytes=new.id), new.delay_s,
                [UUID(bytes=one) for one in new.after or ()] or None, new.on_failure,
            )  # fmt: skip
            seen = self.rows.ended_parents([new])
            self.pending = lambda: self.rows.submit_held([new], seen, _now())
        return None, None

    async def do_begin_send(self) -> tuple[object, object]:
        row, signal = self._any(), self._signal()
        if self.pending is None and row is not None and row.status not in {"COMPLETED", "CANCELED"}:
            await self.other.execute("BEGIN")
            words = UUID(bytes=row.id), signal.name, signal.payload, signal.key
            await self.other.execute("SELECT pulse.signal($1, $2, $3, $4)", *words)
            self.pending = lambda: self.rows.deliver(signal._replace(job=row.id), _now())
        return None, None

    async def do_commit(self) -> tuple[object, object]:
        if self.pending is not None:
            await self.other.execute("COMMIT")
            self.pending()
            self.pending = None
        return None, None

    def _signal(self) -> SentSignal:
        self.keys += 1
        return SentSignal(self.keys, b"", self.chance.choice(NAMES), f'"{self.keys}"', str(self.keys))

    async def do_send(self) -> tuple[object, object]:
        row, signal = self._any(), self._signal()
        if row is None:
            return None, None
        signal = signal._replace(job=row.id, key=self.chance.choice((signal.key, "often")))
        real: object
        said: object
        try:
            real = await self.store.signals.send(row.id, signal.name, signal.payload or "", signal.key)
        except (NotFoundError, ConflictError) as error:
            real = type(error)
        try:
            said = self.rows.may_send(row.id, signal.name, signal.key) and self.rows.deliver(signal, _now())
        except (NotFoundError, ConflictError) as error:
            said = type(error)
        return real, said

    async def do_look(self) -> tuple[object, object]:
        """A handler asks for its next signal."""
        row, name = self._any(), self.chance.choice(NAMES)
        identity = new_id() if row is None else row.id
        ids = [one["id"] for one in await self.connection.fetch("SELECT id FROM pulse.signals ORDER BY id")]
        mine = sorted(one.id for some in self.rows.sent.values() for one in some)
        had = self.chance.randrange(len(mine) + 1)
        real = await self.store.signals.next(identity, name, ids[:had])
        said = self.rows.next_signal(identity, name, mine[:had], _now())
        return _heard(real), _heard(said)

    async def do_claim(self) -> tuple[object, object]:
        real = await self.store.claim(["t"], ["w0"], [0] * 20, LEASE_S)
        said = self.rows.claim(["t"], ["w0"], [0] * 20, LEASE_S, _now())
        return sorted((one.id, one.attempt) for one in real), sorted((one.id, one.attempt) for one in said)

    async def do_complete(self) -> tuple[object, object]:
        found = self._running()
        if found is None:
            return None, None
        done = [Completion(*found[1], None)]
        return await self.store.complete(done), self.rows.complete(done, _now())

    async def do_end(self) -> tuple[object, object]:
        kind = self.chance.choice((EndingKind.ERROR, EndingKind.DISCARDED, EndingKind.RELEASED))
        return await self._end(kind, self.chance.choice((0.0, LATER_S)))

    async def do_wait(self) -> tuple[object, object]:
        """A handler waits for a signal: it had seen all of them, or one has come since."""
        return await self._end(EndingKind.SNOOZED, LATER_S, waits=True)

    async def _end(self, kind: EndingKind, delay_s: float, *, waits: bool = False) -> tuple[object, object]:
        found = self._running()
        if found is None:
            return None, None
        seen = max(0, found[0].signals - self.chance.choice((0, 0, 1)))
        awaits = (self.chance.choice(NAMES), seen) if waits else None
        self.told["missed"] += waits and seen < found[0].signals
        error = None if kind is EndingKind.SNOOZED else "why"
        ends = [Ending(*found[1], kind, error, delay_s, awaits=awaits)]
        real, said = await self.store.end(ends), self.rows.end(ends, _now())
        return [(one.status, one.delay_s) for one in real], [(one.status, one.delay_s) for one in said]

    async def do_keep(self) -> tuple[object, object]:
        found = self._running()
        if found is None:
            return None, None
        some = [Renewal(*found[1], self.chance.choice((STEPS_KEPT, "7")))]
        return await self.store.checkpoint(some), self.rows.save(some)

    async def do_cancel(self) -> tuple[object, object]:
        row = self._any()
        if row is None:
            return None, None
        real, said = await self.store.cancel([row.id]), self.rows.cancel([row.id], _now())
        return {one.id for one in real}, {one.id for one in said}

    async def do_retry(self) -> tuple[object, object]:
        ended = [row for row in self.rows.jobs.values() if row.status in FINISHED]
        ids = sorted({row.id for row in self.chance.sample(ended, min(len(ended), self.chance.choice((1, 1, 3))))})
        real = await self.store.wait_again([*await self.store.retry(ids)])
        said = self.rows.wait_again(self.rows.retry(ids, _now()))
        self.told["held again"] += sum(said.values())
        return real, said

    async def do_delete(self) -> tuple[object, object]:
        row = self._any()
        return (None, None) if row is None else (await self.store.delete([row.id]), self.rows.delete([row.id]))

    async def do_put_off(self) -> tuple[object, object]:
        """It may run elsewhere since the database went back."""
        row = self._any()
        if row is not None:
            await self.store.epochs.put_off([row.id], LATER_S / 2)
            self.rows.put_off([row.id], LATER_S / 2, _now())
        return None, None

    async def do_by_hand(self) -> tuple[object, object]:
        waiting = [one for one in self.rows.jobs.values() if one.status == "PENDING"]
        row = self._some([one for one in waiting if one.is_parent] or waiting)
        if row is not None:
            await self.connection.execute(BY_HAND, UUID(bytes=row.id))
            row.let_go("CANCELED", finished_at=_now())
        return None, None

    async def do_walk(self) -> tuple[object, object]:
        limit = self.chance.choice((2, 100))
        real = await self.store.dependencies.settle_forgotten(FIRST, limit)
        said = self.rows.settle_forgotten(FIRST, limit, _now())
        self.told["forgotten"] += said.settled
        return real, said

    async def step(self) -> None:
        what = self.chance.choice(OPERATIONS)
        real, said = await getattr(self, f"do_{what}")()
        assert (what, real) == (what, said)
        assert [
            (one[0], one[1], one[2], _due(one[3]), *one[4:9], _json(one[9]), one[10])
            for one in await self.connection.fetch(_JOBS)
        ] == [
            (
                row.id, row.status, row.attempts, _due(row.next_run_at), row.is_parent, row.waiting_on,
                row.run_after is None, row.signals, row.awaited_signal, _json(row.checkpoint), row.last_error,
            )
            for _, row in sorted(self.rows.jobs.items())
        ]  # fmt: skip
        assert [tuple(one) for one in await self.connection.fetch(_EDGES)] == [
            (*edge, one.on_failure, one.is_over) for edge, one in sorted(self.rows.edges.items())
        ]
        sent = sorted(one for some in self.rows.sent.values() for one in some)
        assert [tuple(one) for one in await self.connection.fetch(_SIGNALS)] == [
            (one.job, one.name, one.key) for one in sent
        ]
        self.told.update(row.status for row in self.rows.jobs.values() if row.waiting_on is not None)


def _json(text: str | None) -> object:
    return None if text is None else json.loads(text)


def _heard(answer: dict[str, object] | None) -> object:
    if answer is None:
        return None
    signal = answer["signal"]
    return (signal["payload"] if isinstance(signal, dict) else None, answer["sent"], answer["is_over"])


@pytest.mark.rest
async def test_workflows(store: Store, connection: Sql, other: Sql) -> None:
    told: Counter[object] = Counter()
    for seed in range(SEEDS):
        await connection.execute(f"{EMPTY}; DELETE FROM pulse.dependencies; DELETE FROM pulse.signals")
        histories = WorkflowHistories(store, connection, other, seed)
        for _ in range(STEPS):
            await histories.step()
        await other.execute("ROLLBACK")
        told += histories.told
    assert {what for what, times in told.items() if times} >= {
        *("PENDING", "RUNNING", "RETRYING", "COMPLETED", "DEAD_LETTERED", "CANCELED"),
        *("missed", "held again", "forgotten"),
    }
