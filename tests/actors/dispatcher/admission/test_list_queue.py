"""Of all sources that ask for long answers one has its turn, and others are served in between."""

from __future__ import annotations

import time

import anyio
import pytest

from pulse.common.waiting import ASKER
from pulse.errors import UnavailableError
from pulse_actors.dispatcher.admission import list_queue as module
from pulse_actors.dispatcher.admission.list_queue import ListQueue

pytestmark = pytest.mark.anyio


async def test_who_asks_for_many_does_not_go_before_who_asks_for_one() -> None:
    """The source with the fewest goes first, whenever it came."""
    pages, order = ListQueue(), list[str]()

    async def ask(asker: str) -> None:
        ASKER.set(asker)
        async with pages.turn():
            order.append(asker)
            await anyio.wait_all_tasks_blocked()

    async with anyio.create_task_group() as tasks:
        for asker in ("greedy", "greedy", "greedy", "other"):
            tasks.start_soon(ask, asker)
    assert order == ["greedy", "other", "greedy", "greedy"]


async def test_behind_each_there_is_a_rest_where_somebody_waits() -> None:
    pages, ended_s, rests = ListQueue(), 0.0, list[float]()

    async def ask() -> None:
        async with pages.turn():
            rests.append(time.monotonic() - ended_s)

    async with anyio.create_task_group() as tasks, pages.turn():
        tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        time.sleep(0.02)  # noqa: ASYNC251 - the work that a page is
        ended_s = time.monotonic()
    assert rests[0] >= 0.02


async def test_whoever_is_alone_goes_on_at_once() -> None:
    pages = ListQueue()
    async with pages.turn():
        time.sleep(0.002)  # noqa: ASYNC251 - the work that a page is
    assert pages._opens_s <= time.monotonic()


async def test_whoever_waits_for_long_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAIT_S", 0.01)
    pages = ListQueue()
    async with pages.turn():
        with pytest.raises(UnavailableError, match="no turn within"):
            async with pages.turn():
                pass
    async with pages.turn():
        pass
