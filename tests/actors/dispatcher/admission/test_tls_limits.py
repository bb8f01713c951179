"""Handshakes begin so many a second, in turns."""

from __future__ import annotations

from types import SimpleNamespace

import anyio
import pytest
from anyio.lowlevel import checkpoint

from pulse.common.waiting import ASKER
from pulse_actors.dispatcher.admission import tls_limits as module
from pulse_actors.dispatcher.admission.tls_limits import A_SECOND, SHARE, TlsHandshakes

pytestmark = pytest.mark.anyio


async def test_whoever_is_alone_begins_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits who comes now and then; and its later costs count as the server's, as before."""
    monkeypatch.setattr(module, "A_SECOND", 1e-6)
    with anyio.fail_after(5):
        await TlsHandshakes().wait("a", "n")
    assert ASKER.get() is None


async def pauses_s(monkeypatch: pytest.MonkeyPatch, each_s: float) -> list[float]:
    now_s, slept_s = 100.0, list[float]()

    async def sleep(for_s: float) -> None:
        nonlocal now_s
        now_s += for_s
        slept_s.append(for_s)
        await checkpoint()

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(module, "anyio", SimpleNamespace(sleep=sleep, Lock=anyio.Lock))
    handshakes = TlsHandshakes()
    handshakes.each_s = each_s
    for _ in range(5):
        await handshakes.wait("a", "n")
    return slept_s


async def test_so_many_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await pauses_s(monkeypatch, 0.0) == pytest.approx([0.0, *[1 / A_SECOND] * 4])


async def test_those_that_take_long_are_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await pauses_s(monkeypatch, 0.002) == pytest.approx([0.0, *[0.002 / SHARE] * 4])


async def test_who_opens_many_does_not_go_before_who_opens_one() -> None:
    """The network with the fewest waiting goes first, whenever it came; within it each address in turn."""
    handshakes, order = TlsHandshakes(), list[str]()

    async def begin(source: str) -> None:
        await handshakes.wait(source, source[0])
        order.append(source)

    async with anyio.create_task_group() as tasks:
        for source in ("a1", "a1", "a1", "a2", "b1"):
            tasks.start_soon(begin, source)
    assert order == ["a1", "b1", "a2", "a1", "a1"]
