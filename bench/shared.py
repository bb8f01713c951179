"""The scene `shared`: what a limit keeps, and how soon: over two hosts, over a death, beside a group with most jobs."""

from __future__ import annotations

import itertools
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final
from uuid import UUID

from bench.latency import FIRST as UNWATCHED
from bench.latency import PERCENTS, percentile, stamped
from bench.limits import BURST, RATE
from bench.recovery_scene import APP as RECOVERY_APP
from bench.recovery_scene import Scene, scene, socket_of, until
from bench.results import Sample
from bench.scale import put
from bench.shared_app import FIRST, SECOND
from bench.stage import DEADLINE_S, END_S, LOOK_S, Stage, System
from pulse.client.requests import NewJob

LIMIT: Final = "shared"
APPS: Final = ("bench.shared_app:first", "bench.shared_app:second")
HELD_S: Final = 0.3  # until the job of the other host waits for the slot
SLOTS: Final = 10
GROUPS: Final = 1000
SEATS: Final = 20  # of a worker, so that it can hold all slots
HANDED_OVER: Final = """
    SELECT 1000 * extract(epoch FROM b.started_at - a.completed_at)::float8 FROM pulse.jobs a, pulse.jobs b
    WHERE a.id = $1 AND b.id = $2"""
STARTS: Final = "SELECT count(*) FROM pulse.jobs WHERE started_at BETWEEN to_timestamp($1) AND to_timestamp($2)"
STATUS: Final = "SELECT status::text FROM pulse.jobs WHERE id = $1"
MOST_IN_A_SECOND: Final = """
    SELECT max(n) FROM (
        SELECT count(*) OVER (ORDER BY started_at RANGE BETWEEN CURRENT ROW AND interval '1 second' FOLLOWING) AS n
        FROM pulse.jobs WHERE started_at BETWEEN to_timestamp($1) AND to_timestamp($2)) AS w"""
LAST_START: Final = "SELECT extract(epoch FROM max(started_at))::float8 FROM pulse.jobs"
RUNNING: Final = "SELECT count(*) FROM pulse.jobs WHERE status = 'RUNNING' AND started_at >= to_timestamp($1)"
HOT: Final = """
    INSERT INTO pulse.jobs (id, topic, name, args, max_attempts, group_key, next_run_at)
    SELECT pulse.uuid7(), 'first', 'nap', '{"seconds": 3600}', 5, 'hot',
           now() - interval '1 hour' + n * interval '1 microsecond'
    FROM generate_series(1, $1::int) AS n"""
HELD: Final = "SELECT id FROM pulse.jobs WHERE group_key = 'hot' AND status = 'RUNNING'"


class Host:
    """A server with one worker, which can be stopped and started."""

    def __init__(self, stage: Stage, dsn: str, app: str) -> None:
        self._stage = stage
        self._dsn = dsn
        self._app = app
        self._stack = ExitStack()
        self.start()

    def start(self) -> None:
        """And wait until it serves."""
        self.system = self._stack.enter_context(self._stage.system(self._dsn, app=self._app))

    def stop(self) -> None:
        """All of it, but the database."""
        self._stack.close()


@contextmanager
def two_hosts(stage: Stage) -> Iterator[tuple[Host, Host]]:
    """Each serves a topic of its own; both topics share a limit, which is not set yet."""
    with stage.fresh() as dsn, ExitStack() as stack:
        hosts = []
        for app in APPS:
            host = Host(stage, dsn, app)
            stack.callback(host.stop)
            hosts.append(host)
        for topic in (FIRST, SECOND):
            hosts[0].system.client.topics_set(topic, limit=LIMIT)
        yield hosts[0], hosts[1]


def rate_kept(stage: Stage) -> list[Sample]:
    """How many jobs of both hosts start, while one after the other is restarted."""
    seconds = stage.size.rate_s
    with two_hosts(stage) as hosts:
        client = hosts[0].system.client
        client.set_limit(LIMIT, rate=RATE, burst=BURST)
        for name, topic in (("nap", FIRST), ("other-nap", SECOND)):
            jobs = round(2 * RATE * seconds + RATE * END_S)
            new: NewJob = {"name": name, "topic": topic, "args": {"seconds": 0.0}}
            client.submit_many([new] * jobs)
        from_s = time.time()
        for host in hosts:
            time.sleep(seconds / 3)
            host.stop()
            host.start()
        time.sleep(max(0.0, from_s + seconds - time.time()))
        lasted_s = time.time() - from_s
        sql = hosts[0].system.sql
        starts = sql.value(STARTS, from_s, from_s + lasted_s)
        most = sql.value(MOST_IN_A_SECOND, from_s, from_s + lasted_s)
    said = f"two hosts, starts under a rate of {RATE:g} a second, both restarted, {seconds:g} s"
    return [
        Sample(said, starts / lasted_s, "jobs/s", RATE, "the rate"),
        Sample("two hosts, most starts in any second", float(most), "jobs", RATE + BURST, "rate and burst"),
    ]


def handed_over_ms(stage: Stage) -> list[float]:
    """From the end of a job on one host to the start of the next one on the other, where only one may run."""
    with two_hosts(stage) as (here, there):
        here.system.client.set_limit(LIMIT, concurrency=1)
        return [_hand_over(here.system, there.system) for _ in range(stage.size.kills)]


def _hand_over(here: System, there: System) -> float:
    holder = here.client.submit("nap", {"seconds": HELD_S})
    until(lambda: here.sql.value(STATUS, holder) == "RUNNING", "the slot is held", DEADLINE_S, LOOK_S)
    waiting = there.client.submit("other-nap", {"seconds": 0.0})
    until(lambda: here.sql.value(STATUS, waiting) == "COMPLETED", "the other host has the slot", DEADLINE_S, LOOK_S)
    return float(here.sql.value(HANDED_OVER, holder, waiting))


def filled_again_ms(kills: int) -> list[float]:
    """From SIGKILL of the worker that holds all slots until another one holds them all, on one host."""
    with scene(1, SEATS, {}) as on:
        on.client.set_limit("recovery", concurrency=SLOTS)
        jobs = on.submit("hold", SLOTS)
        holder = on.starts_of(jobs, 1)[0].pid
        jobs += on.submit("hold", kills * SLOTS)  # each dies three times at most
        found = []
        with _second_pool(on):
            for _ in range(kills):
                on.wait_workers(2)
                killed_s = time.time()
                os.kill(holder, signal.SIGKILL)
                holder = [on.next_start() for _ in range(SLOTS)][-1].pid
                until(partial(_is_full, on, killed_s), "all slots are held again", DEADLINE_S, LOOK_S)
                found.append(1000 * (on.value(LAST_START) - killed_s))
            on.client.pause(reason="bench")
            on.cancel(jobs)
        return found


def _is_full(on: Scene, from_s: float) -> bool:
    return on.value(RUNNING, from_s) == SLOTS


@contextmanager
def _second_pool(on: Scene) -> Iterator[None]:
    words = ["worker", RECOVERY_APP, f"--concurrency={SEATS}", f"--socket={socket_of(on.client)}", "--log-level=error"]
    process = subprocess.Popen([sys.executable, "-m", "pulse.cli.main", *words], env={**os.environ, **on.settings})
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def quiet_ms(stage: Stage, blocked: int) -> list[float]:
    """From submit to start of jobs of a thousand groups, beside one group whose slot is taken and has so many more."""
    numbers = itertools.count()
    with stage.fresh() as dsn, stage.system(dsn, app=APPS[0]) as system:
        client = system.client

        def submit_one(args: dict[str, float]) -> UUID:
            return client.submit("stamp", args, group_key=f"quiet-{next(numbers) % GROUPS}")

        client.set_limit(FIRST, group_concurrency=1)
        if blocked:
            put(system.sql, HOT, blocked)
            system.sql.run("ANALYZE pulse.jobs")
            until(lambda: system.sql.value(HELD), "the slot of the hot group is taken", DEADLINE_S, LOOK_S)
        stamped(system, UNWATCHED, submit_one)
        found = stamped(system, stage.size.latency_jobs, submit_one)
        if blocked:
            client.set_limit(FIRST, group_key="hot", concurrency=0)
            client.cancel(system.sql.value(HELD))
        return found


def shared(stage: Stage) -> list[Sample]:
    """All of it."""
    alone, beside = quiet_ms(stage, 0), quiet_ms(stage, stage.size.waiting)
    said = f"quiet groups beside one with {stage.size.waiting:,} that are blocked"
    samples = [
        Sample(f"{said}, p{percent}", percentile(beside, percent), "ms", percentile(alone, percent), "the same alone")
        for percent in PERCENTS
    ]
    for name, values in (
        ("end of a job to start of the next on another host", handed_over_ms(stage)),
        (f"SIGKILL of a worker with {SLOTS} slots until they are taken again", filled_again_ms(stage.size.kills)),
    ):
        samples += [
            Sample(f"{name}, median", statistics.median(values), "ms"),
            Sample(f"{name}, longest", max(values), "ms"),
        ]
    return samples + rate_kept(stage)
