"""
A process that submits through the SDK: `python -m bench.producer SOCKET COUNT-FILE --seconds S`.

It keeps about `--depth` jobs waiting, by what the handlers have counted; or submits `--rate` jobs per second.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.count import Count
from bench.load import SUBMIT_BATCH, new_jobs
from pulse.client.client import Client

LOOK_S: Final = 0.002
TURN_S: Final = 0.01  # at a given rate: one call per turn
MOST_WAITING: Final = 20  # times the depth: beyond it the rate is more than can be done


def by_depth(count: Count, depth: int, end_s: float) -> Iterator[int]:
    """How many jobs to submit now, so that *depth* wait."""
    sent = 0
    while time.monotonic() < end_s:
        if sent - count.value > depth - SUBMIT_BATCH:
            time.sleep(LOOK_S)
        else:
            yield SUBMIT_BATCH
            sent += SUBMIT_BATCH


def by_rate(count: Count, rate: float, depth: int, end_s: float) -> Iterator[int]:
    """How many jobs to submit now, so that it is *rate* per second."""
    began_s, sent = time.monotonic(), 0
    while (now_s := time.monotonic()) < end_s:
        due = min(SUBMIT_BATCH, int((now_s - began_s) * rate) - sent)
        if due > 0 and sent - count.value < MOST_WAITING * depth:
            yield due
            sent += due
        time.sleep(max(0.0, now_s + TURN_S - time.monotonic()))


def main() -> None:
    """Submit until the time is over."""
    parser = argparse.ArgumentParser(prog="python -m bench.producer", description=__doc__)
    parser.add_argument("socket", type=Path)
    parser.add_argument("count", type=Path)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--depth", type=int, default=5000)
    parser.add_argument("--rate", type=float, default=0.0, help="jobs per second; 0: as many as keep the depth")
    options = parser.parse_args()
    end_s, count = time.monotonic() + options.seconds, Count(options.count)
    sizes = (
        by_rate(count, options.rate, options.depth, end_s) if options.rate else by_depth(count, options.depth, end_s)
    )
    sent = 0
    with Client(options.socket) as client:
        for size in sizes:
            client.submit_many(new_jobs("noop", sent, size))
            sent += size


if __name__ == "__main__":
    main()
