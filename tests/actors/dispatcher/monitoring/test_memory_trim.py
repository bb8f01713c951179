"""Freed memory goes back when there is more than there was, and not before."""

from __future__ import annotations

import errno

import anyio
import pytest

from pulse_actors.dispatcher.monitoring import memory_trim
from pulse_actors.dispatcher.monitoring.memory_trim import MORE_BYTES, MemoryTrim, allocators_trim, resident_bytes
from tests.support.waiting import until_async


def test_it_is_trimmed_when_there_is_more_than_after_the_last_time() -> None:
    """A little more is not worth it; without such a function in the allocator nothing happens."""
    now, trimmed = [50 * MORE_BYTES], list[int]()

    def trim(_pad: int) -> None:
        trimmed.append(now[0])
        now[0] -= MORE_BYTES // 2

    trimming = MemoryTrim(trim, lambda: now[0])
    trimming.look()
    first = now[0]
    for more, count in ((MORE_BYTES, 1), (MORE_BYTES + 1, 2), (MORE_BYTES // 2 + 2, 2)):
        now[0] = first + more
        trimming.look()
        assert len(trimmed) == count
    MemoryTrim(None, lambda: 2**40).look()


def test_the_holes_go_back() -> None:
    trim = allocators_trim()
    if trim is None:
        return
    pieces = [bytearray(8000) for _ in range(5000)]
    del pieces[::2]
    before = resident_bytes()
    trim(0)
    assert resident_bytes() < before - 5000 * 8000 // 8
    assert len(pieces) == 2500


@pytest.mark.anyio
async def test_it_goes_on_when_it_cannot_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_trim, "LOOK_S", 0.0)
    looks = list[int]()

    def resident() -> int:
        looks.append(1)
        raise OSError(errno.EMFILE, "no descriptor")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(MemoryTrim(lambda _pad: None, resident).run)
        await until_async(lambda: len(looks) > 1, "another look")
        tasks.cancel_scope.cancel()
