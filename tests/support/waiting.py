"""Waiting for something: a test looks again and again until a deadline, and never sleeps a fixed time."""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import anyio

from pulse.system import processes

if TYPE_CHECKING:
    from asyncpg import Connection, Record

DEADLINE_S: Final = 20.0  # for what takes milliseconds on a quiet machine
_FIRST_PAUSE_S: Final = 0.002  # between two looks; other tests need the processor meanwhile, so it grows:
_PART: Final = 0.1  # of the time since the first look
_LONGEST_PAUSE_S: Final = 0.1
_BLOCKED: Final = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid)))"


T = TypeVar("T")


def until(
    look: Callable[[], T], what: str, within_s: float = DEADLINE_S, *, longest_pause_s: float = _LONGEST_PAUSE_S
) -> T:
    """
    What *look* returns as soon as that is true; an AssertionError names *what* was not true in time.

    Args:
        longest_pause_s: Between two looks; more where one look starts programs, less where others wait for it.
    """
    began_s = time.monotonic()
    while not (seen := look()):
        select.select([], [], [], _pause_s(began_s, within_s, what, longest_pause_s))
    return seen


async def until_async(look: Callable[[], Awaitable[object] | bool], what: str, within_s: float = DEADLINE_S) -> None:
    began_s = time.monotonic()
    while not await _holds(look()):  # noqa: ASYNC110 - nobody tells what is looked at
        await anyio.sleep(_pause_s(began_s, within_s, what, _LONGEST_PAUSE_S))


def _pause_s(began_s: float, within_s: float, what: str, longest_s: float) -> float:
    since_s = time.monotonic() - began_s
    assert since_s < within_s, f"not within {within_s} s: {what}"
    return min(max(_FIRST_PAUSE_S, _PART * since_s), longest_s)


async def _holds(found: Awaitable[object] | bool) -> bool:
    return found if isinstance(found, bool) else bool(await found)


async def until_blocked(connection: Connection[Record], *, by: int) -> None:
    """Return when some session waits for a lock that the backend *by* holds."""
    await until_async(lambda: connection.fetchval(_BLOCKED, by), f"a session that waits for {by}")


def children(pid: int) -> list[int]:
    """Its children, which who waits asks for again and again: psutil looks at each process of the machine for that."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (thread / "children").read_text("ascii").split())
    return found


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    return processes.state(pid) not in {"", "Z", "X"}
