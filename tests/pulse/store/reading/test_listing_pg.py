"""Lists of jobs: every page in its place, for any filter, and none of it slow."""

from __future__ import annotations

import dataclasses
import itertools
import random
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import pytest
from asyncpg.pgproto.pgproto import UUID

from pulse.store.reading import listing
from pulse.store.reading.list_position import is_timed, place_of
from pulse.store.reading.listing import JobFilter
from pulse.store.rows import from_us, to_us
from pulse.store.statements import STATEMENTS
from pulse.store.store import Store
from tests.support.store.helpers import NOW, STATUSES, Patch, Sql, at, forge, found_of, new_id
from tests.support.waiting import DEADLINE_S

JOBS: Final = 150
MADE_MS: Final = to_us(NOW) // 1000
TOPICS: Final = ("t", "u", "100%_")
NAMES: Final = ("n", "m")
ERRORS: Final = (None, "Boom: 100%", "boom \\ 1_0", "1x0", 'no handler named "x"')
PAST, FUTURE = (datetime(year, 1, 1, tzinfo=UTC) for year in (2020, 2999))
SCHEDULE: Final = new_id()
Row = dict[str, Any]


def made_id(dice: random.Random) -> bytes:
    """An id of any kind: some share their millisecond, with each other and with others' submitted_at."""
    if dice.random() < 0.6:
        tail = dice.getrandbits(80).to_bytes(10)
        return (MADE_MS + dice.randrange(4)).to_bytes(6) + bytes([0x70 | tail[0] & 15]) + tail[1:]
    if dice.random() < 0.2:  # of version 7, but made in a year that has not come
        return b"\xf0" + bytes(5) + b"\x70" + dice.randbytes(9)
    return uuid.UUID(bytes=dice.randbytes(16), version=dice.choice((1, 4, 5))).bytes


def drawn(dice: random.Random) -> Row:
    status = dice.choice(STATUSES)
    error = dice.choice(ERRORS) or ("dead" if status == "DEAD_LETTERED" else None)
    worker = dice.choice(("host/1/w_1", "host/2/W%2"))
    return {
        "id": made_id(dice), "status": status,
        "submitted_at": at(dice.randrange(5) / 1000 + dice.choice((0, 0.000001))), "topic": dice.choice(TOPICS),
        "name": dice.choice(NAMES), "last_error": error, "schedule_id": SCHEDULE if dice.random() < 0.3 else None,
        "next_run_at": dice.choice((PAST, FUTURE)), "attempts": 3, "uncharged": dice.randrange(4),
        **({"locked_by": worker} if status == "RUNNING" else {}),
    }  # fmt: skip


def maybe(dice: random.Random, draw: Callable[[], Any]) -> Any:
    return draw() if dice.random() < 0.25 else None


def wanted_of(dice: random.Random, jobs: list[Row]) -> JobFilter:
    digits = dice.choice(jobs)["id"].hex()
    return JobFilter(
        statuses=maybe(dice, lambda: dice.sample(STATUSES, dice.randrange(1, 4))),
        topic=maybe(dice, lambda: dice.choice((*TOPICS, "nowhere"))),
        name=maybe(dice, lambda: dice.choice(NAMES)),
        schedule=maybe(dice, lambda: dice.choice((SCHEDULE, new_id()))),
        error=maybe(dice, lambda: dice.choice(("boom", "BOOM", "%", "_", "\\", "1_0", "x"))),
        worker=maybe(dice, lambda: dice.choice(("w_1", "w%", "HOST", "_"))) if dice.random() < 0.4 else None,
        prefix=maybe(dice, lambda: digits[: dice.randrange(1, 33)]),
        due=maybe(dice, lambda: dice.random() < 0.5),
    )


def fits(job: Row, wanted: JobFilter) -> bool:
    return (
        (not wanted.statuses or job["status"] in wanted.statuses)
        and wanted.topic in {None, job["topic"]}
        and wanted.name in {None, job["name"]}
        and wanted.schedule in {None, job["schedule_id"]}
        and (wanted.error is None or wanted.error.lower() in (job["last_error"] or "").lower())
        and (wanted.worker is None or wanted.worker.lower() in job.get("locked_by", "").lower())
        and (wanted.prefix is None or job["id"].hex().startswith(wanted.prefix))
        and (wanted.due is None or (wanted.due is (job["next_run_at"] == PAST) and not is_unhandled(job)))
    )


def is_unhandled(job: Row) -> bool:
    waits = job["status"] in {"PENDING", "RETRYING"}
    return waits and job["uncharged"] > 1 and (job["last_error"] or "").startswith("no handler named ")


async def pages(store: Store, wanted: JobFilter, limit: int, **how: Any) -> list[list[object]]:
    found: list[list[object]] = []
    after: str | None = None
    for _ in range(3 * JOBS):
        page = await store.listing.page(wanted, limit, after, **{"budget_s": DEADLINE_S, **how})
        found.append([row["id"] for row in page.jobs])
        after = page.next
        if after is None:
            return found
    pytest.fail("the list has no end")


@pytest.fixture
async def jobs(connection: Sql) -> list[Row]:
    dice = random.Random(7)
    made = [drawn(dice) for _ in range(JOBS)]
    for row in made:
        ids = {name: None if row[name] is None else row[name].hex() for name in ("schedule_id",)}
        await forge(connection, **{**row, **ids})
    return made


@pytest.mark.rest
@pytest.mark.parametrize("small", [3, 10_000], ids=["walked", "collected"])
async def test_pages_are_the_list(store: Store, jobs: list[Row], small: int, monkeypatch: Patch) -> None:
    """All pages together are all jobs of the filter, in order, each once: also pages that end before they are full."""
    monkeypatch.setattr(listing, "SMALL", small)
    dice = random.Random(8)
    for _ in range(60):
        monkeypatch.setattr(listing, "FIRST_WINDOW", dice.choice((1, 2, 7, 500)))
        wanted, limit, oldest = wanted_of(dice, jobs), dice.choice((1, 3, 20, 1000)), dice.random() < 0.5
        expected = sorted(
            (place_of(job["id"], to_us(job["submitted_at"])) for job in jobs if fits(job, wanted)), reverse=not oldest
        )
        found = await pages(store, wanted, limit, oldest=oldest, budget_s=dice.choice((0.0, 5.0)), brief=True)
        assert [*itertools.chain(*found)] == [place.id for place in expected], (wanted, limit, oldest)
        assert max(map(len, found)) <= limit


MEMBERS: Final[Mapping[str, Callable[[Row], bool]]] = {
    "ids": lambda job: is_timed(job["id"]),
    "dead": lambda job: is_timed(job["id"]) and job["status"] == "DEAD_LETTERED",
    "canceled": lambda job: is_timed(job["id"]) and job["status"] == "CANCELED",
    "others": lambda job: not is_timed(job["id"]),
}


@pytest.mark.parametrize("oldest", [False, True], ids=["newest", "oldest"])
@pytest.mark.parametrize("kind", MEMBERS)
async def test_each_way_through_the_table(connection: Sql, jobs: list[Row], kind: str, oldest: bool) -> None:
    """From its first place on, to before its last one, in order; jobs of another way are not found."""
    dice = random.Random(9)
    places = sorted(place_of(job["id"], to_us(job["submitted_at"])) for job in jobs if MEMBERS[kind](job))
    for _ in range(20):
        low, high = sorted(dice.sample(places, 2))
        bounds = (UUID(low.id), UUID(high.id), from_us(low.at_us), UUID(low.id), from_us(high.at_us), UUID(high.id))
        rows = await connection.fetch(STATEMENTS["walk_jobs"].sql, kind, oldest, *bounds, JOBS, JOBS, *[None] * 9)
        wanted = [place.id for place in places if low <= place < high]
        assert [row["id"] for row in rows] == (wanted if oldest else wanted[::-1])


PARTS: Final[Mapping[str, Callable[[Row, JobFilter], bool]]] = {
    "running": lambda job, _: job["status"] == "RUNNING",
    "waiting": lambda job, _: job["status"] in {"PENDING", "RETRYING"},
    "dead": lambda job, _: job["status"] == "DEAD_LETTERED",
    "canceled": lambda job, _: job["status"] == "CANCELED",
    "schedule": lambda job, wanted: job["schedule_id"] == wanted.schedule,
    "prefix": lambda job, wanted: wanted.prefix is None or job["id"].hex().startswith(wanted.prefix),
}


@pytest.mark.parametrize("part", PARTS)
async def test_each_part_that_is_small(connection: Sql, jobs: list[Row], part: str) -> None:
    """All of its jobs that match, each once, the others with their time."""
    dice = random.Random(10)
    for _ in range(60):
        drawn_one = wanted_of(dice, jobs)
        wanted = dataclasses.replace(
            drawn_one,
            schedule=SCHEDULE if part == "schedule" else drawn_one.schedule,
            prefix=drawn_one.prefix or "0" if part == "prefix" else drawn_one.prefix,
        )
        row = found_of(await connection.fetchrow(STATEMENTS["collect_jobs"].sql, part, 10 * JOBS, *wanted.columns()))
        found = [job for job in jobs if PARTS[part](job, wanted) and fits(job, wanted)]
        timed = [job["id"] for job in found if is_timed(job["id"])]
        others = [x["id"] + to_us(x["submitted_at"]).to_bytes(8, signed=True) for x in found if not is_timed(x["id"])]
        assert sorted(listing._pieces(row["timed"], 16)) == sorted(timed)
        assert sorted(listing._pieces(row["others"], 24)) == sorted(others)


async def test_what_comes_and_goes_meanwhile(store: Store, connection: Sql, jobs: list[Row]) -> None:
    """Jobs that change or come between pages do not move the others."""
    await connection.execute("DELETE FROM pulse.jobs WHERE status = 'RUNNING'")
    left = {job["id"] for job in jobs if job["status"] != "RUNNING"}
    seen: list[object] = []
    after: str | None = None
    while True:
        page = await store.listing.page(JobFilter(), 10, after, budget_s=DEADLINE_S)
        seen += [row["id"] for row in page.jobs]
        after = page.next
        if after is None:
            break
        await forge(connection, submitted_at=at(60), id=made_id(random.Random(len(seen))))
        await connection.execute("UPDATE pulse.jobs SET priority = priority + 1 WHERE status <> 'RUNNING'")
    assert len(seen) == len({*seen})
    assert left <= {*seen}


async def test_age(store: Store, connection: Sql) -> None:
    """Age is by the time in the id where there is one, else by when the job was submitted; bounds cut exactly."""
    now_us = await store.reads.now_us()

    def moment(ago_s: float) -> Mapping[str, Any]:
        return {"submitted_at": from_us(now_us - round(ago_s * 1e6))}

    timed = (now_us // 1000 - 60_000).to_bytes(6) + new_id()[6:]
    assert is_timed(timed)
    await forge(connection, id=timed, **moment(0))
    other = await forge(connection, id=uuid.uuid4().bytes, **moment(600))
    assert await pages(store, JobFilter(older_s=300), 5) == [[other]]
    assert await pages(store, JobFilter(newer_s=300), 5) == [[timed]]
    assert await pages(store, JobFilter(older_s=30, newer_s=7000), 5) == [[timed, other]]
    assert await pages(store, JobFilter(older_s=30, newer_s=7000), 5, oldest=True) == [[other, timed]]
    assert await pages(store, JobFilter(older_s=7000), 5) == [[]]


@pytest.mark.parametrize("oldest", [False, True])
async def test_a_prefix_of_many_jobs(store: Store, connection: Sql, monkeypatch: Patch, oldest: bool) -> None:
    """Only ids that begin so are walked through: what lies before and behind them does not use up the time."""
    monkeypatch.setattr(listing, "FIRST_WINDOW", 1)
    monkeypatch.setattr(listing, "SMALL", 1)
    first = MADE_MS.to_bytes(6) + b"\x70"
    wanted = [await forge(connection, id=first + bytes([number]) * 9) for number in range(2)]
    for moment in (MADE_MS - 1, MADE_MS + 1):
        await forge(connection, id=moment.to_bytes(6) + b"\x70" + bytes(9))
    page = await store.listing.page(JobFilter(prefix=first.hex()), 1, oldest=oldest, budget_s=0)
    assert [row["id"] for row in page.jobs] == [wanted[0 if oldest else 1]]


async def test_how_far_it_came(store: Store, connection: Sql, monkeypatch: Patch) -> None:
    monkeypatch.setattr(listing, "FIRST_WINDOW", 1)
    made = [await forge(connection) for _ in range(3)]
    page = await store.listing.page(JobFilter(name="nobody"), 1, budget_s=0)
    assert page.jobs == []
    assert page.reached_s == pytest.approx(int.from_bytes(max(made)[:6]) / 1000)
    last = await store.listing.page(JobFilter(), 5, budget_s=DEADLINE_S)
    assert (len(last.jobs), last.next, last.reached_s) == (3, None, None)


@pytest.mark.parametrize("piece", [1, 3, 4, 100])
async def test_pages_of_large_jobs(store: Store, connection: Sql, monkeypatch: Patch, piece: int) -> None:
    monkeypatch.setattr(listing, "PIECE", piece)
    large = f'{{"a": "{"x" * 1_000_000}"}}'
    made = [await forge(connection, args=large, submitted_at=at(second)) for second in range(9)]
    made.sort(reverse=True)
    assert await pages(store, JobFilter(), 9) == [made[:4], made[4:8], made[8:]]


async def test_a_page_is_of_one_moment(store: Store, connection: Sql, monkeypatch: Patch) -> None:
    monkeypatch.setattr(listing, "PIECE", 1)
    made = sorted([await forge(connection) for _ in range(3)], reverse=True)
    read = listing._rows

    async def deleting(*arguments: Any) -> list[Mapping[str, object]]:
        rows = await read(*arguments)
        await connection.execute("DELETE FROM pulse.jobs")
        return rows

    monkeypatch.setattr(listing, "_rows", deleting)
    assert await pages(store, JobFilter(), 3) == [made]
