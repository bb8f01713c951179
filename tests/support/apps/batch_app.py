"""Handlers of batches, as workers of the tests serve them."""
# ruff: noqa: ASYNC110 - handlers poll small local files, which tests use as switches

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio

import pulse

app = pulse.App()
WAIT_S: Final = 0.3


@dataclass
class Order:
    """
    What a job wants.

    Attributes:
        number: Names it.
        directory: Each call leaves a file there: its jobs.
        then: Once a file of that name is there, it goes on; '': at once.
        fails: Whether it fails.
    """

    number: int
    directory: Path
    then: str = ""
    fails: bool = False


Orders = list[pulse.BatchJob[Order]]


def note(jobs: Orders) -> Path:
    """Leave a file with the numbers and attempts of a call."""
    directory = jobs[0].args.directory
    path = directory / f"call-{time.monotonic_ns()}"
    path.with_suffix(".part").write_text(" ".join(f"{job.args.number}/{job.attempt}" for job in jobs))
    return path.with_suffix(".part").rename(path)


async def gate(jobs: Orders) -> None:
    for job in jobs:
        while job.args.then and not (job.args.directory / job.args.then).exists():
            await anyio.sleep(0.01)


def answers(jobs: Orders) -> list[object]:
    return [ValueError(f"order {job.args.number}") if job.args.fails else job.args.number for job in jobs]


@app.handler("orders", batch=4, batch_wait_s=WAIT_S)
async def orders(jobs: Orders) -> list[object]:
    note(jobs)
    await gate(jobs)
    return answers(jobs)


@app.handler("plain-orders", batch=4, batch_wait_s=WAIT_S)
def plain_orders(jobs: Orders) -> list[object]:
    note(jobs)
    anyio.run(gate, jobs)
    return answers(jobs)


@app.handler("hundred", batch=100, batch_wait_s=5.0, topic="hundred")
async def hundred(jobs: Orders) -> list[object]:
    note(jobs)
    await gate(jobs)
    return answers(jobs)


@app.handler("poisonous", batch=4, batch_wait_s=WAIT_S, topic="poisonous")
async def poisonous(jobs: Orders) -> None:
    """The process dies of one of the orders, wherever it is in the batch."""
    note(jobs)
    if any(job.args.fails for job in jobs):
        os.kill(os.getpid(), signal.SIGKILL)


@app.handler("single")
async def single(directory: Path, then: str) -> None:
    while not (directory / then).exists():
        await anyio.sleep(0.01)
