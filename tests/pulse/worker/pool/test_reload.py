"""When ``pulse worker --reload`` starts another pool, by the exit codes of those before."""

from __future__ import annotations

from collections.abc import Iterator

import anyio
import pytest

from pulse.worker.pool.reload import _Reloader
from tests.support.waiting import until_async

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def made() -> Iterator[_Reloader]:
    reloader = _Reloader("jobs:app", [])
    yield reloader
    reloader._waker._reader.close()
    reloader._waker._writer.close()


def ending(made: _Reloader, monkeypatch: pytest.MonkeyPatch, *codes: int, asked: bool) -> list[int]:
    """Its pools end with these codes, one after the other; *asked*: because a file has changed."""
    left = [*codes]

    async def run_pool() -> int:
        made._is_asked = asked
        return left.pop(0)

    monkeypatch.setattr(made, "_run_pool", run_pool)
    return left


async def test_a_pool_that_the_server_has_ended_is_not_started_again(
    made: _Reloader, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = ending(made, monkeypatch, 0, 1, asked=False)
    assert await made._run_pools() == 0
    assert left == [1]


async def test_a_pool_that_fails_waits_for_a_change(made: _Reloader, monkeypatch: pytest.MonkeyPatch) -> None:
    left = ending(made, monkeypatch, 1, 0, asked=False)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made._run_pools)
        await until_async(lambda: left == [0], "the first pool")
        await anyio.wait_all_tasks_blocked()
        assert left == [0]
        made._changed.wake()
    assert left == []


async def test_after_a_signal_no_other_is_started(made: _Reloader, monkeypatch: pytest.MonkeyPatch) -> None:
    left = ending(made, monkeypatch, 3, 0, asked=True)
    made._signals.count = 1
    assert await made._run_pools() == 3
    assert left == [0]
