"""
`python -m bench.commands`: how long commands take as whole processes, with so many jobs in the table.

A system of its own, the rows of `bench.dashboard`. Each command is a process as a user starts it, its output a pipe;
they take turns, one at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Final

from bench.dashboard import APP, fill, runtime_dir
from bench.load import Figure, spread
from pulse.ops.demo.server import running_server

DEADLINE_S: Final = 300.0
COMMANDS: Final = (
    "--help", "ctl status", "ctl logs", "ctl top --once", "ctl topics list", "ctl jobs get {id}", "ctl jobs list",
    "ctl jobs list --oldest --status PENDING", "ctl jobs list --status DEAD_LETTERED --topic topic-1",
    "ctl jobs list --status COMPLETED --name name-7", "ctl jobs list --name absent", "ctl jobs list --error absent",
    "ctl jobs retry --status DEAD_LETTERED --topic topic-1 --dry-run", "ctl jobs cancel --topic topic-2 --dry-run",
    "doctor",
)  # fmt: skip


def took_ms(line: str, env: dict[str, str]) -> float:
    """One run of a command."""
    start_s = time.perf_counter()
    command = [sys.executable, "-m", "pulse.cli.main", *shlex.split(line)]
    done = subprocess.run(command, env=env, capture_output=True, timeout=DEADLINE_S, check=False)
    spent_ms = 1000 * (time.perf_counter() - start_s)
    assert done.returncode == 0 or line == "doctor", done.stderr.decode()
    return spent_ms


def measured(jobs: int, rounds: int, commands: Sequence[str] = COMMANDS) -> Iterator[Figure]:
    """The median and the longest time of each command."""
    with running_server(APP, {}, processes=2) as client:
        database = client.status()["database"]
        assert isinstance(database, dict)
        dsn = str(database["dsn"])
        one = asyncio.run(fill(dsn, jobs))
        env = {**os.environ, "PULSE_RUNTIME_DIR": str(runtime_dir(dsn))}
        times: dict[str, list[float]] = {line: [] for line in commands}
        for _ in range(rounds):
            for line in commands:
                times[line].append(took_ms(line.format(id=one), env))
        yield from spread(times)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.commands", description="commands as whole processes")
    parser.add_argument("--jobs", type=int, default=1_000_000, help="rows in the table")
    parser.add_argument("--rounds", type=int, default=20, help="how often each command is run")
    parser.add_argument("--only", default="", metavar="TEXT", help="commands that begin so")
    options = parser.parse_args()
    for figure in measured(options.jobs, options.rounds, [line for line in COMMANDS if line.startswith(options.only)]):
        print(f"{figure.name:<72} {figure.value:8.1f} {figure.unit}", flush=True)


if __name__ == "__main__":
    main()
