"""The load generator: submit, drain, steady state and latency, through the real SDK and sockets."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from pulse.blocking import Client

SUBMIT_BATCH: Final = 1000
PAD: Final = "x" * 170  # args of about 200 bytes
POLL_S: Final = 0.1
DEADLINE_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured thing."""

    name: str
    value: float
    unit: str


def _jobs(first: int, count: int) -> list[dict[str, object]]:
    return [{"name": "noop", "args": {"number": number, "pad": PAD}} for number in range(first, first + count)]


def _completed(client: Client) -> int:
    counts = client.status()["jobs"]
    value = counts["COMPLETED"] if isinstance(counts, dict) else 0
    return int(str(value))


def submit_and_drain(client: Client, count: int) -> Iterator[Figure]:
    """Submit *count* jobs behind a closed gate, then open it and wait until all are completed."""
    done = _completed(client)
    client.pause(reason="bench")
    began_s = time.perf_counter()
    for first in range(0, count, SUBMIT_BATCH):
        client.submit_many(_jobs(first, min(SUBMIT_BATCH, count - first)))  # type: ignore[arg-type]
    yield Figure("submit", count / (time.perf_counter() - began_s), "jobs/s")
    client.resume()
    began_s = time.perf_counter()
    _wait_completed(client, done + count)
    yield Figure("drain", count / (time.perf_counter() - began_s), "jobs/s")


def _wait_completed(client: Client, target: int) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while _completed(client) < target:
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"the jobs were not completed within {DEADLINE_S:g} s")
        time.sleep(POLL_S)


def steady(client: Client, seconds: float, depth: int) -> Iterator[Figure]:
    """Keep about *depth* jobs waiting for *seconds*; how many are completed meanwhile."""
    first = done = _completed(client)
    sent, began_s = 0, time.perf_counter()
    while (elapsed_s := time.perf_counter() - began_s) < seconds:
        done = _completed(client)
        while sent - (done - first) < depth:
            client.submit_many(_jobs(sent, SUBMIT_BATCH))  # type: ignore[arg-type]
            sent += SUBMIT_BATCH
        time.sleep(POLL_S / 2)
    yield Figure("steady state", (_completed(client) - first) / elapsed_s, "jobs/s")
    _wait_completed(client, first + sent)


def latency(client: Client, count: int, per_second: float) -> Iterator[Figure]:
    """Submit *count* single jobs at an even pace; from the submit call to the start of the handler."""
    ids: list[UUID] = []
    began_s = time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, began_s + number / per_second - time.monotonic()))
        ids.append(client.submit("stamp", {"submitted_s": time.monotonic()}))
    values = sorted(1000 * float(str(client.wait(job_id, timeout_s=DEADLINE_S).result)) for job_id in ids)
    yield Figure("latency p50", statistics.median(values), "ms")
    yield Figure("latency p99", values[int(len(values) * 0.99) - 1], "ms")
