"""A handler process that fills and stops batches, without its connection."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
import structlog

import pulse
from pulse.app.outcome import Outcome
from pulse.protocol import Assignment
from pulse.worker.execution import stacks
from pulse.worker.execution.attempt import Attempt
from pulse.worker.execution.batch import Called
from pulse.worker.options import HostOptions, PoolOptions
from pulse.worker.service import Service
from pulse.worker.status_pipe import NoteWriter

pytestmark = pytest.mark.anyio
app = pulse.App()


@app.handler("many", batch=3, batch_wait_s=0.01)
def many(jobs: list[pulse.BatchJob[Any]]) -> None: ...


class Told:
    """A connection that keeps the capacities sent on it, and lets a test wait for its next turn."""

    def __init__(self) -> None:
        self.capacities: list[int] = []
        self.turn = anyio.Event()

    def send_capacity(self, capacity: int) -> None:
        self.capacities.append(capacity)

    def wake(self) -> None:
        self.turn.set()


class Runner:
    def __init__(self) -> None:
        self.started: list[Called] = []

    def start(self, called: Called) -> None:
        self.started.append(called)


@pytest.fixture
async def made() -> AsyncIterator[Service]:
    reader, writer = os.pipe()
    os.close(reader)
    pool = PoolOptions(app="x:y", concurrency=2)
    options = HostOptions(pool=pool, name="w", parent_pid=os.getpid(), name_fd=0, notes_fd=0, stack_fd=0)
    service = Service(options, app, NoteWriter(writer), structlog.get_logger())
    service._told = 2
    service._runner = Runner()
    yield service
    os.close(writer)
    service._waker._reader.close()
    service._waker._writer.close()


def assign(service: Service, *numbers: int, **more: Any) -> None:
    jobs = [Assignment(one.to_bytes(16), 1, "many", "t", "{}", more.get("timeout_s"), 30.0) for one in numbers]
    service._ledger.assign(jobs, more.get("at_s", 0.0))
    service.assigned()


def start(service: Service) -> list[Attempt]:
    attempts = service._ledger.take_startable()
    service.start(attempts)
    return attempts


async def test_a_batch_is_called_once_and_all_its_jobs_are_named(made: Service) -> None:
    assign(made, 1, 2, 3)
    attempts = start(made)
    assert [one.named for one in attempts] == [True, True, True]
    assert made._runner.started == [attempts[0].batch]  # type: ignore[attr-defined]  # the one above


async def test_the_server_hears_how_many_jobs_there_is_room_for(made: Service) -> None:
    """More while a batch fills and runs, one frame for each change; the usual number when it is over."""
    told = made._connection = Told()  # type: ignore[assignment]  # that is all that is called
    assign(made, 1)
    assert told.capacities == [4]
    assign(made, 2, 3)
    attempts = start(made)
    assert told.capacities == [4]
    assign(made, 4)
    assert told.capacities == [4, 6]
    for one in attempts:
        made.ended(one, Outcome("ok", None))
    assert told.capacities == [4, 6, 4]
    made._ledger.drain()
    made._tell_capacity()
    assert told.capacities == [4, 6, 4, 0]


async def test_a_batch_that_does_not_fill_is_started_in_time(made: Service) -> None:
    """Whether its wait began before or after the process looked; nothing is done while nothing waits."""
    told = made._connection = Told()  # type: ignore[assignment]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made._watch_batches)
        await anyio.wait_all_tasks_blocked()
        for number in (1, 2):
            told.turn = anyio.Event()
            assign(made, number, at_s=time.monotonic())
            assert start(made) == []
            with anyio.fail_after(10):
                await told.turn.wait()
            assert len(start(made)) == 1
        tasks.cancel_scope.cancel()


async def test_what_came_along_and_finds_no_place_is_given_back(made: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs are sent by topic: to fill a batch, others may come."""
    monkeypatch.setattr("pulse.worker.service.PERIOD_S", 0.01)
    told = made._connection = Told()  # type: ignore[assignment]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made._keep_pace)
        await anyio.wait_all_tasks_blocked()
        assign(made, *range(1, 8))
        assert len(start(made)) == 6
        told.turn = anyio.Event()
        with anyio.fail_after(10):
            await told.turn.wait()
        tasks.cancel_scope.cancel()
    assert [result[:3] for result in made._ledger.take_report(1, 10_000)] == [((7).to_bytes(16), 1, "release")]


@pytest.mark.parametrize("reason", ["timeout", "stalled"])
async def test_a_limit_that_one_job_passes_ends_the_call(
    made: Service, monkeypatch: pytest.MonkeyPatch, reason: Any
) -> None:
    looks: list[object] = []

    def look(one: object) -> str:
        looks.append(one)
        return "here"

    monkeypatch.setattr(stacks, "where_is", look)
    assign(made, 1, 2, 3)
    first, second, third = start(made)
    made.stop(second.pair, reason)
    assert [one.stopped for one in (first, second, third)] == [reason] * 3
    assert [one.stack for one in (first, second, third)] == ["here"] * 3
    assert len(looks) == 1


@pytest.mark.parametrize("reason", ["canceled", "lost", "drain"])
async def test_what_concerns_one_job_stops_only_that(made: Service, reason: Any) -> None:
    assign(made, 1, 2, 3)
    first, second, third = start(made)
    made.stop(second.pair, reason)
    assert [one.stopped for one in (first, second, third)] == [None, reason, None]


async def test_each_job_of_a_batch_is_watched(made: Service) -> None:
    assign(made, 1, 2, 3, timeout_s=5.0)
    attempts = start(made)
    due = made._deadlines.due(float("inf"))
    assert {one for one, _ in due} == set(attempts)
