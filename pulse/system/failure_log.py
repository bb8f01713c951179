"""
Logs each attempt that failed and was charged, each job that became a dead letter, and what handlers raised.

The worker that ran the attempt logs it, when the server has confirmed its end; the server logs what it ended itself. Of
thousands that fail together the first ones are logged, and a line says how many were left out.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol
from uuid import UUID

import anyio

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


class LineLimit:
    """
    So many lines in a period, and a count of those that were left out.

    A period begins with the first line after the one before. Lines in it are not spread: the first ones say most.

    Args:
        most: Lines of one period.
        period_s: Length of a period, seconds.
    """

    def __init__(self, most: int, period_s: float) -> None:
        self._most = most
        self._period_s = period_s
        self._ends_s = float("-inf")
        self._written = 0
        self._left_out = 0

    def take(self, count: int, now_s: float) -> int:
        """How many of *count* more lines may be written now; the others are left out."""
        if now_s >= self._ends_s:
            self._ends_s, self._written = now_s + self._period_s, 0
        taken = min(count, self._most - self._written)
        self._written += taken
        self._left_out += count - taken
        return taken

    def settle(self) -> int:
        """How many lines were left out since this was asked last."""
        left_out, self._left_out = self._left_out, 0
        return left_out


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
        self._raised = LineLimit(MOST, PERIOD_S)

    def note(self, attempts: Sequence[FailedAttempt]) -> None:
        """Log these, as far as the limit allows."""
        now_s = time.monotonic()
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

    def raised(self, error: BaseException) -> None:
        """Log what a handler raised, with its traceback, as far as the limit allows."""
        if self._raised.take(1, time.monotonic()):
            self._log.warning("handler_failed", exc_info=error)

    def settle(self) -> None:
        """Say how many lines were left out since the last time."""
        if count := self._dead.settle():
            self._log.warning("failures_left_out", of="job_dead_lettered", count=count)
        if count := self._failed.settle():
            self._log.info("failures_left_out", of="job_failed", count=count)
        if count := self._raised.settle():
            self._log.info("failures_left_out", of="handler_failed", count=count)

    async def run(self) -> None:
        """Say now and then how many lines were left out, until cancelled; then say the rest."""
        try:
            while True:
                await anyio.sleep(PERIOD_S)
                self.settle()
        finally:
            self.settle()


def _first_line(error: str) -> str:
    line = error.split("\n", 1)[0]
    return line if len(line) <= MAX_ERROR_CHARS else f"{line[:MAX_ERROR_CHARS]}…"
