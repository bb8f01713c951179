"""`python -m bench`: measure this machine; a table for people, `--json` for machines."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Iterator

from bench import load
from bench.load import Figure
from pulse.blocking import Client
from pulse.demo.server import running_server


def figures(client: Client, options: argparse.Namespace) -> Iterator[Figure]:
    """Everything that is measured, in order."""
    yield from load.latency(client, options.latency_jobs, per_second=50.0)
    yield from load.submit_and_drain(client, options.jobs)
    yield from load.steady(client, options.seconds, depth=5000)


def main() -> None:
    """Start a pulse of its own, measure it, and print what was found."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--jobs", type=int, default=50_000, help="jobs of the drain (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of the steady state (default: %(default)s)")
    parser.add_argument("--latency-jobs", type=int, default=500, help="jobs of the latency (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=1, help="worker processes (default: %(default)s)")
    parser.add_argument("--concurrency", type=int, default=1000, help="jobs held by each (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of the table")
    options = parser.parse_args()
    machine = f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}"
    found: list[Figure] = []
    with running_server("bench.app:app", {}, processes=options.processes, concurrency=options.concurrency) as client:
        for figure in figures(client, options):
            found.append(figure)
            if not options.json:
                print(f"{figure.name:<16} {figure.value:>12,.1f} {figure.unit}", flush=True)
    if options.json:
        print(json.dumps({"machine": machine, "figures": {one.name: [one.value, one.unit] for one in found}}))
    else:
        print(f"({machine}; {options.processes} worker process, concurrency {options.concurrency})")


if __name__ == "__main__":
    main()
