"""Turns: the source with the fewest requests under way goes first, and no place is lost."""

from __future__ import annotations

import asyncio
from contextvars import copy_context

import pytest
from anyio.lowlevel import checkpoint

from pulse.common.waiting import ASKER, Turns

pytestmark = pytest.mark.anyio


class Line:
    def __init__(self, places: int = 1) -> None:
        self.turns = Turns(places)
        self.served: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.end = asyncio.Event()

    async def come(self, who: object, name: str) -> asyncio.Task[None]:
        async def wait() -> None:
            async with self.turns.turn():
                self.served.append(name)
                await self.end.wait()

        context = copy_context()
        context.run(ASKER.set, who)
        task = asyncio.get_running_loop().create_task(wait(), context=context)
        self.tasks.append(task)
        await checkpoint()
        await checkpoint()
        return task

    async def over(self) -> None:
        self.end.set()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def test_who_asks_for_little_does_not_wait_for_who_asks_for_much() -> None:
    """A first request goes before others of a source that has many; the server's own go before all; else by arrival."""
    line = Line()
    for number in range(4):
        await line.come("greedy", f"greedy {number}")
    await line.come("modest", "modest 0")
    await line.come("other", "other 0")
    await line.come("modest", "modest 1")
    await line.come(None, "own 0")
    await line.come(None, "own 1")
    assert (line.served, line.turns.waiting) == (["greedy 0"], 8)
    await line.over()
    expected = ["own 0", "own 1", "modest 0", "other 0", "greedy 1", "modest 1", "greedy 2", "greedy 3"]
    assert line.served == ["greedy 0", *expected]
    assert line.turns.waiting == 0


async def test_what_is_over_counts_no_more() -> None:
    turns = Turns(2)
    ASKER.set("greedy")
    for _ in range(5):
        async with turns.turn():
            pass
    assert not turns._under_way
    line = Line()
    await line.come("a", "a 0")
    await line.come("a", "a 1")
    await line.over()
    line.end.clear()
    await line.come("b", "b 0")
    await line.come("b", "b 1")
    await line.come("a", "a again")
    await line.over()
    assert line.served[2:] == ["b 0", "a again", "b 1"]


async def test_who_gives_up_takes_no_place_away() -> None:
    line = Line()
    await line.come("a", "first")
    second = await line.come("b", "second")
    await line.come("c", "third")
    second.cancel()
    await line.over()
    assert (line.served, line.turns._free) == (["first", "third"], 1)


async def test_who_gives_up_at_its_turn_gives_the_place_on() -> None:
    """A waiter that gives up in the moment of its turn does not lose the place for all."""
    line = Line()
    await line.come("a", "first")
    second = await line.come("b", "second")
    line.end.set()
    while line.turns.waiting:  # noqa: ASYNC110 - until the first one has gone: the second has the place, and knows not
        await asyncio.sleep(0)
    assert line.served == ["first"]
    second.cancel()
    await line.come("c", "third")
    await line.over()
    assert (line.served, line.turns._free) == (["first", "third"], 1)


async def test_who_gives_up_is_not_kept() -> None:
    line = Line()
    await line.come("a", "first")
    waiting = [await line.come("b", str(number)) for number in range(9)]
    for one in waiting[1:]:
        one.cancel()
    await asyncio.sleep(0)
    assert len(line.turns._line) == line.turns.waiting == 1
    more = [await line.come("b", f"more {number}") for number in range(4)]
    for one in more[:2]:
        one.cancel()
    await asyncio.sleep(0)
    assert len(line.turns._line) == 5
    await line.over()
    assert line.served == ["first", "0", "more 2", "more 3"]
    assert (line.turns._left, line.turns._line) == (0, [])
