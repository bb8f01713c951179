"""How many jobs wait, by topic: counted, or estimated from some pages, and never at any price."""

from __future__ import annotations

from typing import Final

import asyncpg
import pytest

from pulse.errors import UnavailableError
from pulse.store.reading import counts
from pulse.store.reading.counts import Depth
from pulse.store.store import Store
from tests.store.helpers import NOW, Sql, at, forge

FILL: Final = """
    INSERT INTO pulse.jobs (id, name, topic, priority, submitted_at, next_run_at, max_attempts)
    SELECT gen_random_uuid(), 'n', 't' || g % $2, g % 3, $3, $3::timestamptz + g * interval '1 ms', 5
    FROM generate_series(1, $1) AS g
"""


async def test_what_waits_and_what_runs_is_counted(store: Store, connection: Sql) -> None:
    """By topic, the most work first: due, due later, running, and since when the first is due; nothing that ended."""
    for topic, second, status in (
        ("a", -5.0, "PENDING"),
        ("a", -9.0, "RETRYING"),
        ("a", 60.0, "RETRYING"),
        ("a", 0.0, "COMPLETED"),
        ("b", 0.0, "RUNNING"),
        ("c", 5.0, "PENDING"),
    ):
        await forge(connection, status, topic=topic, next_run_at=at(second))
    found = await store.depths.read(10, [], now=NOW)
    assert (found.is_exact, found.now_s) == (True, NOW.timestamp())
    assert found.topics == (Depth("a", 1, 2, 1, 0, 9.0), Depth("c", 1, 0, 1, 0, None), Depth("b", 1, 0, 0, 1, None))


async def test_nothing_waits(store: Store) -> None:
    """That is told as exactly as anything, and so is the time."""
    found = await store.depths.read(10, [], now=NOW)
    assert found == counts.Depths((), is_exact=True, now_s=NOW.timestamp())
    assert await store.depths.sample(10, [], now=NOW) == counts.Depths((), is_exact=False, now_s=NOW.timestamp())


async def test_topics_beyond_the_limit_are_told_together(store: Store, connection: Sql) -> None:
    """Nothing is left out of the sums, however many topics there are."""
    for number, topic in enumerate("aaabbcd"):
        await forge(connection, topic=topic, next_run_at=at(-number))
    found = await store.depths.read(2, [], now=NOW)
    assert found.topics == (Depth("a", 1, 3, 0, 0, 2.0), Depth("b", 1, 2, 0, 0, 4.0), Depth(None, 2, 2, 0, 0, 6.0))


async def test_too_many_to_be_counted(store: Store, connection: Sql) -> None:
    """More than are looked at is no count."""
    for _ in range(5):
        await forge(connection)
    assert await store.depths.count(10, rows=5, now=NOW) is not None
    assert await store.depths.count(10, rows=4, now=NOW) is None


async def test_many_are_estimated(store: Store, connection: Sql) -> None:
    """A sample is near the truth in sum and by topic; what is small, or was asked for by name, is counted."""
    await connection.execute(FILL, 100_000, 4, NOW)
    for second in (-30.0, 5.0):
        await forge(connection, topic="small", next_run_at=at(second), priority=-100)
    found = await store.depths.sample(10, ["small", "absent"], pages=400.0, now=at(25))
    topics = {one.topic: one for one in found.topics}
    assert topics["small"] == Depth("small", 1, 2, 0, 0, 55.0)
    assert "absent" in topics
    assert topics["absent"][2:4] == (0, 0)
    for name in ("t0", "t1", "t2", "t3"):
        assert topics[name].ready == pytest.approx(6250, rel=0.4)
        assert topics[name].scheduled == pytest.approx(18_750, rel=0.4)
        assert topics[name].oldest_s == pytest.approx(25, abs=0.01)
    assert sum(one.ready + one.scheduled for one in found.topics) == pytest.approx(100_000, rel=0.25)


async def test_a_backlog_is_sampled_until_it_is_small_again(store: Store, connection: Sql, own_database: str) -> None:
    """Beyond the limit nothing is counted any more; when the sample says that it would be few, it is."""
    await connection.execute(FILL, counts.ROWS + 1000, 1, NOW)
    assert not (await store.depths.read(10, [], now=NOW)).is_exact
    statements = store.counting.usage.took.total
    found = await store.depths.read(10, [], now=NOW)
    assert not found.is_exact
    assert store.counting.usage.took.total == statements + 1  # the sample alone
    await connection.execute("DELETE FROM pulse.jobs WHERE id IN (SELECT id FROM pulse.jobs LIMIT 15000)")
    assert not (await store.depths.read(10, [], now=NOW)).is_exact
    found = await store.depths.read(10, [], now=NOW)
    assert (found.is_exact, found.topics[0].ready + found.topics[0].scheduled) == (True, counts.ROWS - 14_000)


async def test_a_count_that_is_in_nobodys_interest_ends(store: Store, connection: Sql, dsn: str) -> None:
    """What cannot be counted soon is sampled, and what cannot be sampled soon is not told, but nobody waits for it."""
    other = await asyncpg.connect(dsn)
    try:
        async with other.transaction():
            await other.execute("LOCK TABLE pulse.jobs IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(UnavailableError):
                await store.depths.read(10, [], now=NOW)
    finally:
        await other.close(timeout=5)
    assert (await store.depths.read(10, [], now=NOW)).is_exact is False  # for a while, a count is not tried again
