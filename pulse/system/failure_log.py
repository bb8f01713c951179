"""
Logs each attempt that failed and was charged, and each job that became a dead letter.

The worker that ran the attempt logs it, when the server has confirmed its end; the server logs what it ended itself. Of
thousands that fail together the first ones are logged, and a line says how many were left out.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol
from uuid import UUID

import anyio

from pulse.common.line_limit import LineLimit

# A hundred failures at once are logged whole; thousands cost a line per 100 ms, a few thousandths of a process's time.
MOST: Final = 100
PERIOD_S: Final = 10.0
MAX_ERROR_CHARS: Final = 500  # the first line of an error is a sentence; the whole of it is in the database


class FailedAttempt(NamedTuple):
    """
    An attempt that failed.

    Attributes:
        attempt: Its number; 0: the job was never started.
        outcome: As in ``pulse.attempts``.
        error: The text of its error; its first line is logged.
        is_dead: Whether its job is a dead letter now.
    """

    id: bytes
    name: str
    topic: str
    attempt: int
    outcome: str
    error: str
    is_dead: bool


class Log(Protocol):
    """A logger; structlog's fit."""

    def info(self, event: str, /, **facts: object) -> object:
        """Log an event."""

    def warning(self, event: str, /, **facts: object) -> object:
        """Log a problem."""


class FailureLog:
    """
    The lines about failures of one process.

    Args:
        log: Where they are written.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._dead = LineLimit(MOST, PERIOD_S)
        self._failed = LineLimit(MOST, PERIOD_S)  # of its own: failures must not keep a dead letter out of the log
        self._leaves_out = anyio.Event()

    def note(self, attempts: Sequence[FailedAttempt]) -> None:
        """Log these, as far as the limit allows."""
        now_s = time.monotonic()
        self.settle(now_s)
        dead = [one for one in attempts if one.is_dead]
        failed = [one for one in attempts if not one.is_dead]
        for one in dead[: self._dead.take(len(dead), now_s)]:
            self._log.warning(
                "job_dead_lettered",
                id=str(UUID(bytes=one.id)),
                name=one.name,
                topic=one.topic,
                attempt=one.attempt,
                outcome=one.outcome,
                error=_first_line(one.error),
            )
        for one in failed[: self._failed.take(len(failed), now_s)]:
            self._log.info(
                "job_failed",
                id=str(UUID(bytes=one.id)),
                name=one.name,
                topic=one.topic,
                attempt=one.attempt,
                outcome=one.outcome,
                error=_first_line(one.error),
            )
        if self._dead.unsettled or self._failed.unsettled:
            self._leaves_out.set()

    def settle(self, now_s: float = float("inf")) -> None:
        """Say how many lines were left out; before *now_s*, monotonic, only those of periods that are over."""
        if count := self._dead.settle(now_s):
            self._log.warning("failures_left_out", of="job_dead_lettered", count=count)
        if count := self._failed.settle(now_s):
            self._log.info("failures_left_out", of="job_failed", count=count)

    async def run(self) -> None:
        """Say after each period how many lines it left out, until cancelled; then say the rest."""
        try:
            while True:
                await self._leaves_out.wait()
                self._leaves_out = anyio.Event()
                await anyio.sleep(PERIOD_S)
                self.settle(time.monotonic())
                if self._dead.unsettled or self._failed.unsettled:
                    self._leaves_out.set()
        finally:
            self.settle()


def _first_line(error: str) -> str:
    line = error.split("\n", 1)[0]
    return line if len(line) <= MAX_ERROR_CHARS else f"{line[:MAX_ERROR_CHARS]}…"
