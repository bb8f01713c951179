"""
`python -m bench.recovery`: how soon, and how safely, a job comes back from a worker that died, hung or was poisoned.

Every figure is of a system of its own with real worker processes: SIGKILL of a worker that runs 1 or 100 jobs, to the
moment at which no row is RUNNING for it any more (as another connection sees it), and to the first handler that runs
again elsewhere; the same with a process of the handler's that holds the worker's sockets; the same behind a snapshot
that pins dead rows; SIGSTOP, where the second attempt looks whether the first one's process is there; poison jobs among
innocents; a PostgreSQL that is shut down under load and started again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import platform
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import UUID

import asyncpg

import pulse
from bench.load import Figure
from bench.recovery_app import LISTENER
from pulse.blocking import Client
from pulse.demo.server import running_server, worker_rows
from pulse_supervisor import embedded

if TYPE_CHECKING:
    from asyncpg import Connection, Record

APP: Final = "bench.recovery_app:app"
DEADLINE_S: Final = 60.0
WORKERS: Final = 2  # of the scene in which one is killed
CLAIM_JOBS: Final = 10_000  # of one round behind the pinned snapshot
OUTAGE_SEATS: Final = 40  # they, not the machine, bound the throughput
OUTAGE_MS: Final = 50.0
FULL: Final = 0.95
WARM_UP_S: Final = 3.0
BEFORE_S: Final = 5.0
AFTER_S: Final = 12.0
# By primary key: where dead rows are pinned, the index of RUNNING rows is slow to walk, and that is not pulse's time.
LEFT: Final = (
    "SELECT count(*) FROM pulse.jobs WHERE id = ANY ($1::uuid[]) AND status::text = 'RUNNING' AND attempts = 1"
)


@dataclass(frozen=True, slots=True)
class Start:
    """A handler that began."""

    job: UUID
    attempt: int
    pid: int
    at_s: float
    before_lives: bool


class Scene:
    """
    One system, seen from outside.

    Args:
        client: Its client.
        starts: The socket on which handlers tell that they begin.
        log: What the system logs.
        runner: For the bench's own connection to the database.
    """

    def __init__(self, client: Client, starts: socket.socket, log: Path, runner: asyncio.Runner) -> None:
        status = client.status()["database"]
        self.client = client
        self.dsn = str(status["dsn"]) if isinstance(status, Mapping) else ""
        self._starts = starts
        self._log = log
        self._runner = runner
        self._database: Connection[Record] = runner.run(asyncpg.connect(self.dsn))

    def close(self) -> None:
        """Let go of the database."""
        self._runner.run(self._database.close())

    def next_start(self, within_s: float = DEADLINE_S) -> Start:
        """The next handler that begins."""
        self._starts.settimeout(within_s)
        told = json.loads(self._starts.recv(4096))
        return Start(UUID(told["job"]), told["attempt"], told["pid"], told["at_s"], told["before_lives"])

    def starts_of(self, jobs: Sequence[UUID], attempt: int) -> list[Start]:
        """The starts of this attempt of all *jobs*, in the order in which they were told."""
        found: dict[UUID, Start] = {}
        while len(found) < len(jobs):
            start = self.next_start()
            if start.job in jobs and start.attempt == attempt:
                found.setdefault(start.job, start)
        return list(found.values())

    def value(self, sql: str, *args: object) -> int:
        """One number from the database."""
        found: int = self._runner.run(self._database.fetchval(sql, *args))
        return found

    def log_lines(self) -> int:
        """How many all processes together have written so far."""
        return self._log.read_bytes().count(b"\n")

    def reconnect(self) -> None:
        """The database was away."""
        self._database = self._runner.run(asyncpg.connect(self.dsn))

    def execute(self, sql: str) -> None:
        """One statement."""
        self._runner.run(self._database.execute(sql))

    def wait_workers(self, count: int) -> None:
        """Wait until so many workers are connected."""
        until(lambda: len(worker_rows(self.client)) >= count, f"{count} workers")

    def cancel(self, jobs: Sequence[UUID]) -> None:
        """End them, and wait until nobody holds any."""
        self.client.cancel(*jobs)
        until(lambda: not any(row["running"] for row in worker_rows(self.client)), "idle workers")


def until(look: Callable[[], object], what: str) -> None:
    """Wait until *look* is true."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not look():
        if time.monotonic() > deadline_s:
            raise TimeoutError(what)
        time.sleep(0.002)


@contextmanager
def scene(processes: int, concurrency: int, settings: Mapping[str, str]) -> Iterator[Scene]:
    """A system with a pool of *processes*."""
    with (
        tempfile.TemporaryDirectory(prefix="pulse-bench-") as directory,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as starts,
    ):
        path = Path(directory) / "starts"
        starts.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        starts.bind(str(path))
        words, log = {**settings, LISTENER: str(path)}, Path(directory) / "log"
        with (
            running_server(APP, words, processes=processes, concurrency=concurrency, log=log) as client,
            asyncio.Runner() as runner,
            contextlib.closing(Scene(client, starts, log, runner)) as made,
        ):
            yield made


def copies(name: str, count: int, **args: object) -> list[pulse.NewJob]:
    """So many jobs."""
    return [{"name": name, "args": args} for _ in range(count)]


def kill_once(on: Scene, jobs: int, *, child: bool) -> tuple[float, float]:
    """
    Kill a worker that runs *jobs* jobs.

    Returns:
        Milliseconds from the kill until none of its rows is RUNNING, and until the first of its jobs runs again.
    """
    count = 2 * jobs if jobs > 1 else 1  # dealt in turn: both workers get as many, and one of the first two
    new: list[pulse.NewJob] = [{"name": "hold", "args": {"child": child and place < WORKERS}} for place in range(count)]
    ids = on.client.submit_many(new)
    first = on.starts_of(ids, 1)
    victim = first[0].pid
    lost = {start.job for start in first if start.pid == victim}
    killed_s = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    while on.value(LEFT, lost):
        pass
    free_s = time.monotonic()
    again = on.starts_of(sorted(lost), 2)
    on.cancel(ids)
    on.wait_workers(WORKERS)
    return 1000 * (free_s - killed_s), 1000 * (min(start.at_s for start in again) - killed_s)


def kills(on: Scene, tries: int, jobs: int, *, child: bool, label: str) -> Iterator[Figure]:
    """Many kills; the figures of both times."""
    times = [kill_once(on, jobs, child=child) for _ in range(tries)]
    for what, values in (("free", [one for one, _ in times]), ("again", [one for _, one in times])):
        values.sort()
        yield Figure(f"{label}, {what} p50", statistics.median(values), "ms")
        yield Figure(f"{label}, {what} p99", values[min(len(values) - 1, round(len(values) * 0.99))], "ms")


def pinned(on: Scene, claims: int, tries: int) -> Iterator[Figure]:
    """The same behind *claims* claims whose dead rows a snapshot keeps."""
    runner = asyncio.Runner()
    with runner:
        holder = runner.run(asyncpg.connect(on.dsn))
        runner.run(holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pulse.jobs"))
        done = on.value("SELECT count(*) FROM pulse.jobs WHERE status = 'COMPLETED'")
        for _ in range(0, claims, CLAIM_JOBS):
            on.client.submit_many(copies("work", CLAIM_JOBS, ms=0.0))
            done += CLAIM_JOBS
            sql = "SELECT count(*) FROM pulse.jobs WHERE status IN ('PENDING', 'RUNNING', 'RETRYING')"
            until(lambda: on.value(sql) == 0, "the claims")  # noqa: B023 - called at once
        for jobs in (1, 100):
            label = f"SIGKILL, {jobs} jobs, {claims:,} claims pinned"
            yield from kills(on, tries, jobs, child=False, label=label)
        runner.run(holder.close())


def stops(on: Scene, tries: int, workers: int) -> Iterator[Figure]:
    """Stop workers that run one job each; the second attempt tells whether the first one's process is there."""
    overlaps = made = 0
    waits: list[float] = []
    while made < tries:
        on.wait_workers(workers)
        ids = on.client.submit_many(copies("hold", workers // 2))
        first = {start.job: start for start in on.starts_of(ids, 1)}
        stopped_s = time.monotonic()
        for start in first.values():
            os.kill(start.pid, signal.SIGSTOP)
        for start in on.starts_of(ids, 2):
            made += 1
            overlaps += start.before_lives
            waits.append(start.at_s - stopped_s)
        on.cancel(ids)
    yield Figure(f"SIGSTOP, {made} tries: overlaps", overlaps, "")
    yield Figure("SIGSTOP, stop to second attempt p50", statistics.median(waits), "s")
    yield Figure("SIGSTOP, second attempt at the earliest", min(waits), "s")


def poisoned(on: Scene, innocents: int, ms: float) -> Iterator[Figure]:
    """The time for *innocents* jobs alone, and with a poison job before them."""
    rates: list[float] = []
    ids: list[UUID] = []
    poison: list[UUID] = []
    for with_poison in (False, True):
        began_s = time.monotonic()
        ids = on.client.submit_many(copies("work", innocents, ms=ms))
        poison = [on.client.submit("poison", priority=1)] if with_poison else []
        on.client.wait(ids[-1], timeout_s=600)
        sql = "SELECT count(*) FROM pulse.jobs WHERE name = 'work' AND status <> 'COMPLETED'"
        until(lambda: on.value(sql) == 0, "the innocents")  # noqa: B023 - called at once
        rates.append(innocents / (time.monotonic() - began_s))
    burned = on.value("SELECT coalesce(sum(attempts - uncharged - 1), 0)::int FROM pulse.jobs WHERE name = 'work'")
    for job in poison:
        on.client.wait(job, timeout_s=60)
    dead = on.value(
        "SELECT count(*) FROM pulse.jobs WHERE name = 'poison' AND status = 'DEAD_LETTERED' AND crashes = 3"
    )
    yield Figure(f"poison, {len(poison)} among {innocents} innocents: dead after 3 crashes", dead, "")
    yield Figure("poison, attempts burned on innocents", burned, "")
    yield Figure("poison, throughput kept", 100 * rates[1] / rates[0], "%")


class Database:
    """
    A PostgreSQL beside the system, to be stopped.

    Args:
        directory: For all that it keeps.
    """

    def __init__(self, directory: Path) -> None:
        self._server = embedded.prepare(directory, embedded_user=os.environ.get("PULSE_EMBEDDED_USER"), log=_ignore)
        self.dsn = self._server.dsn
        self._process = embedded.run(self._server, _ignore)

    def stop(self) -> None:
        """Shut it down at once, as a host that loses its power would."""
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait()

    def start(self) -> None:
        """Start it again; it answers from now on."""
        self._process = embedded.run(self._server, _ignore)

    def close(self) -> None:
        """Stop it for good."""
        embedded.stop(self._process)
        embedded.release(self._server)


def _ignore(*_: object, **__: object) -> None:
    pass


@contextmanager
def database() -> Iterator[Database]:
    """One in a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="pulse-bench-") as directory:
        Path(directory).chmod(0o711)  # as root PostgreSQL runs as another user, who has to get through
        with contextlib.closing(Database(Path(directory) / "postgres")) as made:
            yield made


def outage(on: Scene, postgres: Database, away_s: float) -> Iterator[Figure]:
    """Jobs for all seats all the time; completions by the database's own clock, before it went and after it came."""
    jobs = int((BEFORE_S + AFTER_S + 2) * OUTAGE_SEATS * 1000 / OUTAGE_MS)
    for _ in range(0, jobs, CLAIM_JOBS):
        on.client.submit_many(copies("work", CLAIM_JOBS, ms=OUTAGE_MS))
    time.sleep(WARM_UP_S + BEFORE_S)
    logged, stopped_s = on.log_lines(), time.time()
    postgres.stop()
    time.sleep(away_s)
    lines = on.log_lines() - logged
    postgres.start()
    back_s = time.time()
    time.sleep(AFTER_S)
    on.reconnect()

    def rate(from_s: float, to_s: float) -> float:
        sql = "SELECT count(*) FROM pulse.jobs WHERE completed_at BETWEEN to_timestamp($1) AND to_timestamp($2)"
        return on.value(sql, from_s, to_s) / (to_s - from_s)

    before = rate(stopped_s - BEFORE_S, stopped_s)
    starts_s = (tenth / 10 for tenth in range(100))
    full_s = next((one for one in starts_s if rate(back_s + one, back_s + one + 1) >= FULL * before), math.inf)
    label = f"outage of {away_s:g} s"
    yield Figure(f"{label}, throughput before", before, "jobs/s")
    yield Figure(f"{label}, throughput from 3 s after its return", 100 * rate(back_s + 3, back_s + 8) / before, "%")
    yield Figure(f"{label}, from return to 95 % of it", full_s, "s")
    yield Figure(f"{label}, lines logged by all processes", lines / away_s, "per s")
    twice = "SELECT count(*) FROM pulse.jobs WHERE attempts > 1 AND status <> 'PENDING'"
    yield Figure(f"{label}, jobs that ran twice or were charged", on.value(twice), "")


SHORT_LEASE: Final = {"PULSE_LEASE_S": "1.5", "PULSE_HEARTBEAT_S": "0.5", "PULSE_SWEEP_S": "0.2"}


def figures(options: argparse.Namespace) -> Iterator[Figure]:
    """Everything that is measured, in order."""
    with scene(WORKERS, 250, {}) as on:
        for child in (False, True):
            for jobs in (1, 100):
                label = f"SIGKILL, {jobs} job{'s' * (jobs > 1)}{', socket held' * child}"
                yield from kills(on, options.tries, jobs, child=child, label=label)
    with scene(8, 1, SHORT_LEASE) as on:
        yield from stops(on, options.stops, 8)
    with scene(4, 25, {}) as on:
        yield from poisoned(on, options.innocents, 50.0)
    if options.outage:
        with database() as postgres, scene(4, OUTAGE_SEATS // 4, {"PULSE_DSN": postgres.dsn}) as on:
            yield from outage(on, postgres, options.outage)
    if options.claims:
        with scene(WORKERS, 250, {}) as on:
            yield from pinned(on, options.claims, options.tries)


def main() -> None:
    """Measure, and print what was found."""
    parser = argparse.ArgumentParser(prog="python -m bench.recovery", description=__doc__)
    parser.add_argument("--tries", type=int, default=40, help="kills per figure (default: %(default)s)")
    parser.add_argument("--stops", type=int, default=200, help="stopped workers (default: %(default)s)")
    parser.add_argument("--innocents", type=int, default=20_000, help="jobs beside the poison (default: %(default)s)")
    parser.add_argument(
        "--outage", type=float, default=10.0, help="seconds without the database; 0: none (default: %(default)s)"
    )
    parser.add_argument(
        "--claims", type=int, default=0, help="claims behind a pinned snapshot, too; 2000000 take minutes"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document instead of the table")
    options = parser.parse_args()
    machine = f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}"
    found: list[Figure] = []
    for figure in figures(options):
        found.append(figure)
        if not options.json:
            print(f"{figure.name:<60} {figure.value:>10,.1f} {figure.unit}", flush=True)
    if options.json:
        print(json.dumps({"machine": machine, "figures": {one.name: [one.value, one.unit] for one in found}}))
    else:
        print(f"({machine})", file=sys.stdout)


if __name__ == "__main__":
    main()
