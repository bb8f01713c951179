"""Scenes in which a number of jobs wait, and then are done: drain, cpu, submit, sync, awaiting, sizes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.load import ARG_BYTES, batches, new_jobs, submit
from bench.recovery_scene import BenchError
from bench.results import Sample
from bench.stage import CONCURRENCY, Bare, Sql, Stage, System
from bench.usage import rss_bytes
from pulse.store.connections.pool import Target
from pulse.store.store import Store

MB: Final = 1e6
PLAIN: Final = "plain INSERT, as many a statement"
THREADS: Final = 100  # of `sync`: what one would give a worker that blocks
SKIP: Final = 0.05  # of the jobs: until all have found their pace
RATE: Final = """
    SELECT (count(*) - 1) / nullif(extract(epoch FROM max(completed_at) - min(completed_at)), 0)::float8
    FROM (SELECT completed_at FROM pulse.jobs WHERE status = 'COMPLETED' AND completed_at > to_timestamp($2)
          ORDER BY completed_at OFFSET $1) AS later"""
# Each is one statement that submits $1 jobs, row by row as SQL would; they are compared with the last one.
ARGS: Final = "jsonb_build_object('number', n, 'pad', repeat('x', 170))"
SUBMIT: Final = "SELECT count(pulse.submit(name => 'noop', args => ARGS)) FROM generate_series(1, $1::int) AS n"
SUBMIT_MANY: Final = """
    SELECT count(*) FROM pulse.submit_many((
        SELECT jsonb_agg(jsonb_build_object('name', 'noop', 'args', ARGS)) FROM generate_series(1, $1::int) AS n))"""
INSERT: Final = """
    INSERT INTO pulse.jobs (id, topic, name, args, max_attempts)
    SELECT pulse.uuid7(), 'default', 'noop', ARGS, 5 FROM generate_series(1, $1::int) AS n"""
# The same as an application does it: one call, or one INSERT, for each job, all in one transaction.
ONE_SUBMIT: Final = "SELECT pulse.submit(name => 'noop', args => $1::text::jsonb)"
ONE_INSERT: Final = """
    INSERT INTO pulse.jobs (id, topic, name, args, max_attempts)
    VALUES (pulse.uuid7(), 'default', 'noop', $1::text::jsonb, 5)"""


@dataclass(frozen=True, slots=True)
class Work:
    """
    The jobs to drain.

    Attributes:
        before: SQL before the jobs are submitted.
        filled: SQL when all wait.
        halfway: SQL when half of them have begun.
        ids: File into which the handler `noted` writes.
    """

    handler: str
    jobs: int
    arg_bytes: int = ARG_BYTES
    concurrency: int = CONCURRENCY
    before: str = ""
    filled: str = ""
    halfway: str = ""
    ids: Path | None = None


@dataclass(frozen=True, slots=True)
class Drained:
    """
    How that went.

    Attributes:
        submit_rate: Jobs per second into the queue.
        rate: Jobs per second out of it.
        cpu_us: Microseconds of CPU per job, by process.
        rss_bytes: The most memory that the dispatcher had.
    """

    submit_rate: float
    rate: float
    cpu_us: Mapping[str, float]
    rss_bytes: int


def fill(system: System, work: Work) -> float:
    """Submit behind a closed gate; jobs per second."""
    system.client.pause(reason="bench")
    if work.before:
        system.sql.run(work.before)
    submit_rate = submit(system.client, work.handler, work.jobs, work.arg_bytes)
    if work.filled:
        system.sql.run(work.filled)
    system.sql.run("CHECKPOINT")
    return submit_rate


def drained(stage: Stage, work: Work) -> Drained:
    """Submit behind a closed gate, open it, and wait until all is done."""
    with stage.fresh() as dsn, stage.system(dsn, concurrency=work.concurrency, ids=work.ids) as system:
        submit_rate = fill(system, work)
        before = system.cpu_s()
        system.client.resume()
        if work.halfway:
            system.wait_begun(work.jobs // 2)
            system.sql.run(work.halfway)
        system.wait_begun(work.jobs)
        after = system.cpu_s()
        system.wait_done()
        cpu_us = {name: 1e6 * (after[name] - before[name]) / work.jobs for name in after}
        peak = rss_bytes(system.pids["dispatcher"], peak=True)
        return Drained(submit_rate, drain_rate(system, work.jobs), cpu_us, peak)


def drain_rate(system: System, jobs: int, since_s: float = 0.0) -> float:
    """
    Jobs per second between the first 5 % and the last one that ended after *since_s*, by the times in the table.

    Raises:
        BenchError: There is no time between them.
    """
    rate: float | None = system.sql.value(RATE, int(SKIP * jobs), since_s)
    if rate is None:
        raise BenchError(f"{jobs} jobs were done at once: too few to measure")
    return rate


def beside(stage: Stage, work: Work) -> tuple[Drained, Bare]:
    """The same work by pulse and by the yardstick; the order changes with each round."""
    if stage.round % 2:
        bare = stage.bare("drain", jobs=work.jobs, arg_bytes=work.arg_bytes)
        return drained(stage, work), bare
    found = drained(stage, work)
    return found, stage.bare("drain", jobs=work.jobs, arg_bytes=work.arg_bytes)


def standard(stage: Stage) -> tuple[Drained, Bare]:
    """The drain that several scenes look at, once in a round."""
    if "drain" not in stage.kept:
        stage.kept["drain"] = beside(stage, Work("noop", stage.size.drain_jobs))
    found: tuple[Drained, Bare] = stage.kept["drain"]
    return found


def drain(stage: Stage) -> list[Sample]:
    """No-op jobs that wait."""
    found, bare = standard(stage)
    return [Sample(f"drain of {stage.size.drain_jobs:,} jobs", found.rate, "jobs/s", bare.rate)]


def cpu(stage: Stage) -> list[Sample]:
    """What each process uses meanwhile."""
    found, bare = standard(stage)
    used = dict(sorted(found.cpu_us.items(), key=lambda item: -item[1]))
    samples = [
        Sample("CPU, all together", sum(used.values()), "µs/job", sum(bare.cpu_us.values())),
        Sample("CPU, postgres", used.pop("postgres"), "µs/job", bare.cpu_us["postgres"]),
        *(Sample(f"CPU, {name}", used.pop(name), "µs/job", bare.cpu_us["bare"]) for name in ("dispatcher", "worker")),
        Sample("CPU, others", sum(used.values()), "µs/job"),
    ]
    return [*samples, Sample("dispatcher RSS, peak", found.rss_bytes / MB, "MB")]


def submits(stage: Stage) -> list[Sample]:
    """Through the socket, and by SQL."""
    found, _ = standard(stage)
    plain = stage.bare("submit", jobs=stage.size.drain_jobs)
    samples = [Sample("submit, 1000 a call", found.submit_rate, "jobs/s", plain.rate, PLAIN)]
    with stage.fresh() as dsn:
        asyncio.run(install(dsn))
        with Sql(dsn) as sql:
            by_submit, by_many, by_insert = _sql_times(sql, stage.size.sql_rows)
            by_call, by_one = _call_times(sql, stage.size.sql_rows)
    against = "plain INSERT of 1000 rows into the same table"
    samples.append(Sample("SQL pulse.submit, a call for each row", by_call, "µs", by_one, "an INSERT for each row"))
    samples.append(Sample("SQL pulse.submit, 1000 rows a statement", by_submit, "µs", by_insert, against))
    samples.append(Sample("SQL pulse.submit_many, 1000 rows a call", by_many, "µs", by_insert, against))
    return samples


def _sql_times(sql: Sql, rows: int) -> list[float]:
    """Microseconds per row of each way, in turn, so that all meet the same noise."""
    used = [0.0, 0.0, 0.0]
    for _, length in batches(rows):
        for place, statement in enumerate((SUBMIT, SUBMIT_MANY, INSERT)):
            began_s = time.perf_counter()
            sql.run(statement.replace("ARGS", ARGS), length)
            used[place] += time.perf_counter() - began_s
    return [1e6 * one / rows for one in used]


def _call_times(sql: Sql, rows: int) -> tuple[float, float]:
    """Microseconds of one call, and of one INSERT."""
    used = [0.0, 0.0]
    args = [json.dumps(job.get("args")) for job in new_jobs("noop", 0, rows)]
    for first, length in batches(rows):
        for place, statement in enumerate((ONE_SUBMIT, ONE_INSERT)):
            used[place] += sql.times(statement, args[first : first + length])
    return 1e6 * used[0] / rows, 1e6 * used[1] / rows


async def install(dsn: str) -> None:
    """The schema, without a server."""
    store = Store(Target(dsn, "pulse bench"))
    try:
        await store.prepare()
    finally:
        store.close()


def sync(stage: Stage) -> list[Sample]:
    """Handlers that are a plain def."""
    found, bare = beside(stage, Work("plain", stage.size.plain_jobs, concurrency=THREADS))
    return [Sample(f"plain def, {THREADS} threads", found.rate, "jobs/s", bare.rate)]


def awaiting(stage: Stage) -> list[Sample]:
    """Handlers that wait."""
    found, bare = beside(stage, Work("nap", stage.size.nap_jobs))
    return [Sample(f"sleep of 10 ms, {CONCURRENCY} at once", found.rate, "jobs/s", bare.rate)]


def sizes(stage: Stage) -> list[Sample]:
    """Longer args."""
    samples: list[Sample] = []
    for arg_bytes, label, jobs in ((1000, "1 KB", stage.size.kb_jobs), (100_000, "100 KB", stage.size.big_jobs)):
        found, bare = beside(stage, Work("noop", jobs, arg_bytes))
        samples.append(Sample(f"args of {label}, drain", found.rate, "jobs/s", bare.rate))
        plain = stage.bare("submit", jobs=jobs, arg_bytes=arg_bytes)
        samples.append(Sample(f"args of {label}, submit", found.submit_rate, "jobs/s", plain.rate, PLAIN))
    return samples


def batch(stage: Stage) -> list[Sample]:
    """A row of the application for each job, from a call for a hundred jobs, against a call for each."""
    jobs, table = stage.size.plain_jobs, "CREATE TABLE public.effects (number int, pad text)"
    works = [Work(handler, jobs, before=table) for handler in ("effect", "batch")]
    found = {work.handler: drained(stage, work) for work in (works if stage.round % 2 else reversed(works))}
    single, against = found["effect"], "a call and a statement for each job"
    return [
        Sample("batch=100, one statement", found["batch"].rate, "jobs/s", single.rate, against),
        Sample(
            "batch=100, CPU of all", sum(found["batch"].cpu_us.values()), "µs/job", sum(single.cpu_us.values()), against
        ),
    ]


def fenced(stage: Stage) -> list[Sample]:
    """A row of the application in a fenced transaction, against one of its own and the worker's report."""
    jobs, table = stage.size.plain_jobs, "CREATE TABLE public.effects (number int, pad text)"
    works = [Work(handler, jobs, before=table) for handler in ("effect", "fenced")]
    found = {work.handler: drained(stage, work) for work in (works if stage.round % 2 else reversed(works))}
    own = found["effect"]
    against = "a transaction of its own, then the report"
    return [
        Sample("fenced transaction", found["fenced"].rate, "jobs/s", own.rate, against),
        Sample(
            "fenced transaction, CPU of all", sum(found["fenced"].cpu_us.values()), "µs/job",
            sum(own.cpu_us.values()), against,
        ),
    ]  # fmt: skip
