"""The scene `hooks`: what middleware and `pulse.current()` add to a job that does nothing, in the runner alone."""

from __future__ import annotations

import asyncio
import time
from typing import Final

import anyio

import pulse
from bench.results import Sample
from bench.stage import Stage
from pulse.app.outcome import Outcome
from pulse.app.transactions.fence import FencePhase
from pulse.app.workflows.receipt import Receipt
from pulse.protocol import Assignment
from pulse.worker.execution.attempt import Attempt
from pulse.worker.execution.runner import make_runner
from pulse.worker.execution.server_reader import ServerReader

JOBS: Final = 5_000  # of one turn; the handlers take turns, so that all meet the same noise
TURNS: Final = 20
ARGS: Final = '{"number": 7, "pad": "x"}'

app = pulse.App()


async def passes(ctx: pulse.Context, call_next: pulse.CallNext) -> object:  # noqa: ARG001 - it only passes on
    """Do nothing."""
    return await call_next()


async def looks(ctx: pulse.Context, call_next: pulse.CallNext) -> object:
    """Read what a metric needs."""
    _ = ctx.name, ctx.topic, ctx.attempt
    return await call_next()


async def nothing(number: int, pad: str) -> None:
    """Nothing."""


@app.handler("current")
async def current(number: int, pad: str) -> None:  # noqa: ARG001 - they only travel
    """Ask whose job this is."""
    pulse.current()


app.handler("none")(nothing)
app.handler("one", middleware=[passes])(nothing)
app.handler("three", middleware=[passes] * 3)(nothing)
app.handler("looks", middleware=[looks])(nothing)


class _Owner:
    """Counts what has ended."""

    identity = None
    schema = "pulse"

    def __init__(self) -> None:
        self.left = 0
        self.over = asyncio.Event()

    def ended(self, attempt: Attempt, ending: Outcome) -> None:  # noqa: ARG002 - as the runner calls it
        """One more."""
        self.left -= 1
        if not self.left:
            self.over.set()

    def raised(self, error: BaseException) -> None:
        """A broken assumption stops the measurement."""
        raise error

    def lease_lost(self, attempt: Attempt) -> bool:
        """Never."""
        return attempt.lost

    def progressed(self, attempt: Attempt, text: str) -> None:
        """Nobody reports here."""

    def checkpointed(self, attempt: Attempt, text: str, receipt: Receipt | None = None) -> None:
        """Nobody saves here."""

    @property
    def reader(self) -> ServerReader:
        """Nobody asks here."""
        return ServerReader(None, None)

    def fenced(self, attempt: Attempt, phase: FencePhase) -> None:
        """Nobody has a transaction here."""


def hooks(_stage: Stage) -> list[Sample]:
    """CPU time per job of each handler."""
    took = asyncio.run(_measured())
    bare = took.pop("none")
    against = f"no middleware: {bare:.1f} µs"
    names = {"one": "middleware that does nothing", "three": "three of them", "looks": "one that reads three fields",
             "current": "pulse.current()"}  # fmt: skip
    return [Sample(f"a job with {names[name]}", value, "µs", bare, against) for name, value in took.items()]


async def _measured() -> dict[str, float]:
    """The best turn of each: noise only adds."""
    best: dict[str, float] = {name: float("inf") for name in ("none", "one", "three", "looks", "current")}
    for _ in range(TURNS):
        for name, value in best.items():
            best[name] = min(value, await _turn(name))
    return best


async def _turn(name: str) -> float:
    owner = _Owner()
    attempts = [
        Attempt(Assignment(number.to_bytes(16), 1, name, "t", ARGS, None, 30.0), app.handlers[name], 0.0)
        for number in range(JOBS)
    ]
    owner.left, took_s = JOBS, 0.0
    async with anyio.create_task_group() as group:
        runner = make_runner(owner, group, 1)
        began_s = time.process_time()
        for attempt in attempts:
            runner.start(attempt)
        await owner.over.wait()
        took_s = time.process_time() - began_s
    return 1e6 * took_s / JOBS
