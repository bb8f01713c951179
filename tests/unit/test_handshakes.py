"""Handshakes begin so many a second, in turns."""

from __future__ import annotations

import time

import anyio
import pytest

from pulse.common.fair_queue import ASKER
from pulse_actors.dispatcher.admission import tls_limits as module
from pulse_actors.dispatcher.admission.tls_limits import A_SECOND, SHARE, TlsHandshakes

pytestmark = pytest.mark.anyio


async def test_whoever_is_alone_begins_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits who comes now and then; and what is done for it later is done for the server, as before."""
    monkeypatch.setattr(module, "A_SECOND", 1e-6)
    with anyio.fail_after(5):
        await TlsHandshakes().wait("a", "n")
    assert ASKER.get() is None


async def test_so_many_a_second() -> None:
    """However many come."""
    handshakes, began_s = TlsHandshakes(), time.monotonic()
    for _ in range(5):
        await handshakes.wait("a", "n")
    assert time.monotonic() - began_s >= 4 / A_SECOND


async def test_those_that_take_long_are_fewer() -> None:
    """A long key takes no more of the loop than a short one."""
    handshakes = TlsHandshakes()
    handshakes.each_s = 0.002
    began_s = time.monotonic()
    for _ in range(5):
        await handshakes.wait("a", "n")
    assert time.monotonic() - began_s >= 4 * 0.002 / SHARE


async def test_who_opens_many_does_not_go_before_who_opens_one() -> None:
    """Whichever network has the fewest that wait goes first, whenever it came; and within it every address in turn."""
    handshakes, order = TlsHandshakes(), list[str]()

    async def begin(source: str) -> None:
        await handshakes.wait(source, source[0])
        order.append(source)

    async with anyio.create_task_group() as tasks:
        for source in ("a1", "a1", "a1", "a2", "b1"):
            tasks.start_soon(begin, source)
    assert order == ["a1", "b1", "a2", "a1", "a1"]


async def test_who_gives_up_takes_nobodys_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deadline ends the wait, and the next one goes on."""
    handshakes = TlsHandshakes()
    await handshakes.wait("a", "n")
    handshakes._opens_s = time.monotonic() + 60
    with anyio.move_on_after(0.01) as scope:
        await handshakes.wait("a", "n")
    assert scope.cancelled_caught
    handshakes._opens_s = 0.0
    with anyio.fail_after(5):
        await handshakes.wait("b", "n")
