"""Jobs that are set aside have their turns, one at a time, and what an operator set aside stays so."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest

from pulse.errors import StatementError
from pulse.store.recovery.set_aside import SetAside, Suspect
from pulse.store.rows import Level
from pulse.store.store import Store
from tests.store.helpers import NOW, TOPIC, Sql, forge, found_of, new_id

pytestmark = pytest.mark.heavy

REFUSED = StatementError("not with me", sqlstate="XX001", statement="claim_jobs")
AGAIN = StatementError("nor now", sqlstate="P0001", statement="complete_jobs")


async def rows(connection: Sql) -> dict[bytes, Any]:
    """What is set aside."""
    found = await connection.fetch(
        "SELECT *, uuid_send(job_id) AS id, next_try_at = 'infinity' AS for_good FROM pulse.set_aside"
    )
    return {row["id"]: row for row in found}


async def test_what_is_refused_again(store: Store, connection: Sql) -> None:
    """The newest refusal is told, how many there were, and since when; its turn is never brought forward."""
    job = new_id()
    assert await store.aside.add([(job, REFUSED)], 60.0) == {job}
    first = (await rows(connection))[job]
    other = new_id()
    assert await store.aside.add([(job, AGAIN), (other, AGAIN)], 1.0) == {other}
    again = (await rows(connection))[job]
    assert (again["tries"], again["sqlstate"], again["statement"]) == (2, "P0001", "complete_jobs")
    assert (again["error"], again["since"]) == ("nor now", first["since"])
    assert again["next_try_at"] == first["next_try_at"]


async def test_what_an_operator_set_aside_stays_so(store: Store, connection: Sql) -> None:
    """Whoever tries others, or writes what is refused no more."""
    job, other, third = new_id(), new_id(), new_id()
    await store.aside.add([(job, REFUSED), (other, REFUSED)], 0.0)
    await connection.execute("UPDATE pulse.set_aside SET next_try_at = 'infinity' WHERE job_id = $1", job.hex())
    await store.aside.add([(job, AGAIN)], 0.0)
    assert (await rows(connection))[job]["for_good"]
    found = found_of(await store.aside.next(60.0))
    assert found.id == other
    await store.aside.add([(third, REFUSED)], 0.0)
    await store.aside.readmit([job, other])
    assert {*await rows(connection)} == {job, third}


async def test_each_has_its_turn(store: Store, connection: Sql) -> None:
    """The one that has waited longest, by itself; a server that tries it keeps no other from trying the next."""
    jobs = [await forge(connection) for _ in range(3)]
    for job in jobs:
        await store.aside.add([(job, REFUSED)], 0.0)
    turns = [await store.aside.next(60.0) for _ in range(4)]
    assert turns == [
        *(
            SetAside(job, Suspect(job, Level(TOPIC, 0), NOW.timestamp()), "claim_jobs", "XX001", "PENDING")
            for job in jobs
        ),
        None,
    ]
    assert [row["tries"] for row in (await rows(connection)).values()] == [2, 2, 2]


async def test_what_has_expired(store: Store, connection: Sql) -> None:
    """No claim waits for it, and it is told from what may still be claimed."""
    late, other = await forge(connection), await forge(connection, expires_at=datetime(2999, 1, 1, tzinfo=UTC))
    await connection.execute("UPDATE pulse.jobs SET expires_at = now() WHERE id = $1", late.hex())
    for job in (late, other):
        await store.aside.add([(job, REFUSED)], 0.0)
    assert await store.aside.next(60.0) == SetAside(late, None, "claim_jobs", "XX001", "PENDING")
    found = found_of(await store.aside.next(60.0))
    assert found.suspect is not None


async def test_one_that_another_server_tries(store: Store, connection: Sql, dsn: str) -> None:
    """It is passed over at once."""
    first, second = await forge(connection, "RUNNING"), new_id()
    for job in (first, second):
        await store.aside.add([(job, REFUSED)], 0.0)
    stranger = await asyncpg.connect(dsn)
    try:
        async with stranger.transaction():
            await stranger.execute("SELECT FROM pulse.set_aside WHERE job_id = $1 FOR UPDATE", first.hex())
            assert await store.aside.next(60.0) == SetAside(second, None, "claim_jobs", "XX001", None)
    finally:
        await stranger.close()
    assert await store.aside.next(60.0) == SetAside(first, None, "claim_jobs", "XX001", "RUNNING")


async def test_what_has_the_same_cause(store: Store, connection: Sql) -> None:
    """It is let go with the one that can be handed out; not what an operator set aside, nor whose report is refused."""
    like, mine, other, report = (new_id() for _ in range(4))
    reported = StatementError("no", sqlstate="XX001", statement="complete_jobs")
    await store.aside.add([(like, REFUSED), (mine, REFUSED), (other, AGAIN), (report, reported)], 0.0)
    await connection.execute("UPDATE pulse.set_aside SET next_try_at = 'infinity' WHERE job_id = $1", mine.hex())
    await store.aside.readmit_like("XX001")
    assert {*await rows(connection)} == {mine, other, report}


async def test_no_more_than_may_be(store: Store, connection: Sql) -> None:
    """Where it may be about none of them."""
    first, second = new_id(), new_id()
    assert await store.aside.add([(first, REFUSED)], 0.0, 1) == {first}
    assert await store.aside.add([(second, REFUSED)], 0.0, 1) == set()
    assert [*await rows(connection)] == [first]
