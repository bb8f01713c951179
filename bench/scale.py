"""The scene `scale`: what a claim of 100 takes, whatever else is in the table."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from bench.drain import install
from bench.recovery_scene import BenchError
from bench.results import Sample
from bench.stage import Sql, Stage
from pulse.store.connections.pool import Target
from pulse.store.rows import Level
from pulse.store.store import Store

if TYPE_CHECKING:
    Levels: TypeAlias = list[tuple[str, int, float | None]] | None

CLAIM: Final = 100
TRIES: Final = 20
FIRST: Final = 3  # tries that are not looked at: connections, plans, pages
LEASE_S: Final = 3600.0
ROWS: Final = 250_000  # of one statement
PRIORITIES: Final = 100
BEFORE_ALL: Final = Level("", -101)
SURVEY: Final = 500  # levels that a dispatcher looks for at once
NAMED: Final = 100  # levels that it claims from at once, of many topics
EMPTY: Final = "the same in an empty table"
BACKED_OFF: Final = """
    INSERT INTO pulse.jobs (id, topic, name, args, max_attempts, status, attempts, last_error, next_run_at)
    SELECT pulse.uuid7(), 'default', 'noop', '{}', 25, 'RETRYING', 1, 'failed',
           now() + interval '1 day' * (1 + random())
    FROM generate_series(1, $1::int)"""
LATER: Final = """
    INSERT INTO pulse.jobs (id, topic, name, args, max_attempts, next_run_at)
    SELECT pulse.uuid7(), 'default', 'noop', '{}', 5, now() + interval '1 day' * (1 + random())
    FROM generate_series(1, $1::int)"""
COMPLETED: Final = """
    INSERT INTO pulse.jobs (id, topic, name, args, max_attempts, status, attempts, started_at, completed_at)
    SELECT pulse.uuid7(), 'default', 'noop', '{}', 5, 'COMPLETED', 1, now(), now() FROM generate_series(1, $1::int)"""
# The n-th row goes to topic n modulo $2, where that is not 0, and to priority n modulo $3, around 0.
DUE: Final = """
    INSERT INTO pulse.jobs (id, topic, name, args, max_attempts, priority, next_run_at)
    SELECT pulse.uuid7(), CASE n % $2::int WHEN 0 THEN 'default' ELSE 'topic-' || n % $2::int END, 'noop', '{}', 5,
           n % $3::int - $3::int / 2, now() - interval '1 hour' + n * interval '1 microsecond'
    FROM generate_series(1, $1::int) AS n"""


def put(sql: Sql, statement: str, rows: int, *args: int) -> None:
    """Fill the table, a part at a time."""
    for first in range(0, rows, ROWS):
        sql.run(statement, min(ROWS, rows - first), *args)


async def _claims(dsn: str, topics: Sequence[str], levels: Levels) -> list[float]:
    store = Store(Target(dsn, "pulse bench"))
    times: list[float] = []
    try:
        for _ in range(FIRST + TRIES):
            began_s = time.perf_counter()
            claims = await store.claim(topics, ["bench"], [0] * CLAIM, LEASE_S, levels=levels)
            times.append(1000 * (time.perf_counter() - began_s))
            if len(claims) != CLAIM:
                raise BenchError(f"a claim of {CLAIM} returned {len(claims)} jobs")
    finally:
        store.close()
    return times[FIRST:]


def claim_ms(dsn: str, topics: Sequence[str] = ("default",), levels: Levels = None) -> float:
    """The median of some claims; each finds other jobs."""
    return statistics.median(asyncio.run(_claims(dsn, topics, levels)))


def both_ms(sql: Sql, dsn: str) -> tuple[float, float]:
    """A full claim, and one that goes on where the last one ended."""
    jobs = 2 * (FIRST + TRIES) * CLAIM
    put(sql, DUE, jobs, 1, 1)
    full = claim_ms(dsn)
    due_s = time.time() - 2 * 3600.0
    return full, claim_ms(dsn, levels=[("default", 0, due_s)])


def scale(stage: Stage) -> list[Sample]:
    """Rows that are not due, rows that are done, topics, priorities."""
    size = stage.size
    samples: list[Sample] = []
    with stage.fresh() as dsn:
        asyncio.run(install(dsn))
        with Sql(dsn) as sql:
            empty, empty_on = both_ms(sql, dsn)
            samples += [Sample("claim of 100, empty table", empty, "ms")]
            samples += [Sample("claim of 100, empty table, going on", empty_on, "ms")]
            for statement, rows in ((BACKED_OFF, size.waiting), (LATER, size.waiting), (COMPLETED, size.completed)):
                put(sql, statement, rows)
            crowded, crowded_on = both_ms(sql, dsn)
    among = f"among {size.waiting:,} backed off, {size.waiting:,} due later, {size.completed:,} completed"
    samples += [Sample(f"claim of 100 {among}", crowded, "ms", empty, EMPTY)]
    samples += [Sample(f"claim of 100, going on, {among}", crowded_on, "ms", empty_on, EMPTY)]
    return [*samples, *_topics(stage, empty, empty_on), *_priorities(stage, empty, empty_on)]


async def _surveys(dsn: str) -> tuple[float, list[Level]]:
    store = Store(Target(dsn, "pulse bench"))
    times: list[float] = []
    found: list[Level] = []
    try:
        for _ in range(TRIES):
            began_s = time.perf_counter()
            found = [head.level for head in await store.find_levels(BEFORE_ALL, SURVEY)]
            times.append(1000 * (time.perf_counter() - began_s))
    finally:
        store.close()
    return statistics.median(times), found


def _topics(stage: Stage, empty: float, empty_on: float) -> list[Sample]:
    """Every topic has jobs that are due; one worker serves one of them, another one all, which it has to find."""
    topics, jobs = stage.size.topics, (FIRST + TRIES) * CLAIM
    with stage.fresh() as dsn:
        asyncio.run(install(dsn))
        with Sql(dsn) as sql:
            put(sql, DUE, max(jobs, 30 * topics), topics, 1)
            put(sql, DUE, jobs, 1, 1)
            one = claim_ms(dsn)
            survey, found = asyncio.run(_surveys(dsn))
            due_s = time.time() - 2 * 3600.0
            every = claim_ms(dsn, levels=[(level.topic, level.priority, due_s) for level in found[:NAMED]])
    label = f"claim of 100 among {topics:,} topics"
    return [
        Sample(f"{label}, one served", one, "ms", empty, EMPTY),
        Sample(f"{label}, all served, going on", every, "ms", empty_on, EMPTY),
        Sample(f"survey of {SURVEY} of {topics:,} levels", survey, "ms"),
    ]


def _priorities(stage: Stage, empty: float, empty_on: float) -> list[Sample]:
    """Jobs of 100 priorities in one topic."""
    with stage.fresh() as dsn:
        asyncio.run(install(dsn))
        with Sql(dsn) as sql:
            put(sql, DUE, 2 * (FIRST + TRIES) * CLAIM, 1, PRIORITIES)
            full = claim_ms(dsn)
            due_s = time.time() - 2 * 3600.0
            levels: Levels = [("default", number - PRIORITIES // 2, due_s) for number in reversed(range(PRIORITIES))]
            on = claim_ms(dsn, levels=levels)
    label = f"claim of 100 of {PRIORITIES} priorities"
    return [Sample(label, full, "ms", empty, EMPTY), Sample(f"{label}, going on", on, "ms", empty_on, EMPTY)]
