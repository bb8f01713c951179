"""Counts over a list of jobs: right where they can be, least ones where the table is large."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

import pytest
from asyncpg.pgproto.pgproto import UUID

from pulse.store.reading.filter_counts import STATES
from pulse.store.reading.listing import JobFilter
from pulse.store.rows import from_us
from pulse.store.store import Store
from tests.support.store.helpers import Sql, forge, new_id
from tests.support.waiting import DEADLINE_S

AGE_S: Final = 60
SCHEDULE: Final = new_id()
ENDED: Final = ("COMPLETED", "DEAD_LETTERED", "CANCELED")


@pytest.fixture
async def jobs(store: Store, connection: Sql) -> None:
    """Two jobs in each state; one of the two has what filters look for. Who has no handler says so in its error."""
    now = from_us(await store.reads.now_us())
    submitted, later = now - timedelta(seconds=AGE_S), now + timedelta(days=1)
    marked = {"topic": "u", "name": "m", "last_error": "Boom", "schedule_id": UUID(SCHEDULE)}
    for more in ({"last_error": "other"}, marked):
        columns: dict[str, Any] = {"submitted_at": submitted, **more}
        await forge(connection, next_run_at=submitted, **columns)
        await forge(connection, next_run_at=later, **columns)
        await forge(connection, status="RETRYING", next_run_at=later, **columns)
        error = f"no handler named {columns['last_error']!r}"
        without = {**columns, "last_error": error, "attempts": 2, "uncharged": 2}
        await forge(connection, next_run_at=later, **without)
        await forge(connection, status="RUNNING", locked_by=f"h/b/{columns.get('name', 'n')}", **columns)
        for status in ENDED:
            await forge(connection, status=status, **columns)


@pytest.mark.parametrize(("wanted", "each"), [
    (JobFilter(), 2),
    (JobFilter(statuses=("RUNNING",), due=True), 2),
    (JobFilter(topic="u"), 1),
    (JobFilter(name="m"), 1),
    (JobFilter(schedule=SCHEDULE), 1),
    (JobFilter(error="boom"), 1),
    (JobFilter(error="boom", topic="t"), 0),
    (JobFilter(older_s=AGE_S - 1), 2),
    (JobFilter(older_s=10 * AGE_S), 0),
    (JobFilter(newer_s=10 * AGE_S), 2),
    (JobFilter(newer_s=AGE_S - 1), 0),
])  # fmt: skip
@pytest.mark.usefixtures("jobs")
async def test_a_table_that_is_looked_at_whole(store: Store, wanted: JobFilter, each: int) -> None:
    """A state in the filter does not matter: each has its count."""
    assert await store.filter_counts.read(wanted) == (dict.fromkeys(STATES, each), ())


@pytest.mark.usefixtures("jobs")
async def test_what_a_worker_has(store: Store) -> None:
    assert await store.filter_counts.read(JobFilter(worker="B/M")) == ({**dict.fromkeys(STATES, 0), "running": 1}, ())


@pytest.mark.usefixtures("jobs")
async def test_a_table_that_is_not_looked_at_whole(store: Store) -> None:
    """States with an index of their own are counted by it; of the others the newest are known."""
    counts, least = await store.filter_counts.read(JobFilter(), rows=9, budget_s=DEADLINE_S)
    assert (counts, least) == ({**dict.fromkeys(STATES, 2), "completed": 1}, ["completed"])
    counts, least = await store.filter_counts.read(JobFilter(topic="u"), rows=3, budget_s=DEADLINE_S)
    assert least == ["completed", "ready", "retrying", "scheduled", "unhandled"]
    assert (counts["running"], counts["dead_lettered"], counts["canceled"]) == (1, 1, 1)


@pytest.mark.usefixtures("jobs")
async def test_a_count_has_an_end(store: Store) -> None:
    """Without time only the newest jobs are looked at; a part is not looked at again."""
    counts, least = await store.filter_counts.read(JobFilter(), rows=3, budget_s=0)
    assert sum(counts.values()) == 3
    assert least == sorted(STATES)
    counts, least = await store.filter_counts.read(JobFilter(schedule=SCHEDULE), rows=3)
    assert (sum(counts.values()), least) == (3, sorted(STATES))
