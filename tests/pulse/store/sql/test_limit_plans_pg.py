"""
How a claim under limits reaches its rows, among 10,000 groups with a bucket each, with any statistics.

It descends an index for each level that it names, and reads no group that it does not name.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import asyncpg
import pytest

from pulse.store.connections.pool import HOT_SETTINGS, Target, connect
from pulse.store.statements import STATEMENTS
from tests.support.store.helpers import LEASE_S, NOW, TOPIC, WORKER, Sql, at

Node = dict[str, Any]

pytestmark = [pytest.mark.heavy]

GROUPS: Final = 10_000
NAMED: Final = 100
BUFFERS: Final = (
    40  # for each level: descents for the limit's row, the bucket, slots, dead letters, its jobs; and writes
)
STATES: Final = ("never analysed", "stale", "analysed")
INDEXES: Final = {"idx_jobs_claim", "idx_jobs_counted", "idx_jobs_groups", "jobs_pkey", "limits_pkey"}
_JOBS: Final = """
    INSERT INTO pulse.jobs (id, topic, name, group_key, max_attempts, next_run_at, submitted_at)
    SELECT gen_random_uuid(), $1, 'n', 'g' || n % $3::int, 5,
           $2::timestamptz + n * interval '1 ms' - interval '1 hour', $2
    FROM generate_series(1, $4::int) AS n"""
_BUCKETS: Final = """
    INSERT INTO pulse.limits (name, group_key, tokens, tokens_at)
    SELECT $1, 'g' || n, 1, $2 FROM generate_series(0, $3::int - 1) AS n"""
_FORGET: Final = """
    DELETE FROM pg_statistic WHERE starelid IN ('pulse.jobs'::regclass, 'pulse.limits'::regclass);
    UPDATE pg_class SET reltuples = -1, relpages = 0
    WHERE oid IN ('pulse.jobs'::regclass, 'pulse.limits'::regclass)
       OR oid IN (SELECT indexrelid FROM pg_index
                  WHERE indrelid IN ('pulse.jobs'::regclass, 'pulse.limits'::regclass));"""


@pytest.fixture(scope="module")
async def hot(module_database: str) -> AsyncIterator[Sql]:
    """Twenty jobs of each group wait; analysed when there was one group."""
    plain = await asyncpg.connect(module_database)
    policy = {"concurrency": 1000, "rate": 1000.0, "burst": 1000, "group_concurrency": 1, "group_rate": 1.0}
    await plain.execute("SELECT pulse.set_limit($1, NULL, $2)", TOPIC, json.dumps(policy))
    await plain.execute(_JOBS, TOPIC, NOW, 1, 20)
    await plain.execute("ANALYZE")
    await plain.execute(_JOBS, TOPIC, NOW, GROUPS, 2 * GROUPS)
    await plain.execute(_BUCKETS, TOPIC, NOW, GROUPS)
    made = await connect(Target(module_database, "plans"), HOT_SETTINGS)
    yield made
    made.terminate()
    await plain.close(timeout=5)


@pytest.fixture(params=STATES)
async def state(request: pytest.FixtureRequest, hot: Sql, module_database: str) -> str:
    """The statistics as they are then; *hot* leaves them stale."""
    del hot
    plain = await asyncpg.connect(module_database)
    name: str = request.param
    if name != "stale":
        await plain.execute("ANALYZE pulse.jobs, pulse.limits" if name == "analysed" else _FORGET)
    await plain.close(timeout=5)
    return name


async def _plan(connection: Sql, name: str, *arguments: object, analyse: bool = True) -> Node:
    asked = f"asked_{next(_numbers)}"
    await connection.execute(f"PREPARE {asked} AS {STATEMENTS[name].sql}")
    values = ", ".join("NULL" if value is None else f"'{value}'" for value in arguments)
    options = "ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON" if analyse else "FORMAT JSON"
    transaction = connection.transaction()
    await transaction.start()
    try:
        text = await connection.fetchval(f"EXPLAIN ({options}) EXECUTE {asked} ({values})")
    finally:
        await transaction.rollback()
    found: Node = json.loads(text)[0]["Plan"]
    return found


_numbers = itertools.count()


def _nodes(plan: Node) -> Iterator[Node]:
    yield plan
    for child in plan.get("Plans", []):
        yield from _nodes(child)


def _array(values: list[object]) -> str:
    return "{" + ",".join("NULL" if value is None else str(value) for value in values) + "}"


def _claim(groups: list[object]) -> tuple[object, ...]:
    many = len(groups)
    ones = _array([1] * many)
    return (
        _array([TOPIC] * many), _array(groups), _array([0] * many), _array([at(-7200).timestamp()] * many), many,
        _array([WORKER]), ones, LEASE_S, None, None, *[None] * 6, NOW.isoformat(),
    )  # fmt: skip


def _check_scans(plan: Node) -> None:
    """Each row of jobs and limits is reached by a condition on an index that narrows it to its topic, key or name."""
    found = [node for node in _nodes(plan) if "Scan" in node["Node Type"] and "Relation Name" in node]
    scans = [node for node in found if node["Relation Name"] in {"jobs", "limits"}]
    assert len(scans) > 10
    for scan in scans:
        assert scan["Node Type"] in {"Index Scan", "Index Only Scan"}, scan
        assert scan["Index Name"] in INDEXES, scan
        assert any(word in scan["Index Cond"] for word in ("topic", "name", "id ", "counted_by")), scan
        assert scan["Index Name"] != "idx_jobs_groups" or "CASE" in scan["Index Cond"], scan  # the part of the index
    types = {node["Node Type"] for node in _nodes(plan)}
    assert types & {"Hash Join", "Merge Join", "Seq Scan", "Bitmap Heap Scan"} == set()


@pytest.mark.usefixtures("state")
async def test_a_claim_reads_what_it_names(hot: Sql) -> None:
    """A hundred groups of ten thousand cost so many descents, whatever the planner knows."""
    groups: list[object] = [f"g{number * 97}" for number in range(NAMED)]
    await _plan(hot, "claim_limited", *_claim(groups))  # the first of a session reads the catalogue, too
    plan = await _plan(hot, "claim_limited", *_claim(groups))
    _check_scans(plan)
    assert plan["Actual Rows"] == NAMED
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] <= BUFFERS * NAMED
    picked = next(node for node in _nodes(plan) if node.get("Subplan Name") == "CTE picked")
    assert max(node["Actual Rows"] for node in _nodes(picked) if node.get("Relation Name") == "jobs") <= 1


@pytest.mark.usefixtures("state")
async def test_jobs_without_a_group_are_not_behind_those_with_one(hot: Sql) -> None:
    await _plan(hot, "claim_limited", *_claim([None]))
    plan = await _plan(hot, "claim_limited", *_claim([None]))
    _check_scans(plan)
    assert plan["Actual Rows"] == 0
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] <= 2 * BUFFERS


@pytest.mark.usefixtures("state")
async def test_levels_are_found_by_descents(hot: Sql) -> None:
    """Two for each level that comes out, and some for its policy and its slots; the other groups are not read."""
    arguments = (TOPIC, "g5", 0, NAMED, NOW.isoformat())
    await _plan(hot, "find_group_levels", *arguments)
    plan = await _plan(hot, "find_group_levels", *arguments)
    assert plan["Actual Rows"] == NAMED
    assert {node.get("Relation Name") for node in _nodes(plan) if node["Node Type"] == "Seq Scan"} <= {"topics"}
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] <= BUFFERS * NAMED
