"""The fence: a write by a worker changes the one row whose id, status, holder and attempt it names, and no other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from msgspec.structs import replace

from pulse.store.arguments import fence_columns
from pulse.store.rows import Completion, Ending, EndingKind, Fence, Renewal, Running
from pulse.store.statements import STATEMENTS
from pulse.store.store import Store
from tests.support.store.helpers import (
    LEASE_S,
    NOW,
    OTHER,
    STATUSES,
    WORKER,
    Sql,
    at,
    changes,
    count,
    fence,
    forge,
    history,
    new_id,
    read,
    remember,
)
from tests.support.store.refusing_kit import spoil

LATER: Final = at(2 * LEASE_S)  # every lease that was opened at NOW has lapsed by then
HEIR: Final = "w3"


@dataclass(frozen=True, slots=True)
class Write:
    """One kind of write by a worker, to attempts; *ids* of its answer: what it changed."""

    name: str
    write: Callable[[Store, list[Fence]], Awaitable[Any]]
    ids: Callable[[Any], set[bytes]] = lambda pairs: {identity for identity, _ in pairs}

    async def do(self, store: Store, fences: list[Fence]) -> set[bytes]:
        return self.ids(await self.write(store, fences))

    def __str__(self) -> str:
        return self.name


def _end(kind: EndingKind) -> Write:
    return Write(
        kind.value,
        lambda store, fences: store.end([Ending(*one, kind, "why", 1.0) for one in fences], now=LATER),
        lambda ended: {one.id for one in ended},
    )


WRITES: Final = [
    Write("complete", lambda store, fences: store.complete([Completion(*one, '"done"') for one in fences], now=LATER)),
    Write(
        "extend", lambda store, fences: store.extend([Renewal(*one, '"half"') for one in fences], LEASE_S, now=LATER)
    ),
    Write("checkpoint", lambda store, fences: store.checkpoint([Renewal(*one, '{"at": 7}') for one in fences])),
    Write("move", lambda store, fences: store.move([(one, HEIR) for one in fences]), lambda moved: moved),
    *(_end(kind) for kind in EndingKind),
]


@pytest.mark.parametrize("write", WRITES, ids=str)
async def test_the_holder_may_write(store: Store, connection: Sql, write: Write) -> None:
    mine, others = await forge(connection, "RUNNING"), await forge(connection, "RUNNING")
    before = await read(connection, mine), await read(connection, others)
    assert await write.do(store, [fence(mine)]) == {mine}
    assert changes(before[0], await read(connection, mine))
    assert await read(connection, others) == before[1]


@pytest.mark.parametrize("write", WRITES, ids=str)
async def test_a_stale_write_changes_nothing(store: Store, connection: Sql, write: Write) -> None:
    """An unknown id, an older or newer attempt, or another holder: zero rows, and the row and its history stay."""
    identity = await forge(connection, "RUNNING", attempts=5)
    before = await read(connection, identity)
    for one in [fence(new_id(), 5), fence(identity, 4), fence(identity, 6), fence(identity, 5, OTHER)]:
        assert await write.do(store, [one]) == set()
        assert await read(connection, identity) == before
    assert await connection.fetchval("SELECT count(*) FROM pulse.attempts") == 0
    assert await count(connection) == 1


@pytest.mark.parametrize("write", WRITES, ids=str)
@pytest.mark.usefixtures("own_database")
async def test_only_a_running_row_is_written(store: Store, connection: Sql, write: Write) -> None:
    """A row in any other status is left alone, even one that still names the holder (which the schema refuses)."""
    await connection.execute("ALTER TABLE pulse.jobs DROP CONSTRAINT jobs_lease")
    for status in sorted(set(STATUSES) - {"RUNNING"}):
        identity = await forge(connection, status, attempts=1, locked_by=WORKER, lease_until=NOW)
        before = await read(connection, identity)
        said_before = (write.name, status) == ("complete", "COMPLETED")  # a report that came again is not stale
        assert await write.do(store, [fence(identity)]) == ({identity} if said_before else set())
        assert await read(connection, identity) == before
    assert await connection.fetchval("SELECT count(*) FROM pulse.attempts") == 0


@pytest.mark.parametrize("write", WRITES, ids=str)
async def test_stale_neighbours_do_not_matter(store: Store, connection: Sql, write: Write) -> None:
    """In one merged write each row is judged alone: good ones are written, stale ones are not, in any order."""
    good = [await forge(connection, "RUNNING") for _ in range(3)]
    stale = [await forge(connection, "RUNNING", attempts=2) for _ in range(3)]
    before = [await read(connection, identity) for identity in stale]
    mixed = [one for pair in zip(good, stale, strict=True) for one in pair]
    assert await write.do(store, [fence(one) for one in reversed(mixed)]) == set(good)
    assert [await read(connection, identity) for identity in stale] == before


@pytest.mark.parametrize("write", WRITES, ids=str)
async def test_the_same_attempt_twice_in_one_write(store: Store, connection: Sql, write: Write) -> None:
    identity = await forge(connection, "RUNNING")
    assert await write.do(store, [fence(identity), fence(identity)]) == {identity}
    found = await read(connection, identity)
    assert (found["attempts"], found["uncharged"] + found["crashes"]) in {(1, 0), (1, 1), (1, 2)}
    assert len(await history(connection, identity)) <= 1


async def test_complete(store: Store, connection: Sql) -> None:
    """Completing stores result, progress (where some is sent) and time, ends the lease, and leaves no history."""
    identity = await forge(connection, "RUNNING", progress='"half"', last_error="before", crashes=1)
    other = await forge(connection, "RUNNING", progress='"half"')
    before = await read(connection, identity), await read(connection, other)
    completions = [Completion(identity, 1, WORKER, '{"a": 1}'), Completion(other, 1, WORKER, None, '"whole"')]
    assert await store.complete(completions, now=at(2)) == {(identity, 1), (other, 1)}
    ended: dict[str, object] = {"locked_by": None, "lease_until": None, "ran_by": WORKER}
    done = {"status": "COMPLETED", "completed_at": at(2), **ended}
    assert changes(before[0], await read(connection, identity)) == {**done, "result": '{"a": 1}'}
    assert changes(before[1], await read(connection, other)) == {**done, "progress": '"whole"'}
    assert await history(connection, identity) == []


async def test_workers_of_any_name(store: Store, connection: Sql) -> None:
    """Their names travel as the text of an array, in which these characters mean something."""
    names = ['a"b', "back\\slash", "{a,b}", "NULL", " "]
    done = [Completion(await forge(connection, "RUNNING", locked_by=name), 1, name, None) for name in names]
    swapped = [replace(one, worker=name) for one, name in zip(done, reversed(names), strict=True)]
    assert await store.complete(swapped) == {(done[2].id, 1)}
    assert await store.complete(done) == {(one.id, 1) for one in done}


@pytest.mark.usefixtures("own_database")
async def test_jobs_that_others_wait_for_are_completed_by_the_same_fence(store: Store, connection: Sql) -> None:
    """And no others by that statement, though they are of the same worker and attempt."""
    await connection.execute("ALTER TABLE pulse.jobs DROP CONSTRAINT jobs_lease")
    good, unnamed, newer, elsewhere = [
        await forge(connection, "RUNNING", is_parent=True, **one)
        for one in ({}, {}, {"attempts": 2}, {"locked_by": OTHER})
    ]
    waiting = await forge(connection, "PENDING", is_parent=True, attempts=1, locked_by=WORKER, lease_until=NOW)
    named = [good, newer, elsewhere, waiting]
    assert await store.complete([Completion(*fence(one), None) for one in named]) == {(good, 1)}
    left = [good, unnamed, newer, elsewhere, waiting]
    assert [(await read(connection, one))["status"] for one in left] == ["COMPLETED", *["RUNNING"] * 3, "PENDING"]
    plain = await forge(connection, "RUNNING")
    of_parents = STATEMENTS["complete_parents"].sql
    assert await connection.fetchval(of_parents, *fence_columns([fence(plain)]), [], [], None) == 0


@pytest.mark.usefixtures("own_database")
async def test_what_is_not_kept_is_deleted_when_its_report_comes(store: Store, connection: Sql) -> None:
    """Also if the handler has completed the job before; with its history, and nothing else."""
    await connection.execute("ALTER TABLE pulse.jobs DROP CONSTRAINT jobs_ran_by")
    ours: dict[str, Any] = {"attempts": 2, "ran_by": WORKER}
    before, unnamed = await forge(connection, "COMPLETED", **ours), await forge(connection, "COMPLETED", **ours)
    other, older = [
        await forge(connection, "COMPLETED", **(ours | one)) for one in ({"ran_by": OTHER}, {"attempts": 1})
    ]
    canceled, parent = [await forge(connection, status, **ours, is_parent=True) for status in ("CANCELED", "COMPLETED")]
    running, stale = await forge(connection, "RUNNING", attempts=2), await forge(connection, "RUNNING", attempts=3)
    for job in (before, other, older):
        await remember(connection, job)
    done = [Completion(job, 2, WORKER, None) for job in (before, other, older, canceled, parent, running, stale)]
    assert await store.complete(done, keep=False) == {(before, 2), (parent, 2), (running, 2)}
    left = {row[0].bytes for row in await connection.fetch("SELECT id FROM pulse.jobs")}
    assert left == {unnamed, other, older, canceled, parent, stale}
    assert {row[0].bytes for row in await connection.fetch("SELECT job_id FROM pulse.attempts")} == {other, older}


async def test_completed_already(store: Store, connection: Sql) -> None:
    """A repeated report differs from a stale one: only the very attempt that completed the job counts."""
    done = await forge(connection, "COMPLETED", attempts=2)
    await forge(connection, "COMPLETED", attempts=2)
    others = [await forge(connection, status, attempts=2) for status in STATUSES if status != "COMPLETED"]
    asked = [(done, 1), (done, 2), (done, 3), (new_id(), 2), *((one, 2) for one in others)]
    assert await store.completed_already(asked) == {(done, 2)}
    assert await store.completed_already([(done, 1), (done, 3)]) == set()


async def test_ends_that_were_written_before(store: Store, connection: Sql) -> None:
    """Of the very attempt, by the same worker, in the same way, and only while the job has not started again."""
    job, again, silent = [await forge(connection, "RUNNING", max_attempts=1) for _ in range(3)]
    kinds = {job: EndingKind.ERROR, again: EndingKind.ERROR, silent: EndingKind.SILENT}
    endings = [Ending(one, 1, WORKER, kind, "boom") for one, kind in kinds.items()]
    ended = await store.end(endings)
    await connection.execute("UPDATE pulse.jobs SET attempts = 2 WHERE id = $1", again.hex())
    found = {one.id: one for one in await store.endings.written(endings)}
    assert {one: (row.status, row.name, row.due_s) for one, row in found.items()} == {
        one.id: (one.status, one.name, one.due_s) for one in ended if one.id != again
    }
    for other in ({"attempt": 2}, {"worker": "other"}, {"kind": EndingKind.CRASHED}, {"id": new_id()}):
        assert await store.endings.written([endings[0]._replace(**other)]) == []
    assert await store.endings.written([]) == []


async def test_extend(store: Store, connection: Sql) -> None:
    """A heartbeat sets the lease from now on, keeps progress where none is sent, and touches nothing else."""
    told, silent = await forge(connection, "RUNNING"), await forge(connection, "RUNNING", progress='"half"')
    before = await read(connection, told), await read(connection, silent)
    beats = [Renewal(told, 1, WORKER, "0.5"), Renewal(silent, 1, WORKER, None)]
    assert await store.extend(beats, 12.5, now=at(4)) == {(told, 1), (silent, 1)}
    assert changes(before[0], await read(connection, told)) == {"lease_until": at(16.5), "progress": "0.5"}
    assert changes(before[1], await read(connection, silent)) == {"lease_until": at(16.5)}


async def test_lapsed(store: Store, connection: Sql) -> None:
    """A lease has lapsed when its end lies before now; only RUNNING rows have one; the oldest come first."""
    old = await forge(connection, "RUNNING", started_at=at(-9), lease_until=at(-1))
    young = await forge(connection, "RUNNING", started_at=at(-8), lease_until=at(-2), attempts=3, locked_by=OTHER)
    await forge(connection, "RUNNING", lease_until=NOW)
    for status in sorted(set(STATUSES) - {"RUNNING"}):
        await forge(connection, status)
    assert await store.lapsed(10, now=NOW) == sorted([fence(old), fence(young, 3, OTHER)])
    assert await store.lapsed(1, now=NOW) == [fence(old)]
    assert await store.lapsed(1, spared=[WORKER], now=NOW) == [fence(young, 3, OTHER)]
    assert await store.lapsed(1, spared=[WORKER, OTHER], now=NOW) == []


@pytest.mark.usefixtures("own_database")
async def test_lapsed_looks_at_the_status(store: Store, connection: Sql) -> None:
    await connection.execute("ALTER TABLE pulse.jobs DROP CONSTRAINT jobs_lease")
    await forge(connection, "COMPLETED", lease_until=at(-1), locked_by=WORKER)
    assert await store.lapsed(10, now=NOW) == []


@pytest.mark.parametrize(("lease_s", "reaped"), [(-0.000001, True), (0.0, False), (LEASE_S, False)])
async def test_a_living_lease_is_never_reaped(store: Store, connection: Sql, lease_s: float, reaped: bool) -> None:
    """An attempt seen as lapsed is ended only if its lease has still lapsed then: a beat may have come."""
    identity = await forge(connection, "RUNNING", lease_until=at(lease_s))
    before = await read(connection, identity)
    ended = await store.end([Ending(*fence(identity), EndingKind.LEASE_EXPIRED, "worker lease expired")], now=NOW)
    assert bool(ended) is reaped
    assert bool(changes(before, await read(connection, identity))) is reaped


@pytest.mark.usefixtures("own_database")
async def test_running_of(store: Store, connection: Sql) -> None:
    """A worker's attempts, of its own RUNNING rows only; each worker once."""
    await connection.execute("ALTER TABLE pulse.jobs DROP CONSTRAINT jobs_lease")
    mine = [
        await forge(connection, "RUNNING", attempts=attempt, name=f"n{attempt}", timeout_s=(None, 1.5)[attempt - 1])
        for attempt in (1, 2)
    ]
    await forge(connection, "RUNNING", locked_by=OTHER)
    await forge(connection, "COMPLETED", locked_by=WORKER)
    await forge(connection, "COMPLETED", locked_by=HEIR)
    assert await store.running_of(WORKER) == {
        (mine[0], 1): Running("n1", "t", None),
        (mine[1], 2): Running("n2", "t", 1.5),
    }
    until: datetime = (await read(connection, mine[0]))["lease_until"]
    leases = await store.leases_of([WORKER, HEIR], now=until - timedelta(seconds=7))
    assert leases.keys() == {WORKER}
    assert {pair: lease[:-1] for pair, lease in leases[WORKER].items()} == await store.running_of(WORKER)
    assert leases[WORKER][mine[0], 1].left_s == 7.0
    assert (await store.leases_of([WORKER]))[WORKER][mine[0], 1].left_s == pytest.approx(
        (until - datetime.now(UTC)).total_seconds(), abs=5.0
    )
    assert sorted(await store.running_workers()) == [WORKER, OTHER]
    await spoil(connection, mine[0])
    spoilt = Running("n\ufffd", "t", None)
    assert (await store.running_of(WORKER))[mine[0], 1] == spoilt
    assert (await store.leases_of([WORKER]))[WORKER][mine[0], 1][:-1] == spoilt
    assert await store.named(mine) == {mine[0]: spoilt, mine[1]: Running("n2", "t", 1.5)}
