"""Wakes a task of the event loop from threads and signal handlers."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable
from types import FrameType
from typing import Final

import anyio

__all__ = ["SAME_SIGNAL_S", "Signals", "Waker"]

SAME_SIGNAL_S: Final = 1.0  # a service manager signals all processes, and a parent passes it on as well


class Waker:
    """Wakes the event loop from threads and signal handlers, by a byte through a socket."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def wake(self) -> None:
        """Wake the waiter, now or at its next wait. Never blocks: a full pipe wakes as well."""
        with contextlib.suppress(OSError):
            self._writer.send(b"\0")

    async def wait(self) -> None:
        """Wait until ``wake`` is called."""
        await anyio.wait_readable(self._reader)
        with contextlib.suppress(BlockingIOError):
            self._reader.recv(4096)


class Signals:
    """
    Counts SIGTERM and SIGINT of this process.

    Args:
        waker: Woken by each signal.
        same_within_s: Signals so soon after the first do not count: if a service manager signals the whole group, and
            the parent passes it on, that must not add up to "at once".
        at_once: Called for the second signal, in the signal handler, so that it works even if the loop hangs.
    """

    def __init__(
        self, waker: Waker, *, same_within_s: float = 0.0, at_once: Callable[[int], None] | None = None
    ) -> None:
        self._waker = waker
        self._same_within_s = same_within_s
        self._at_once = at_once
        self._first_s: float | None = None
        self.count = 0
        self.last = 0

    def install(self) -> None:
        """Handle the signals from now on; call it in the main thread."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._receive)

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        now_s = time.monotonic()
        if self._first_s is None:
            self._first_s = now_s
        elif now_s - self._first_s < self._same_within_s:
            return
        self.count += 1
        self.last = number
        if self.count > 1 and self._at_once is not None:
            self._at_once(number)
        self._waker.wake()


SIGNALED: Final = 128  # plus the number, as a shell does


def exit_now(number: int) -> None:
    """End this process because of signal *number*, without waiting for anything."""
    os._exit(SIGNALED + number)
