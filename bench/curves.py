"""The scene `curves`: how a drain changes with one thing: processes, servers, topics, rows, args, connected workers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

from bench.curves_app import TOPICS
from bench.drain import Work, drain_rate, fill
from bench.load import ARG_BYTES
from bench.recovery_scene import until
from bench.results import Sample
from bench.scale import COMPLETED, LATER, put
from bench.stage import DEADLINE_S, Stage, System
from bench.workers import at_most, idle

APP: Final = "bench.curves_app:app"
PROCESSES: Final = (1, 2, 4, 8)
SERVERS: Final = (1, 2, 4)
TOPIC_COUNTS: Final = (1, 10, 100, 999)  # a worker takes no more, beside `default`
WORKERS: Final = (0, 100, 1000, 10_000)
SIZES: Final = {"200 B": ARG_BYTES, "1 KB": 1000, "10 KB": 10_000, "100 KB": 100_000, "1 MB": 1_000_000}
ARGS_BYTES: Final = 50_000_000  # of all jobs together: that many bytes, or that many jobs
FEWEST: Final = 50
SHARES: Final = (0.0, 0.1, 1.0)  # of the rows of a size
LOOK_S: Final = 0.2
DONE: Final = "SELECT count(*) FROM pulse.jobs WHERE status = 'COMPLETED' AND completed_at > to_timestamp($1)"
# The n-th job belongs to topic n modulo $2.
OF_TOPICS: Final = """
    INSERT INTO pulse.jobs (id, topic, name, args, max_attempts)
    SELECT pulse.uuid7(), 'topic-' || n % $2::int, 'nothing-' || n % $2::int, '{}', 5
    FROM generate_series(1, $1::int) AS n"""


def curves(stage: Stage) -> list[Sample]:
    """Each against its first point."""
    size = stage.size
    rows = {"completed": (COMPLETED, size.completed), "due tomorrow": (LATER, size.waiting)}
    found: dict[str, Iterator[tuple[str, float]]] = {
        "worker processes": ((f"{n}", _by_processes(stage, n)) for n in PROCESSES),
        "servers, a worker process each": ((f"{n}", _by_servers(stage, n)) for n in SERVERS),
        "topics": ((f"{n:,}", _by_topics(stage, n)) for n in sorted({min(n, size.topics) for n in TOPIC_COUNTS})),
        "idle workers": ((f"{n:,}", _by_workers(stage, n)) for n in at_most(size, WORKERS)),
        "args": ((label, _by_args(stage, n)) for label, n in SIZES.items()),
    }
    for what, (statement, most) in rows.items():
        counts = [int(share * most) for share in SHARES]
        found[f"rows that are {what}"] = ((f"{n:,}", _by_rows(stage, statement, n)) for n in counts)
    return [sample for what, points in found.items() for sample in _samples(what, points)]


def _samples(what: str, points: Iterator[tuple[str, float]]) -> Iterator[Sample]:
    first: tuple[str, float] | None = None
    for label, rate in points:
        first = first or (label, rate)
        yield Sample(f"{what}: {label}", rate, "jobs/s", first[1], first[0])


def _drain(system: System, work: Work) -> float:
    fill(system, work)
    return _drained(system, work.jobs)


def _drained(system: System, jobs: int) -> float:
    since_s = time.time()
    system.client.resume()
    until(lambda: system.sql.value(DONE, since_s) >= jobs, f"{jobs} jobs are done", DEADLINE_S, LOOK_S)
    return drain_rate(system, jobs, since_s)


def _by_processes(stage: Stage, number: int) -> float:
    with stage.fresh() as dsn, stage.system(dsn, processes=number) as system:
        return _drain(system, Work("noop", stage.size.curve_jobs))


def _by_servers(stage: Stage, number: int) -> float:
    with stage.fresh() as dsn, ExitStack() as stack:
        systems = [stack.enter_context(stage.system(dsn)) for _ in range(number)]
        return _drain(systems[0], Work("noop", stage.size.curve_jobs))


def _by_topics(stage: Stage, number: int) -> float:
    jobs = stage.size.curve_jobs
    with stage.fresh() as dsn, stage.system(dsn, app=APP, env={TOPICS: f"{number}"}) as system:
        system.client.pause(reason="bench")
        put(system.sql, OF_TOPICS, jobs, number)
        return _drained(system, jobs)


def _by_workers(stage: Stage, number: int) -> float:
    with stage.fresh() as dsn, stage.system(dsn) as system, idle(system, number):
        return _drain(system, Work("noop", stage.size.curve_jobs))


def _by_args(stage: Stage, arg_bytes: int) -> float:
    jobs = min(stage.size.curve_jobs, max(FEWEST, ARGS_BYTES // arg_bytes))
    with stage.fresh() as dsn, stage.system(dsn) as system:
        return _drain(system, Work("noop", jobs, arg_bytes))


def _by_rows(stage: Stage, statement: str, number: int) -> float:
    with stage.fresh() as dsn, stage.system(dsn) as system:
        put(system.sql, statement, number)
        system.sql.run("VACUUM ANALYZE pulse.jobs")
        return _drain(system, Work("noop", stage.size.curve_jobs))
