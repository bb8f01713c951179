"""
How the hot statements reach their rows, with any statistics: never analysed, fresh, or of another time.

A claim reads a range of its index that ends at now, and costs the same behind any number of jobs that are not due. Ends
and extensions of attempts probe the primary key. Generic and custom plans; measured in buffers.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import asyncpg
import pytest
from anyio.lowlevel import checkpoint

from pulse.store.connections.pool import HOT_SETTINGS, Target, connect
from pulse.store.rows import Renewal
from pulse.store.statements import STATEMENTS
from pulse.store.store import Store
from tests.support.servers.postgres import Postgres
from tests.support.store.helpers import LEASE_S, NOW, TOPIC, WORKER, Sql, at, found_of, new_id

Node = dict[str, Any]
ROWS: Final = 200_000
BATCH: Final = 100
DUE: Final = 600
TINY: Final = 20
FEW: Final = 5  # so few that all their versions fit into one page, whatever else runs on the server
# What the planner knows of the table, in the order in which the fixture brings it about.
SMALL: Final = ("empty", "analysed empty", "analysed tiny")
LARGE: Final = ("stale", "analysed", "never analysed")
FORGET: Final = """
    DELETE FROM pg_statistic WHERE starelid = 'pulse.jobs'::regclass;
    UPDATE pg_class SET reltuples = -1, relpages = 0
    WHERE oid = 'pulse.jobs'::regclass
       OR oid IN (SELECT indexrelid FROM pg_index WHERE indrelid = 'pulse.jobs'::regclass);
"""
# What each statement is asked for here: as text, in the order of its arguments.
_IDS: Final = "{" + ",".join(str(new_id().hex()) for _ in range(BATCH)) + "}"
_ONES: Final = "{" + ",".join("1" for _ in range(BATCH)) + "}"
_FENCE: Final = (_IDS, _ONES, "{" + ",".join([WORKER] * BATCH) + "}")
_NULLS: Final = "{" + ",".join(["NULL"] * BATCH) + "}"
_ERRORS: Final = "{" + ",".join(["error"] * BATCH) + "}"
_CLAIM: Final = (f"{{{TOPIC},u}}", str(BATCH), f"{{{WORKER}}}", _ONES, str(LEASE_S))
ARGUMENTS: Final[dict[str, tuple[str | None, ...]]] = {
    "claim_jobs": (*_CLAIM, *[None] * 10, NOW.isoformat()),
    "claim_jobs ageing": (*_CLAIM, None, None, None, "{10,NULL}", *[None] * 6, NOW.isoformat()),
    "claim_jobs known": (
        "{}", *_CLAIM[1:], f"{{{TOPIC},{TOPIC},u}}", "{2,1,0}", "{0,0,0}", *[None] * 7, NOW.isoformat(),
    ),
    "find_levels": ("", "0", str(BATCH), None, NOW.isoformat()),
    "find_levels of topics": ("", "101", str(BATCH), f"{{{TOPIC},u}}", NOW.isoformat()),
    "complete_jobs": (*_FENCE, _NULLS, _NULLS, None),
    "end_attempts": (*_FENCE, _ERRORS, _ERRORS, *[_NULLS] * 8, None),
    "extend_leases": (*_FENCE, _NULLS, str(LEASE_S), None),
    "save_checkpoints": (*_FENCE, _ONES),
    "move_claims": (*_FENCE, "{" + ",".join([WORKER] * BATCH) + "}"),
    "completed_at_attempt": (_IDS, _ONES),
    "complete_and_forget": _FENCE,
    "forget_jobs": ("{00000000-0000-0000-0000-000000000000}", str(BATCH), "1", "1", None),
}  # fmt: skip
BY_ID: Final = re.compile(r"\(id >= (\w\.id)\) AND \(id <= \1\)")
RANGE: Final = ("topic =", "priority =", "next_run_at <=", "next_run_at >=")
CLAIMS: Final = ("claim_jobs", "claim_jobs known", "claim_jobs ageing")
WALK: Final = "forget_jobs"
LEVELS: Final = ("find_levels", "find_levels of topics")
BY_KEY: Final = sorted(set(ARGUMENTS) - {*CLAIMS, WALK, *LEVELS})
_INSERT: Final = """
    INSERT INTO pulse.jobs (id, topic, name, priority, max_attempts, status, attempts, next_run_at, submitted_at,
        completed_at, started_at)
    SELECT gen_random_uuid(), $1, 'n', n % 3, 5, $2::text::pulse.job_status, 1, $3::timestamptz + n * interval '1 ms',
        $3, $4, $3
    FROM generate_series(1, $5::int) AS n"""


@dataclass(frozen=True, slots=True)
class Planned:
    connection: Sql
    numbers: Iterator[int] = field(default_factory=itertools.count)

    async def plan(self, name: str, mode: str, *, analyse: bool = False, now: str | None = None) -> Node:
        """The plan of a statement; with *analyse* it is carried out and rolled back. *now* is its last argument."""
        asked = f"asked_{next(self.numbers)}"
        await self.connection.execute(
            f"SET plan_cache_mode = force_{mode}_plan; PREPARE {asked} AS {STATEMENTS[name.partition(' ')[0]].sql}"
        )
        arguments = ARGUMENTS[name] if now is None else (*ARGUMENTS[name][:-1], now)
        values = ", ".join("NULL" if value is None else f"'{value}'" for value in arguments)
        options = "ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON" if analyse else "FORMAT JSON"
        transaction = self.connection.transaction()
        await transaction.start()
        try:
            text = await self.connection.fetchval(f"EXPLAIN ({options}) EXECUTE {asked} ({values})")
        finally:
            await transaction.rollback()
        found: Node = json.loads(text)[0]["Plan"]
        return found


async def fill(connection: Sql, status: str, due: str, rows: int) -> None:
    moment = await connection.fetchval("SELECT $1::timestamptz + $2::text::interval", NOW, due)
    await connection.execute(_INSERT, TOPIC, status, moment, NOW if status == "COMPLETED" else None, rows)


async def hot(dsn: str) -> Planned:
    return Planned(await connect(Target(dsn, "plans"), HOT_SETTINGS))


@pytest.fixture(scope="module")
def large() -> set[str]:
    """Databases with many jobs; it takes ten seconds to make one, for which those that need a small one do not wait."""
    return set()


async def make_large(dsn: str) -> None:
    """200 000 jobs: finished, not due, and 600 due. Analysed when there were only finished ones."""
    plain = await asyncpg.connect(dsn)
    await fill(plain, "COMPLETED", "-30 days", ROWS // 2)
    await plain.execute("ANALYZE")
    await fill(plain, "PENDING", "1 day", ROWS // 4)
    await fill(plain, "RETRYING", "1 day", ROWS // 4)
    await fill(plain, "PENDING", "-1 hour", DUE)
    await plain.close(timeout=5)


@pytest.fixture(scope="module", params=[*SMALL, *LARGE])
def state(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def small_database(server: Postgres, state: str) -> Iterator[str]:
    """One for each state."""
    with server.database() as made:
        yield made


@pytest.fixture(scope="module")
async def planned(state: str, small_database: str, module_database: str, large: set[str]) -> AsyncIterator[Planned]:
    dsn = small_database if state in SMALL else module_database
    if dsn == module_database and dsn not in large:
        await make_large(dsn)
        large.add(dsn)
    plain = await asyncpg.connect(dsn)
    if state == "analysed tiny":
        await fill(plain, "PENDING", "-1 hour", TINY)
    if state.startswith("analysed"):
        await plain.execute("ANALYZE")
    if state == "never analysed":
        await plain.execute(FORGET)
    made = await hot(dsn)
    yield made
    made.connection.terminate()
    await plain.close(timeout=5)
    await checkpoint()


@pytest.fixture(scope="module")
def empty_database(server: Postgres) -> Iterator[str]:
    with server.database() as made:
        yield made


@pytest.fixture(scope="module")
async def alone(empty_database: str) -> Node:
    """A claim in a table that holds only the jobs that it takes."""
    plain = await asyncpg.connect(empty_database)
    await fill(plain, "PENDING", "-1 hour", DUE)
    claiming = await hot(empty_database)
    plan = await claiming.plan("claim_jobs", "generic", analyse=True)
    claiming.connection.terminate()
    await plain.close(timeout=5)
    return plan


def nodes(plan: Node) -> Iterator[Node]:
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


def scans_of_jobs(plan: Node) -> list[Node]:
    return [node for node in nodes(plan) if node.get("Relation Name") == "jobs" and "Scan" in node["Node Type"]]


def subplan(plan: Node, name: str) -> Node:
    return next(node for node in nodes(plan) if node.get("Subplan Name") == f"CTE {name}")


@pytest.mark.rest
@pytest.mark.parametrize("mode", ["generic", "custom"])
@pytest.mark.parametrize("name", CLAIMS)
async def test_claim_reads_a_range_of_its_index(planned: Planned, name: str, mode: str) -> None:
    """Levels and jobs come from idx_jobs_claim, jobs by a range that ends at now, without a sort; rows by their key."""
    plan = await planned.plan(name, mode, analyse=True)  # else EXPLAIN leaves out how the next level is found
    locks = [node for node in nodes(subplan(plan, "picked")) if node["Node Type"] == "LockRows"]
    assert len(locks) == 2  # in strict order, and where topics age
    for lock in locks:
        [jobs] = scans_of_jobs(lock)
        assert (jobs["Node Type"], jobs["Index Name"]) == ("Index Scan", "idx_jobs_claim")
        assert all(f"({condition}" in _range_of(jobs) for condition in RANGE), jobs
        assert "next_run_at" not in jobs["Filter"]  # the status, for when the row has changed meanwhile
        assert "Sort" not in {node["Node Type"] for node in nodes(lock)}
    [row] = [node for node in scans_of_jobs(plan) if node["Index Name"] == "jobs_pkey"]
    assert BY_ID.search(row["Index Cond"])
    _check_levels(plan, locks)


def _range_of(scan: Node) -> str:
    return str(scan["Index Cond"]).replace("(next_run_at)::timestamp with time zone", "next_run_at")


def _check_levels(plan: Node, locks: Sequence[Node]) -> int:
    """The scans that look for levels read the index alone; returns how many of them have run."""
    jobs = [scan for lock in locks for scan in scans_of_jobs(lock)]
    levels = [node for node in scans_of_jobs(plan) if node not in jobs and node.get("Index Name") != "jobs_pkey"]
    assert {node.get("Index Name") for node in levels} == {"idx_jobs_claim"}
    assert all("topic" in node["Index Cond"] and "Filter" not in node for node in levels)
    assert len(scans_of_jobs(subplan(plan, "found"))) == 2
    for name in ("ranked", "bar"):  # where topics age: the first job of a level, and the one that fills the batch
        for scan in scans_of_jobs(subplan(plan, name)):
            assert all(f"({condition}" in _range_of(scan) for condition in RANGE), scan
    return sum(node.get("Actual Loops", 0) > 0 for node in levels)


@pytest.mark.rest
@pytest.mark.parametrize("mode", ["generic", "custom"])
@pytest.mark.parametrize("name", BY_KEY)
async def test_attempts_are_found_by_key(planned: Planned, name: str, mode: str) -> None:
    """What ends, extends or moves attempts walks its arguments in order and probes the primary key for each."""
    plan = await planned.plan(name, mode)
    scans = scans_of_jobs(plan)
    assert scans
    for scan in scans:
        assert (scan["Node Type"], scan["Index Name"]) == ("Index Scan", "jobs_pkey")
        assert BY_ID.search(scan["Index Cond"])
    types = {node["Node Type"] for node in nodes(plan)}
    assert (
        types & {"Sort", "Hash Join", "Merge Join", "Seq Scan", "Bitmap Heap Scan", "Materialize", "Memoize"} == set()
    )
    joins = [node for node in nodes(plan) if node["Node Type"] == "Nested Loop" and scans_of_jobs(node)]
    assert joins
    for join in joins:  # the arguments outside, the table inside: rows are locked in the order of the arguments
        outer, inner = (child for child in join["Plans"] if child["Parent Relationship"] in {"Outer", "Inner"})
        assert scans_of_jobs(outer) == []
        assert len(scans_of_jobs(inner)) == 1


@pytest.mark.rest
@pytest.mark.parametrize("mode", ["generic", "custom"])
async def test_retention_walks_the_primary_key(planned: Planned, mode: str) -> None:
    """A window of it in order, then a probe for each old job, with any statistics."""
    plan = await planned.plan(WALK, mode)
    [window] = scans_of_jobs(subplan(plan, "walked"))
    assert (window["Node Type"] in {"Index Scan", "Index Only Scan"}, window["Index Name"]) == (True, "jobs_pkey")
    assert "id >= " in window["Index Cond"]
    gone = scans_of_jobs(subplan(plan, "gone"))
    assert [(scan["Node Type"], scan["Index Name"]) for scan in gone] == [("Index Scan", "jobs_pkey")] * 2
    assert sorted(bool(BY_ID.search(scan["Index Cond"])) for scan in gone) == [False, True]  # False: who waits for it
    [history] = [x for x in nodes(plan) if x.get("Relation Name") == "attempts" and "Scan" in x["Node Type"]]
    assert (history["Node Type"], history["Index Name"]) == ("Index Scan", "attempts_pkey")


@pytest.mark.parametrize("mode", ["generic", "custom"])
@pytest.mark.parametrize("statement", LEVELS)
async def test_levels_are_found_by_descents(planned: Planned, mode: str, statement: str) -> None:
    """Two probes of the claim index for each, or one of some topics, with any statistics; nothing is sorted."""
    plan = await planned.plan(statement, mode, analyse=True)
    scans = [scan for scan in scans_of_jobs(plan) if scan["Actual Loops"]]
    assert len(scans) == (2 if statement == LEVELS[0] else 1)
    assert {
        (scan["Node Type"].removeprefix("Index Only ").removeprefix("Index "), scan["Index Name"]) for scan in scans
    } == {("Scan", "idx_jobs_claim")}
    sorts = [node for node in nodes(plan) if "Sort" in node["Node Type"]]
    assert [one["Sort Key"] for one in sorts if one["Plans"][0].get("One-Time Filter") != "false"] == [["levels.place"]]
    assert _buffers(plan) <= 40 * (1 + scans[0]["Actual Loops"])


@pytest.mark.parametrize("state", LARGE, indirect=True)
@pytest.mark.parametrize("mode", ["generic", "custom"])
async def test_retention_compares_no_job_with_all_others(planned: Planned, mode: str) -> None:
    """The rest of a window is found by hashing or sorting: deleted rows are read as a whole, not for each job."""
    await planned.connection.execute("SET work_mem = '64kB'")  # as if the table were a hundred times as large
    plan = await planned.plan(WALK, mode, analyse=True)
    assert subplan(plan, "walked")["Actual Rows"] == BATCH
    assert {node["Actual Loops"] for node in nodes(plan) if node.get("CTE Name") == "gone"} == {1}


async def test_statements_without_work_read_next_to_nothing(planned: Planned) -> None:
    """A hundred unknown attempts cost a descent of the primary key each, in a table of any size."""
    for name in BY_KEY:
        plan = await planned.plan(name, "generic", analyse=True)
        assert _buffers(plan) <= BATCH * 4, name


@pytest.mark.parametrize("state", LARGE, indirect=True)
@pytest.mark.parametrize("mode", ["generic", "custom"])
async def test_claim_costs_the_same_behind_what_is_not_due(planned: Planned, alone: Node, mode: str) -> None:
    """A claim beside 100 000 jobs that are put off or wait for their retry reads what it reads without them."""
    behind = await planned.plan("claim_jobs", mode, analyse=True)
    assert (alone["Actual Rows"], behind["Actual Rows"]) == (BATCH, BATCH)
    locks = [node for node in nodes(behind) if node["Node Type"] == "LockRows"]
    assert [lock["Actual Loops"] > 0 for lock in locks] == [True, False]  # nobody ages
    assert _check_levels(behind, locks) == 2
    # Each descent of the larger index is a page or two longer; there are nine of them (levels, and ranges of levels).
    assert _buffers(subplan(behind, "picked")) <= _buffers(subplan(alone, "picked")) + 30
    assert _buffers(subplan(behind, "found")) <= _buffers(subplan(alone, "found")) + 20


@pytest.mark.parametrize("state", LARGE, indirect=True)
async def test_a_claim_of_known_levels_looks_for_none(planned: Planned) -> None:
    known = await planned.plan("claim_jobs known", "generic", analyse=True)
    assert known["Actual Rows"] == BATCH
    assert {node["Actual Loops"] for node in scans_of_jobs(subplan(known, "found"))} == {0}


@pytest.mark.parametrize("state", LARGE, indirect=True)
async def test_a_vain_claim_reads_next_to_nothing(planned: Planned) -> None:
    """A poll that finds nothing due reads a few pages, however many jobs wait."""
    now = at(-86_400).isoformat()
    await planned.plan(
        "claim_jobs", "generic", analyse=True, now=now
    )  # the first of a session reads the catalogue, too
    vain = await planned.plan("claim_jobs", "generic", analyse=True, now=now)
    assert vain["Actual Rows"] == 0
    assert _buffers(subplan(vain, "picked")) <= 40


@pytest.mark.usefixtures("own_database")
async def test_heartbeats_are_hot(store: Store, connection: Sql) -> None:
    """A heartbeat writes no index, with progress or without, where its page has room."""
    await fill(connection, "PENDING", "-1 hour", FEW)
    claimed = await store.claim([TOPIC], [WORKER], [0] * FEW, LEASE_S, now=NOW)
    before = await _updates(connection)
    for progress in ("0.5", None, "0.75"):
        renewals = [Renewal(one.id, one.attempt, WORKER, progress) for one in claimed]
        assert len(await store.extend(renewals, LEASE_S)) == FEW
    async with store.beats.connection() as used:
        await used.execute("SELECT pg_stat_force_next_flush()")
    updates, hot_updates = (after - old for after, old in zip(await _updates(connection), before, strict=True))
    assert updates == hot_updates == 3 * FEW


async def _updates(connection: Sql) -> tuple[int, int]:
    sql = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = 'pulse.jobs'::regclass"
    row = found_of(await connection.fetchrow(sql))
    return row["n_tup_upd"], row["n_tup_hot_upd"]


def _buffers(plan: Node) -> int:
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
