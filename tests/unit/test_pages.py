"""Of all who ask for long answers one has its turn, and others are served in between."""

from __future__ import annotations

import time

import anyio
import pytest

from pulse.errors import UnavailableError
from pulse.store.turns import ASKER
from pulse_actors.dispatcher import pages as module
from pulse_actors.dispatcher.pages import Pages

pytestmark = pytest.mark.anyio


async def test_who_asks_for_many_does_not_go_before_who_asks_for_one() -> None:
    """Whoever has the fewest of them goes first, whenever it came."""
    pages, order = Pages(), list[str]()

    async def ask(asker: str) -> None:
        ASKER.set(asker)
        async with pages.turn():
            order.append(asker)
            await anyio.wait_all_tasks_blocked()

    async with anyio.create_task_group() as tasks:
        for asker in ("greedy", "greedy", "greedy", "other"):
            tasks.start_soon(ask, asker)
    assert order == ["greedy", "other", "greedy", "greedy"]


@pytest.mark.parametrize("is_awaited", [False, True])
async def test_behind_each_there_is_a_rest_where_somebody_waits(is_awaited: bool) -> None:
    """As long as it took; whoever is alone goes on at once."""
    pages, ended_s = Pages(), 0.0

    async def ask() -> None:
        async with pages.turn():
            assert (time.monotonic() - ended_s >= 0.02) is is_awaited

    async with anyio.create_task_group() as tasks:
        async with pages.turn():
            if is_awaited:
                tasks.start_soon(ask)
                await anyio.wait_all_tasks_blocked()
            time.sleep(0.02)  # noqa: ASYNC251 - the work that a page is
        ended_s = time.monotonic()
        if not is_awaited:
            await ask()


async def test_whoever_waits_for_long_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """And has taken nobody's turn."""
    monkeypatch.setattr(module, "WAIT_S", 0.01)
    pages = Pages()
    async with pages.turn():
        with pytest.raises(UnavailableError, match="no turn within"):
            async with pages.turn():
                pass
    async with pages.turn():
        pass
