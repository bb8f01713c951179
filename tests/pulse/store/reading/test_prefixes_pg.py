"""What a person types for a job or a schedule is found in a range of the primary key."""

from __future__ import annotations

import json
from typing import Any, Final
from uuid import UUID

import pytest

from pulse.store.reading.prefixes import MOST, id_range
from pulse.store.rows import NewSchedule
from pulse.store.statements import STATEMENTS
from pulse.store.store import Store
from tests.support.store.helpers import NOW, Sql, forge, found_of

IDS: Final = [UUID(f"abcd{number:04x}-0000-4000-8000-000000000000") for number in range(3)]


async def test_jobs_are_found_by_the_begin_of_their_ids(store: Store, connection: Sql) -> None:
    """In the order of what was asked and of their ids, each once; some of many."""
    for one in IDS:
        await forge(connection, "PENDING", id=one.bytes)
    whole = IDS[1].hex

    async def found(*prefixes: str) -> list[object]:
        return [row["id"] for row in await store.prefixes.jobs(prefixes)]

    assert await found("abcd0001") == [IDS[1].bytes]
    assert await found("abcd000", "abcd") == [one.bytes for one in IDS]
    assert await found("abcd0002", "abce", whole) == [IDS[2].bytes, IDS[1].bytes]
    for number in range(MOST):
        await forge(connection, "PENDING", id=UUID(f"abcd1000-0000-4000-8000-{number:012x}").bytes)
    assert len(await found("abcd1000")) == MOST == len(await found("abcd"))


async def test_a_key_goes_before_the_begin_of_an_id(store: Store) -> None:
    keyed, plain = (UUID(f"{first}0000000-0000-4000-8000-000000000000") for first in "1f")
    for identity, key in ((keyed, "f0000000"), (plain, None)):
        new = NewSchedule(identity.bytes, "n", "every", args="{}", next_run_at=NOW, every_s=60.0, key=key)
        assert await store.schedules.create(new)

    async def found(*words: str) -> list[tuple[object, ...]]:
        return [(row["id"], row["key"], row["name"]) for row in await store.prefixes.schedules(words)]

    assert await found("f0000000") == [(keyed.bytes, "f0000000", "n")]
    assert await found("f0000000-", "10000000", "no id") == [(plain.bytes, None, "n"), (keyed.bytes, "f0000000", "n")]


@pytest.mark.parametrize("mode", ["generic", "custom"])
@pytest.mark.parametrize("analysed", [True, False])
async def test_a_prefix_reads_a_range_of_the_primary_key(connection: Sql, mode: str, analysed: bool) -> None:
    """Nothing else of the table, whatever is known of it."""
    await connection.execute(
        "INSERT INTO pulse.jobs (id, topic, name, max_attempts) "
        "SELECT pulse.uuid7(), 't', 'n', 5 FROM generate_series(1, 5000)"
    )
    # What an earlier test had in the table would be known else, and is worse than nothing.
    await connection.execute(
        "ANALYZE pulse.jobs" if analysed else "DELETE FROM pg_statistic WHERE starelid = 'pulse.jobs'::regclass"
    )
    await connection.execute(f"SET plan_cache_mode = force_{mode}_plan")
    await connection.execute(f"PREPARE asked AS {STATEMENTS['find_jobs'].sql}")
    low, high = id_range("0190163d")
    row = found_of(
        await connection.fetchrow(f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE asked ('{{{low}}}', '{{{high}}}', {MOST})")
    )
    await connection.execute("DEALLOCATE asked; RESET plan_cache_mode")
    scans = [node for node in _nodes(json.loads(row[0])[0]["Plan"]) if node.get("Relation Name") == "jobs"]
    assert [(node["Node Type"], node["Index Name"]) for node in scans] == [("Index Only Scan", "jobs_pkey")]
    assert "id >= " in scans[0]["Index Cond"]
    assert "id <= " in scans[0]["Index Cond"]


def _nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for child in plan.get("Plans", ()) for node in _nodes(child))]
