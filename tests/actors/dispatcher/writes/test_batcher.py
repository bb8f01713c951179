"""Merging: batches respect their weight and their order, and halving finds exactly the bad ones."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st

from pulse_actors.dispatcher.writes.batcher import Batcher, halve

pytestmark = pytest.mark.anyio


def own_weight(item: int) -> int:
    return item


class Handler:
    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gate = anyio.Event()

    async def __call__(self, items: Sequence[int]) -> None:
        self.batches.append(list(items))
        await self.gate.wait()

    async def until(self, count: int) -> None:
        with anyio.fail_after(5):
            while len(self.batches) < count:
                await checkpoint()


async def test_what_arrives_during_a_batch_shares_the_next() -> None:
    handler = Handler()
    batcher = Batcher(handler, own_weight, 100)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(batcher.run)
        batcher.put(1)
        await handler.until(1)
        for item in (2, 3, 4):
            batcher.put(item)
        assert len(batcher) == 3
        handler.gate.set()
        await handler.until(2)
        assert handler.batches == [[1], [2, 3, 4]]
        tasks.cancel_scope.cancel()


async def test_who_adds_the_next_item_at_once_keeps_no_other_waiting() -> None:
    async def handle(_items: Sequence[int]) -> None:
        await checkpoint()

    async def go_on() -> None:
        while True:
            batcher.put(1)
            await batcher.wait_idle()

    batcher = Batcher(handle, own_weight, 1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(batcher.run)
        tasks.start_soon(go_on)
        await checkpoint()
        with anyio.fail_after(5):
            await batcher.wait_idle()
        tasks.cancel_scope.cancel()


async def test_idle_means_that_all_is_handled() -> None:
    handler = Handler()
    batcher = Batcher(handler, own_weight, 1)
    with anyio.fail_after(5):
        await batcher.wait_idle()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(batcher.run)
        batcher.put(1)
        batcher.put(1)
        await handler.until(1)
        with anyio.move_on_after(0) as vain:
            await batcher.wait_idle()
        assert vain.cancelled_caught
        handler.gate.set()
        with anyio.fail_after(5):
            await batcher.wait_idle()
        assert handler.batches == [[1], [1]]
        batcher.put(5)  # idle again, then busy again
        with anyio.fail_after(5):
            await batcher.wait_idle()
        assert handler.batches == [[1], [1], [5]]
        tasks.cancel_scope.cancel()


async def test_an_error_of_the_handler_ends_the_run() -> None:
    async def broken(_items: Sequence[int]) -> None:
        await checkpoint()
        message = "bug"
        raise RuntimeError(message)

    batcher = Batcher(broken, own_weight, 1)
    batcher.put(1)
    with pytest.raises(RuntimeError, match="bug"):
        await batcher.run()


@given(st.lists(st.integers(1, 30), max_size=40), st.integers(1, 20))
def test_batches_keep_order_and_weight(items: list[int], limit: int) -> None:
    taken: list[list[int]] = []

    async def handle(batch: Sequence[int]) -> None:
        await checkpoint()
        taken.append(list(batch))

    async def main() -> None:
        batcher = Batcher(handle, own_weight, limit)
        for item in items:
            batcher.put(item)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(batcher.run)
            await batcher.wait_idle()
            tasks.cancel_scope.cancel()

    anyio.run(main)
    assert [item for batch in taken for item in batch] == items
    assert all(sum(batch) <= limit or len(batch) == 1 for batch in taken)
    assert all(sum(one) + other[0] > limit for one, other in pairwise(taken))


async def test_who_puts_more_than_is_handled_has_to_wait() -> None:
    """Two batches may wait; then there is room again when one of them is taken."""
    batcher = Batcher(Handler(), own_weight, 10)
    for item in (10, 10):
        batcher.put(item)
    with anyio.fail_after(5):
        await batcher.wait_accepting()
    batcher.put(1)
    passed = anyio.Event()

    async def wait() -> None:
        await batcher.wait_accepting()
        passed.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        assert not passed.is_set()
        tasks.start_soon(batcher.run)
        await anyio.wait_all_tasks_blocked()
        assert passed.is_set()
        tasks.cancel_scope.cancel()


@given(st.lists(st.booleans(), max_size=60))
def test_halving_finds_exactly_the_bad_ones(bad: list[bool]) -> None:
    items = list(enumerate(bad))
    written: list[tuple[int, bool]] = []
    alone: list[tuple[int, bool]] = []
    statements = 0

    async def write(some: Sequence[tuple[int, bool]]) -> bool:
        nonlocal statements
        await checkpoint()
        statements += 1
        if not any(is_bad for _, is_bad in some):
            written.extend(some)
        elif len(some) > 1:
            return False
        else:
            alone.extend(some)
        return True

    async def main() -> None:
        await halve(items, write)

    anyio.run(main)
    assert written == [item for item in items if not item[1]]
    assert alone == [item for item in items if item[1]]
    assert statements <= bool(items) + 2 * len(alone) * max(1, len(items).bit_length())
