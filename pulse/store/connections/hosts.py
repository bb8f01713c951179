"""Takes the first of several hosts that will do, and waits for none that is silent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

T = TypeVar("T")
SILENT_S: Final = 0.25  # then the next host is asked, too: a machine that is gone refuses nothing
AGAIN_S: Final = 0.5  # between two questions to those that have refused, while others are silent: a standby is promoted
ASKED_S: Final = 5.0  # no host is asked after that; each try has an end of its own


async def first_of(tries: Sequence[Callable[[], Coroutine[Any, Any, T]]], drop: Callable[[T], None]) -> T:
    """
    The result of the first try that succeeds; the next one begins when one has failed, or after SILENT_S.

    Args:
        tries: In the order of preference; each limits its own time.
        drop: Called with the results of other tries.

    Raises:
        ExceptionGroup: All have failed; in their order.
    """
    began_s = time.monotonic()
    left, failed = list(range(len(tries))), dict[int, Exception]()
    running: dict[asyncio.Task[T], int] = {}
    try:
        while left or running:
            if left:
                number = left.pop(0)
                running[asyncio.create_task(tries[number]())] = number
            pause_s = SILENT_S if left else AGAIN_S
            done, _ = await asyncio.wait(running, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                error = task.exception()
                if error is None:
                    del running[task]
                    return task.result()
                if not isinstance(error, Exception):
                    raise error
                failed[running.pop(task)] = error
            if not done and not left and time.monotonic() - began_s < ASKED_S:
                left = sorted(failed.keys() - running.values())
    finally:
        for task in running:
            task.add_done_callback(lambda task: _drop(task, drop))
            task.cancel()
    raise ExceptionGroup("no host will do", [failed[number] for number in sorted(failed)])


def _drop(task: asyncio.Task[T], drop: Callable[[T], None]) -> None:
    if not task.cancelled() and task.exception() is None:
        drop(task.result())
