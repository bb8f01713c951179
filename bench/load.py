"""The jobs that are submitted, and one measured thing."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from pulse.client.client import Client
from pulse.client.requests import NewJob

SUBMIT_BATCH: Final = 1000  # jobs of one call
SUBMIT_BYTES: Final = 4 * 1024 * 1024  # of args in one call: half of the longest frame
ARG_BYTES: Final = 200
_WITHOUT_PAD: Final = 30  # bytes of {"number": 123456, "pad": ""}


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured thing."""

    name: str
    value: float
    unit: str


def spread(times: Mapping[str, Sequence[float]]) -> Iterator[Figure]:
    """Of what was measured again and again, in milliseconds: the median and the longest of each."""
    for what, values in times.items():
        yield Figure(f"{what}, median", statistics.median(values), "ms")
        yield Figure(f"{what}, longest", max(values), "ms")


def new_jobs(handler: str, first: int, count: int, arg_bytes: int = ARG_BYTES) -> list[NewJob]:
    """*count* jobs with args of about *arg_bytes*."""
    pad = "x" * max(0, arg_bytes - _WITHOUT_PAD)
    return [{"name": handler, "args": {"number": number, "pad": pad}} for number in range(first, first + count)]


def submit_evenly(submit_one: Callable[[dict[str, float]], UUID], count: int, per_second: float) -> list[UUID]:
    """*count* single jobs at an even pace, each stamped with the time of its call."""
    ids: list[UUID] = []
    began_s = time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, began_s + number / per_second - time.monotonic()))
        ids.append(submit_one({"submitted_s": time.monotonic()}))
    return ids


def batches(count: int, arg_bytes: int = ARG_BYTES) -> Iterator[tuple[int, int]]:
    """First number and length of each call that together submit *count* jobs."""
    most = max(1, min(SUBMIT_BATCH, SUBMIT_BYTES // arg_bytes))
    return ((first, min(most, count - first)) for first in range(0, count, most))


def submit(client: Client, handler: str, count: int, arg_bytes: int = ARG_BYTES) -> float:
    """Submit *count* jobs; jobs per second."""
    began_s = time.perf_counter()
    for first, length in batches(count, arg_bytes):
        client.submit_many(new_jobs(handler, first, length, arg_bytes))
    return count / (time.perf_counter() - began_s)
