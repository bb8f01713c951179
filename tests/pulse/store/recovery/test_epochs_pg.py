"""Epochs in the database: which hosts may claim, attempts' numbers, and what ends when the database has gone back."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import Collection, Iterable, Sequence
from datetime import timedelta
from typing import Any, Final
from uuid import UUID, uuid4

import pytest

from pulse.common.ids import first_at, uuid7
from pulse.errors import StatementError, UnavailableError
from pulse.store.recovery.epochs import (
    CLOSED,
    LISTED,
    UNWITNESSED,
    WENT_BACK,
    EpochStore,
    Held,
    HostContact,
    Witnessed,
)
from pulse.store.rows import Claim, Completion, Fence
from pulse.store.statements import STATEMENTS
from pulse.store.store import Store
from tests.support.store.epoch_kit import HOST, LEASE_S, ME, OTHER, clean, come, raised
from tests.support.store.helpers import NOW, TOPIC, WORKER, Patch, Sql, forge, found_of, history, holding, job, read
from tests.support.store.refusing_kit import refusing
from tests.support.waiting import until_async

FLOOR: Final = 1000


class Known:
    def __init__(self, witnessed: Witnessed) -> None:
        self.witnessed = witnessed
        self.claims: list[Claim] = []
        self.done: list[tuple[bytes, int]] = []

    async def claimed(self, claims: Sequence[Claim]) -> None:
        self.claims += claims

    def forgets(self, pairs: Iterable[tuple[bytes, int]]) -> None:
        raise AssertionError([*pairs])

    def completed(self, pairs: Collection[tuple[bytes, int]]) -> None:
        self.done += pairs


@pytest.fixture(autouse=True)
async def at_first(connection: Sql, store: Store) -> Any:
    await clean(connection)
    yield
    store.trust(None)
    await clean(connection)


async def taken(store: Store, known: Witnessed = UNWITNESSED) -> list[Claim]:
    store.trust(Known(known))
    return await store.claim([TOPIC], [WORKER], [0] * 9, LEASE_S, now=NOW)


def _wrong(known: Witnessed) -> list[Witnessed]:
    assert known.counter is not None and known.started_at is not None and known.relation is not None  # noqa: PT018
    return [
        CLOSED,
        known._replace(instance=OTHER),
        known._replace(counter=known.counter + 1),
        known._replace(epoch=2),
        known._replace(started_at=known.started_at + timedelta(seconds=1)),
        known._replace(relation=known.relation + 1),
    ]


async def test_claims_need_what_their_host_has_seen(connection: Sql, store: Store) -> None:
    """With any difference nothing is claimed, by either way; else it is."""
    await forge(connection)
    _, known = await come(store)
    for wrong in _wrong(known):
        assert await taken(store, wrong) == []
        store.trust(Known(wrong))
        assert await store.claim([], [WORKER], [0], LEASE_S, levels=[(TOPIC, 0, 0.0)], now=NOW) == []
    assert len(await taken(store, known)) == 1


async def test_a_newer_epoch_stops_claims(connection: Sql, store: Store) -> None:
    await forge(connection)
    _, known = await come(store)
    assert await raised(store, 2, OTHER) == (2, FLOOR)
    assert await taken(store, known) == []
    store.trust(Known(known))
    assert (await store.submit_and_claim([job()], [TOPIC], [WORKER], [0], LEASE_S))[0] == []


async def test_a_submit_hands_out_nothing_either(store: Store) -> None:
    _, known = await come(store)
    for wrong in _wrong(known):
        store.trust(Known(wrong))
        claims, woken = await store.submit_and_claim([job()], [TOPIC], [WORKER], [0], LEASE_S)
        assert (claims, len(woken)) == ([], 1)
    store.trust(Known(known))
    claims, _ = await store.submit_and_claim([job()], [TOPIC], [WORKER], [0], LEASE_S)
    assert [claim.attempt for claim in claims] == [1]


async def test_old_jobs_go_on_above_the_floor(connection: Sql, store: Store) -> None:
    """Jobs that may be older than the epoch; charged tries stay, and attempts above it go on as ever."""
    old = await forge(connection, "RETRYING", attempts=3, uncharged=1)
    own = await forge(connection, id=_own())
    far = await forge(connection, id=b"\x04" + uuid7().bytes[1:])
    high = await forge(connection, "RETRYING", attempts=1005, uncharged=1000)
    await raised(store, 2)
    began_s = (await connection.fetchval("SELECT began_at FROM pulse.epochs WHERE epoch = 2")).timestamp()
    margin = await forge(connection, id=_timed(began_s + 3590))
    new = await forge(connection, id=_timed(began_s + 3610))
    claims = {claim.id: (claim.attempt, claim.attempt - claim.uncharged) for claim in await taken(store)}
    assert claims == {old: (1001, 3), own: (1001, 1), far: (1001, 1), high: (1006, 6), margin: (1001, 1), new: (1, 1)}
    row = await read(connection, old)
    assert (row["attempts"], row["uncharged"]) == (1001, 998)


async def test_an_id_that_is_submitted_again_begins_above_it(connection: Sql, store: Store) -> None:
    """Its first submit was in the lost time: its first attempt may run yet."""
    await raised(store, 2)
    began_s = (await connection.fetchval("SELECT began_at FROM pulse.epochs WHERE epoch = 2")).timestamp()
    jobs = [job(id=_timed(began_s + 3610)), job(), job(id=_own()), job(id=b"\x04" + uuid7().bytes[1:])]
    claims, _ = await store.submit_and_claim(jobs, [TOPIC], [*"wvut"], [0, 1, 2, 3], LEASE_S)
    found = {claim.id: (claim.attempt, claim.uncharged) for claim in claims}
    assert found == {one.id: (1, 0) if one is jobs[0] else (1001, 1000) for one in jobs}
    for claim in claims:
        row = await read(connection, claim.id)
        assert (row["attempts"], row["uncharged"]) == (claim.attempt, claim.uncharged)


async def test_one_that_waits_has_no_tries(connection: Sql, store: Store) -> None:
    """The floor counts from its first claim on."""
    await raised(store, 2)
    await store.gate.pause(TOPIC, None)
    old = job(id=_own())
    assert (await store.submit_and_claim([old], [TOPIC], [WORKER], [0], LEASE_S))[0] == []
    row = await read(connection, old.id or b"")
    assert (row["attempts"], row["uncharged"]) == (0, 0)


async def test_what_is_told_of_claims_and_completions(connection: Sql, store: Store) -> None:
    """Claims before they are handed out, also those of a submit; completions when they are written."""
    await forge(connection)
    known = Known(UNWITNESSED)
    store.trust(known)
    [one] = await store.claim([TOPIC], [WORKER], [0], LEASE_S, now=NOW)
    claims, _ = await store.submit_and_claim([job()], [TOPIC], [WORKER], [0], LEASE_S)
    assert known.claims == [one, *claims]
    await store.complete([Completion(one.id, one.attempt, WORKER, None)])
    await store.complete([Completion(claims[0].id, 1, "another", None)])
    assert known.done == [(one.id, one.attempt)]


async def test_each_epoch_has_a_higher_floor(connection: Sql, store: Store) -> None:
    """A multiple of 1000, above the floor before it and all attempts of any host."""
    assert await raised(store, 2) == (2, 1000)
    await connection.execute("DELETE FROM pulse.witnesses")
    assert await raised(store, 3) == (3, 2000)
    assert await raised(store, 7, highest=4500) == (7, 5000)
    await connection.execute("UPDATE pulse.witnesses SET highest = 8000")
    assert await raised(store, 8) == (8, 8000)
    assert await connection.fetchval("SELECT highest FROM pulse.witnesses") == 9000


@pytest.mark.parametrize("epoch", [1, 2, 3])
async def test_no_epoch_is_raised_twice(store: Store, epoch: int) -> None:
    await raised(store, 3, OTHER)
    assert await raised(store, epoch) is None
    assert (await store.epochs.look(ME, None, LEASE_S)).counter is None


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("numbers", [(2, 2), (2, 3), (3, 2)])
async def test_two_hosts_raise_at_once(
    connection: Sql, store: Store, numbers: tuple[int, int], commit: bool, other: Sql
) -> None:
    """The second one waits for the first where it is the same number; at the end claims need the highest."""
    first, second = numbers
    seen = await store.epochs.look(ME, None, LEASE_S)
    transaction = other.transaction()
    await transaction.start()
    arguments = (FLOOR, "there", None, None, 10.0, seen.system_id, seen.timeline, 3600.0)
    assert await other.fetchrow(STATEMENTS["raise_epoch"].sql, first, *arguments) is not None
    task = asyncio.create_task(raised(store, second))
    waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"

    async def is_met() -> bool:
        return task.done() or bool(await connection.fetchval(waits))

    await until_async(is_met, "the second to finish or to wait")
    await (transaction.commit() if commit else transaction.rollback())
    made = await task
    assert (made is None) == (commit and first == second)
    epochs = {row["epoch"] for row in await connection.fetch("SELECT epoch FROM pulse.epochs WHERE epoch > 1")}
    assert epochs == {*([first] if commit else []), second}
    if commit and made is not None and second < first:  # accepted an epoch that is not the newest any more
        await forge(connection)
        assert await taken(store, Witnessed(ME, 1, second, seen.started_at, seen.relation)) == []


async def test_hosts_that_were_seen_lately_are_waited_for(connection: Sql, store: Store) -> None:
    """For a lease after an epoch began, until they have accepted it; others are not."""
    await come(store)
    late, gone = UUID(int=9), UUID(int=10)
    for one in (OTHER, late, gone):
        await come(store, one)
    await connection.execute("UPDATE pulse.witnesses SET seen_at = now() - interval '9 s' WHERE instance = $1", late)
    await connection.execute("UPDATE pulse.witnesses SET seen_at = now() - interval '12 s' WHERE instance = $1", gone)
    assert await raised(store, 2) is not None
    assert (await store.epochs.look(ME, None, LEASE_S)).behind == 2
    await come(store, OTHER)
    assert (await store.epochs.look(ME, None, LEASE_S)).behind == 1
    assert (await store.epochs.look(late, None, LEASE_S)).behind == 0
    assert (await store.epochs.look(ME, None, 0.0)).behind == 0


async def test_hosts_that_have_not_come_to_this_place(connection: Sql, store: Store) -> None:
    """Hosts that were seen when this one was seen last, and have not been here."""
    await come(store)
    for number in (8, 9, 10):
        await come(store, UUID(int=number))
    await connection.execute("UPDATE pulse.witnesses SET place = 'elsewhere' WHERE instance <> $1", UUID(int=8))
    await connection.execute("UPDATE pulse.witnesses SET seen_at = now() - interval '1 hour'")
    await connection.execute(
        "UPDATE pulse.witnesses SET seen_at = now() - interval '2 hours' WHERE instance = $1", UUID(int=10)
    )
    seen = await store.epochs.look(ME, None, LEASE_S)
    assert (seen.elsewhere, seen.counter) == (1, 1)
    newcomer = await store.epochs.look(UUID(int=11), None, LEASE_S)
    assert (newcomer.elsewhere, newcomer.counter, newcomer.back_to) == (2, None, seen.back_to)
    await come(store)
    assert (await store.epochs.look(ME, seen.back_to, LEASE_S)).elsewhere == 1
    assert (await store.epochs.look(ME, None, LEASE_S)).elsewhere == 0


async def test_a_tick_needs_all_that_a_claim_needs(connection: Sql, store: Store) -> None:
    """Else nothing is counted; and only one's own row is."""
    seen, known = await come(store)
    await come(store, OTHER)
    for wrong in (*_wrong(known)[:1], *_wrong(known)[2:]):
        assert await store.epochs.tick(wrong, FLOOR, seen.place) is None
    mark = found_of(await store.epochs.tick(known, 5000, "there"))
    rows = {
        row["instance"]: tuple(row)[1:]
        for row in await connection.fetch("SELECT instance, counter, highest, place FROM pulse.witnesses")
    }
    assert rows == {ME: (2, 5000, "there"), OTHER: (1, 1000, seen.place)}
    assert mark.counter == 2
    assert await store.epochs.tick(known, 0, "there") is not None  # an answer that was lost: it knows one less
    assert await connection.fetchval("SELECT highest FROM pulse.witnesses WHERE instance = $1", ME) == 5000
    await raised(store, 2, OTHER)
    assert await store.epochs.tick(known, FLOOR, seen.place) is None


async def test_an_epoch_that_is_not_the_newest_is_not_accepted(store: Store) -> None:
    seen = await store.epochs.look(ME, None, LEASE_S)
    await raised(store, 2, OTHER)
    assert await store.epochs.begin(seen, HostContact(ME, HOST, 0, FLOOR)) == (None, None)


async def test_a_place_that_was_not_looked_at_is_not_come_to(connection: Sql, store: Store) -> None:
    """The database may have gone back since the look: counting on there would hide it."""
    seen = await store.epochs.look(ME, None, LEASE_S)
    earlier = dataclasses.replace(seen, started_at=seen.started_at - timedelta(seconds=1))
    for other in (earlier, dataclasses.replace(seen, relation=seen.relation + 1)):
        assert await store.epochs.begin(other, HostContact(ME, HOST, 7, FLOOR)) == (None, None)
    assert await connection.fetchval("SELECT count(*) FROM pulse.witnesses") == 0


async def test_what_ran_before_is_over(connection: Sql, store: Store) -> None:
    """Jobs of this host's workers go back uncharged, due a little later: they may run yet, here or elsewhere."""
    mine, tcp, theirs = f"{HOST}/boot/1/2.3/w", "tcp:me/mark/w", "there/boot/1/2.3/w"
    unheld = await forge(connection, "RUNNING", locked_by=mine)
    tried = await forge(connection, "RUNNING", locked_by=mine, attempts=3, uncharged=0)
    runs_yet = await forge(connection, "RUNNING", locked_by=tcp)
    others = await forge(connection, "RUNNING", locked_by=theirs)
    newer = await forge(connection, "RUNNING", locked_by=mine, attempts=1001, uncharged=1000)
    waiting = await forge(connection, next_run_at=await _in(connection, 0))
    later = await forge(connection, next_run_at=await _in(connection, 3600))
    new = await forge(connection, "RUNNING", locked_by=mine, id=_timed((await _in(connection, 7200)).timestamp()))
    own = await forge(connection, "RUNNING", locked_by=mine, id=_own())
    await raised(store, 2, held=Held([tcp], [Fence(one, 1, tcp) for one in (runs_yet, waiting, later)], 60.0))
    rows = {
        one: await read(connection, one) for one in (unheld, tried, runs_yet, others, newer, waiting, later, new, own)
    }
    ended = {one for one, row in rows.items() if "the database went back" in (row["last_error"] or "")}
    assert ended == {unheld, tried, runs_yet, own}
    assert {one: rows[one]["status"] for one in ended} == {
        unheld: "PENDING", tried: "RETRYING", runs_yet: "PENDING", own: "PENDING"
    }  # fmt: skip
    assert {rows[one]["uncharged"] for one in ended} == {1}
    now = await _in(connection, 0)
    for one in (unheld, tried, runs_yet, own, waiting):
        assert now < rows[one]["next_run_at"] < await _in(connection, 61)
    assert rows[later]["next_run_at"] > await _in(connection, 3000)
    assert [(x["attempt"], x["outcome"], x["worker"]) for x in await history(connection, tried)] == [
        (3, "released", mine)
    ]


async def test_what_is_held_and_not_known_is_in_the_history(connection: Sql, store: Store) -> None:
    """The next claim of the job gets the worker of the lost attempt; known attempts are not touched."""
    mine = f"{HOST}/boot/1/2.3/w"
    lost = await forge(connection, next_run_at=await _in(connection, -9))
    known = await forge(connection, "COMPLETED", attempts=2)
    again = await forge(connection, "RETRYING", attempts=3, next_run_at=await _in(connection, 3600))
    held = Held([mine], [Fence(lost, 2, mine), Fence(known, 2, mine), Fence(again, 4, mine)], 0.0)
    assert await raised(store, 2, held=held) == (2, FLOOR)
    assert [row["attempt"] for row in await history(connection, known)] == []
    rows = [*await history(connection, lost), *await history(connection, again)]
    assert [(row["attempt"], row["outcome"], row["worker"], row["error"]) for row in rows] == [
        (2, "released", mine, WENT_BACK),
        (4, "released", mine, WENT_BACK),
    ]
    assert await raised(store, 3, held=held) == (3, 2 * FLOOR)
    claims = await store.claim([TOPIC], [mine], [0], LEASE_S)
    assert [(one.id, one.attempt, json.loads(one.previous or "")[:3]) for one in claims] == [
        (lost, 2 * FLOOR + 1, ["released", WENT_BACK, mine])
    ]


async def test_a_row_that_is_locked_is_left_to_who_holds_it(
    dsn: str, connection: Sql, store: Store, monkeypatch: Patch
) -> None:
    """An epoch begins beside any lock, without waiting for it or searching by halves."""
    monkeypatch.delattr(EpochStore, "_lose_what_can_be")
    mine = f"{HOST}/boot/1/2.3/w"
    locked = await forge(connection, "RUNNING", locked_by=mine)
    waiting = await forge(connection)
    async with holding(dsn, "SELECT FROM pulse.jobs FOR UPDATE"):
        assert await raised(store, 2, held=Held([mine], [Fence(one, 1, mine) for one in (locked, waiting)], 60.0)) == (
            2,
            FLOOR,
        )
    assert (await read(connection, locked))["status"] == "RUNNING"


async def test_what_may_run_yet_is_put_off_again(connection: Sql, store: Store) -> None:
    """Each time from now on, but never nearer; ended and running jobs are left alone."""
    waiting, done = (
        await forge(connection, next_run_at=await _in(connection, 0)),
        await forge(connection, "COMPLETED", next_run_at=await _in(connection, 0)),
    )
    before = await read(connection, done)
    await store.epochs.put_off([waiting, done], 60.0)
    first = (await read(connection, waiting))["next_run_at"]
    await store.epochs.put_off([waiting], 30.0)
    assert (await read(connection, waiting))["next_run_at"] == first > await _in(connection, 50)
    assert await connection.fetchval("SELECT count(run_after) FROM pulse.jobs") == 0  # of groups and of children alone
    assert await read(connection, done) == before


async def test_attempts_that_are_not_known(connection: Sql, store: Store) -> None:
    """Fewer attempts of a job than were handed out prove that it went back; so does a missing job."""
    one, gone = await forge(connection, "RETRYING", attempts=2), uuid7().bytes
    for handed_out, forgotten, expected in (
        ({one: 2}, set(), False),
        ({one: 3}, set(), True),
        ({one: 3}, {one}, True),
        ({gone: 1}, set(), True),
        ({gone: 1}, {gone}, False),
        ({one: 1, gone: 1}, {gone}, False),
    ):
        assert await store.epochs.gone_back(handed_out, forgotten) is expected


async def test_what_was_finished_and_is_open_again(connection: Sql, store: Store) -> None:
    """All unfinished ones count, with the epoch: how many, and the first of them."""
    everything = {s: await forge(connection, s) for s in ("PENDING", "RETRYING", "RUNNING", "COMPLETED", "CANCELED")}
    found = await store.epochs.open_again([*everything.values(), uuid7().bytes])
    assert set(found) == {everything[status] for status in ("PENDING", "RETRYING", "RUNNING")}
    await raised(store, 2)
    many = [uuid7().bytes for _ in range(30)]
    await store.epochs.note_reopened(2, many)
    await store.epochs.note_reopened(2, found)
    row = await connection.fetchrow(
        "SELECT reopened, jsonb_array_length(detail->'reopened') AS told FROM pulse.epochs WHERE epoch = 2"
    )
    assert row is not None
    assert tuple(row) == (33, 23)
    assert await connection.fetchval("SELECT reopened FROM pulse.epochs WHERE epoch = 1") is None


async def test_what_the_database_does_not_know(connection: Sql, store: Store) -> None:
    """Each host adds its own to the epoch, and no more than somebody can look at."""
    known, gone = await forge(connection), [uuid7().bytes for _ in range(LISTED + 1)]
    assert sorted(await store.epochs.unknown([gone[0], known, gone[1]])) == sorted(gone[:2])
    for number in (2, 3):
        await raised(store, number)
    await store.epochs.note_unknown(2, running=gone, finished=[])
    await store.epochs.note_unknown(2, running=gone[:1], finished=gone[:2])
    rows = await connection.fetch("SELECT detail - 'hosts' AS told FROM pulse.epochs ORDER BY epoch")
    first, told, last = (json.loads(row["told"]) for row in rows)
    assert (first, last) == ({}, {})
    assert {name: len(ids) for name, ids in told.items()} == {"unknown_running": LISTED + 1, "unknown_finished": 2}


async def test_a_look_tells_another_place(store: Store) -> None:
    """The same server and table are one place, in each look."""
    one, two = [await store.epochs.look(ME, None, LEASE_S) for _ in range(2)]
    assert dataclasses.replace(one, back_to=None) == dataclasses.replace(two, back_to=None)
    assert one.timeline == 1
    assert one.place.startswith(f"{one.system_id}/1/")


def _own() -> bytes:
    return b"\x03" + uuid4().bytes[1:]


def _timed(time_s: float) -> bytes:
    return first_at(time_s)[:6] + b"\x70" + bytes(9)


async def _in(connection: Sql, seconds: float) -> Any:
    return await connection.fetchval("SELECT clock_timestamp() + $1 * interval '1 second'", seconds)


@pytest.mark.usefixtures("own_database")
async def test_epochs_that_somebody_has_deleted(store: Store, connection: Sql) -> None:
    await connection.execute("DELETE FROM pulse.epochs")
    with pytest.raises(UnavailableError, match=r"pulse\.epochs is empty"):
        await store.epochs.look(ME, None, LEASE_S)


@pytest.mark.parametrize(("sqlstate", "epoch"), [("P0001", 2), ("XX001", 1)])
async def test_an_epoch_begins_where_the_session_is_sound(
    connection: Sql, store: Store, sqlstate: str, epoch: int
) -> None:
    """A job that a trigger refuses does not prevent it; after an error of the server itself nothing is certain."""
    mine = f"{HOST}/boot/1/2.3/w"
    bad = await forge(connection, "RUNNING", locked_by=mine)
    async with refusing(connection, {bad: sqlstate}, "PENDING"):
        with pytest.raises(StatementError) if epoch == 1 else contextlib.nullcontext():
            await raised(store, 2, held=Held([mine], [Fence(bad, 1, mine)], 60.0))
    assert await connection.fetchval("SELECT max(epoch) FROM pulse.epochs") == epoch
    assert (await read(connection, bad))["status"] == "RUNNING"
