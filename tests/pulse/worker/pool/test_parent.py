"""The slots of a pool, without processes: when one stays empty, and when a process is heard no more."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from pulse.worker.options import PoolOptions
from pulse.worker.pool.parent import WorkerPool
from pulse.worker.pool.proxy_heartbeat import Watch

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    made = WorkerPool(PoolOptions(app="x:y", processes=1))
    yield made
    made._waker._reader.close()
    made._waker._writer.close()


class Made:
    """Processes that are taken, one after the other; each drains at once."""

    def __init__(self, *taken: Any) -> None:
        self._taken = [*taken]

    async def take(self) -> Any:
        return self._taken.pop(0)

    def begin(self, slot: int) -> None:
        """It has no name."""


async def test_a_slot_that_gets_no_process_ends(pool: WorkerPool) -> None:
    """The pool was stopped while it waited for one."""
    pool._spares = Made(None)  # type: ignore[assignment]
    await pool._keep(0)
    assert pool._kept == 0


async def test_a_slot_whose_process_was_drained_ends(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the pool goes on: others may still have jobs."""

    async def end(_child: object) -> int:
        return 0

    monkeypatch.setattr(pool, "_see_through", end)
    monkeypatch.setattr(pool, "_after", lambda *_: None)
    pool._spares = Made(Made())  # type: ignore[assignment]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pool._keep, 0)
        await anyio.wait_all_tasks_blocked()
        assert pool._kept == 0
        tasks.cancel_scope.cancel()


async def test_notes_that_end_are_waited_for_no_more(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe whose other end is closed stays readable: the parent would go round and round."""
    read, write = os.pipe()
    os.close(write)
    taken: list[int] = []

    class Child:
        notes_fd = read

    def take(child: Child, _watch: Watch) -> bool:
        taken.append(child.notes_fd)
        return len(taken) < 3

    monkeypatch.setattr(pool, "_take_notes", take)
    with anyio.fail_after(2.0):
        await pool._listen(Child(), Watch(7))  # type: ignore[arg-type]
    os.close(read)
    assert taken == [read] * 3
