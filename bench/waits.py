"""Which process works and which waits, for what, while jobs are drained and in a steady state: sampled from /proc."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from bench.drain import Work, fill
from bench.flow import WARM_UP_S
from bench.results import Sample
from bench.stage import END_S, Stage, System

LOOK_S: Final = 0.001
SHOWN: Final = 0.02  # of the time: a state of the machine that is seen more rarely is not shown
BACKENDS: Final = """
    SELECT pid, coalesce(nullif(application_name, ''), backend_type) AS name,
        row_number() OVER (PARTITION BY application_name ORDER BY backend_start) AS number
    FROM pg_stat_activity
    WHERE backend_type IN ('client backend', 'walwriter') AND pid <> pg_backend_pid()"""
WORKING: Final = "R"  # the state in /proc/PID/stat: on a core, or ready for one
ON_DISK: Final = "D"
T = TypeVar("T")


@dataclass(slots=True)
class Seen:
    """
    What the samples say.

    Attributes:
        working: How often each process was runnable.
        on_disk: How often each waited for the disk.
        together: How often these, and no others, were runnable at once.
        idle: The share of the cores that did nothing, by /proc/stat.
    """

    samples: int = 0
    working: Counter[str] = field(default_factory=Counter[str])
    on_disk: Counter[str] = field(default_factory=Counter[str])
    together: Counter[tuple[str, ...]] = field(default_factory=Counter[tuple[str, ...]])
    idle: float = 0.0


@contextmanager
def watched(pids: Mapping[int, str]) -> Generator[Seen]:
    """Sample the processes until the block ends."""
    seen, is_over = Seen(), threading.Event()
    files = {name: os.open(f"/proc/{pid}/stat", os.O_RDONLY) for pid, name in pids.items()}

    def look() -> None:
        while not is_over.wait(LOOK_S):
            states = {name: _state(file) for name, file in files.items()}
            working = tuple(sorted(name for name, state in states.items() if state == WORKING))
            seen.samples += 1
            seen.working.update(working)
            seen.on_disk.update(name for name, state in states.items() if state == ON_DISK)
            seen.together[working] += 1

    thread = threading.Thread(target=look)
    before = _cores()
    thread.start()
    try:
        yield seen
    finally:
        is_over.set()
        thread.join()
        idle, total = (after - first for first, after in zip(before, _cores(), strict=True))
        seen.idle = idle / max(total, 1)
        for file in files.values():
            os.close(file)


def _state(file: int) -> str:
    try:
        text = os.pread(file, 512, 0).decode("ascii", errors="replace")
    except ProcessLookupError:
        return ""
    return text[text.rindex(")") + 2]


def _cores() -> tuple[int, int]:
    """Ticks of all cores so far: idle, and all."""
    ticks = [int(one) for one in Path("/proc/stat").read_text("ascii").partition("\n")[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


def _pids(system: System) -> dict[int, str]:
    found = {pid: name for name, pid in system.pids.items() if name in {"dispatcher", "worker"}}
    for row in system.sql.rows(BACKENDS):
        found[row["pid"]] = f"{row['name']}, backend {row['number']}"
    return found


def _told(what: str, seen: Seen) -> list[Sample]:
    def often(counts: Counter[T]) -> Iterator[tuple[T, float]]:
        """What is seen often enough, with its percentage."""
        for one, count in counts.most_common():
            if count >= SHOWN * seen.samples:
                yield one, 100 * count / seen.samples

    cores = os.cpu_count() or 1
    unwanted = sum(count * max(cores - len(names), 0) for names, count in seen.together.items())
    told = [
        Sample(f"{what}: cores idle", 100 * seen.idle, "%"),
        Sample(f"{what}: cores that nobody wants", 100 * unwanted / (cores * max(seen.samples, 1)), "%"),
    ]
    told += [Sample(f"{what}: {name} works", percent, "%") for name, percent in often(seen.working)]
    told += [Sample(f"{what}: {name} waits for the disk", percent, "%") for name, percent in often(seen.on_disk)]
    for names, percent in often(seen.together):
        if len(names) < cores:
            who = f"only {' and '.join(names)}" if names else "nobody"
            told.append(Sample(f"{what}: {who} works", percent, "%"))
    return told


def waits(stage: Stage) -> list[Sample]:
    """Of a drain from a tenth to nine tenths of its jobs, and of a steady state."""
    jobs = stage.size.drain_jobs
    with stage.fresh() as dsn, stage.system(dsn) as system:
        fill(system, Work("noop", jobs))
        system.client.resume()
        system.wait_begun(jobs // 10)
        with watched(_pids(system)) as drain:
            system.wait_begun(9 * jobs // 10)
        system.wait_done()
    seconds = WARM_UP_S + stage.size.steady_s + END_S
    with stage.fresh() as dsn, stage.system(dsn) as system, stage.producer(system, seconds):
        time.sleep(WARM_UP_S)
        with watched(_pids(system)) as steady:
            time.sleep(stage.size.steady_s)
    return [*_told("drain", drain), *_told("steady", steady)]
