"""
Time and chance of a simulated run, so that the run is a function of its seed.

Trio's clock is a mock that jumps to the next deadline as soon as everybody waits; trio's scheduler and Python's random
numbers are seeded; ``time.monotonic`` returns trio's time. What is left is the order of sets of strings:
that wants PYTHONHASHSEED, see ``__main__``.
"""

from __future__ import annotations

import gc
import heapq
import random
import time
import warnings
from collections.abc import Awaitable, Callable
from typing import Final

import trio
import trio.testing
from trio._core import _run as trio_run

from tests.simulation.machine.process import Gatekeeper

BEGIN_S: Final = 1000.0  # like a machine that has been up for a while: no clock begins at 0
TICK_S: Final = 1e-6  # that code takes; else rounding could make a loop wait for a moment that never quite comes


class Timers:
    """Later events of the world outside of all processes: network, database, faults."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._news = trio.Event()

    def after(self, delay_s: float, act: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (trio.current_time() + delay_s, self._count, act))
        if self._heap[0][1] == self._count:
            self._news.set()

    async def run(self) -> None:
        while True:
            with trio.move_on_at(self._heap[0][0] if self._heap else float("inf")):
                await self._news.wait()
            self._news = trio.Event()
            now_s = trio.current_time()
            while self._heap and self._heap[0][0] <= now_s:
                heapq.heappop(self._heap)[2]()


def run(main: Callable[[], Awaitable[None]], seed: int) -> None:
    clock = trio.testing.MockClock(autojump_threshold=0)
    clock.jump(BEGIN_S)
    clock.current_time = lambda: clock._virtual_base  # type: ignore[method-assign] # its rate is 0: as before, but fast
    clock._autojump = lambda: _jump(clock)  # type: ignore[method-assign]
    real, time.monotonic = time.monotonic, clock.current_time
    chance, allowed = random.getstate(), trio_run._ALLOW_DETERMINISTIC_SCHEDULING
    trio_run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc] # pyright: ignore[reportConstantRedefinition]
    trio_run._r.seed(seed)
    random.seed(seed)
    gc.disable()  # generators that are dropped run code of theirs: not whenever the collector happens to come by
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "coroutine .* was never awaited")  # its process was dead by then
            trio.run(main, clock=clock, instruments=[Gatekeeper()])
    finally:
        gc.enable()
        time.monotonic = real
        random.setstate(chance)
        trio_run._ALLOW_DETERMINISTIC_SCHEDULING = allowed  # type: ignore[misc] # pyright: ignore[reportConstantRedefinition]


def _jump(clock: trio.testing.MockClock) -> None:
    next_s = trio.lowlevel.current_statistics().seconds_to_next_deadline + clock._virtual_base
    if clock._virtual_base < next_s < float("inf"):
        clock._virtual_base = next_s + TICK_S
