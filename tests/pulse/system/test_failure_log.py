"""The log of failures: whole for a hundred, counted beyond, and dead letters never crowded out by other lines."""

from __future__ import annotations

from uuid import UUID

import pytest
import structlog
from structlog.testing import capture_logs

from pulse.system import failure_log
from pulse.system.failure_log import MOST, FailedAttempt, FailureLog, LineLimit
from tests.support.store.recovery_kit import running
from tests.support.waiting import until_async


def failed(number: int, *, is_dead: bool = False, error: str = "boom") -> FailedAttempt:
    return FailedAttempt(number.to_bytes(16, "big"), "n", "t", 2, "error", error=error, is_dead=is_dead)


@pytest.fixture
def log() -> FailureLog:
    return FailureLog(structlog.get_logger())


def test_a_line_names_the_job_and_the_first_line_of_its_error(log: FailureLog) -> None:
    with capture_logs() as lines:
        log.note([failed(1, is_dead=True, error="ValueError: no\nTraceback ..."), failed(2, error="x" * 600)])
    dead, other = lines
    assert dead == {
        "event": "job_dead_lettered", "log_level": "warning", "id": str(UUID(int=1)), "name": "n", "topic": "t",
        "attempt": 2, "outcome": "error", "error": "ValueError: no",
    }  # fmt: skip
    assert (other["event"], other["log_level"], other["error"]) == ("job_failed", "info", "x" * 500 + "…")


async def test_a_storm_is_counted(log: FailureLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when nothing fails after it; and failures and tracebacks leave no dead letter out."""
    monkeypatch.setattr(failure_log, "PERIOD_S", 0.05)
    log = FailureLog(structlog.get_logger())
    with capture_logs() as lines:
        async with running(log.run):
            for number in range(MOST + 3):
                log.raised(ValueError(number))
            log.note([failed(number) for number in range(10 * MOST)])
            log.note([failed(number, is_dead=True) for number in range(MOST + 1)])
            await until_async(lambda: lines[-1].get("of") == "handler_failed", "the counts")
            names = [line["event"] for line in lines]
            assert [names.count(one) for one in ("job_failed", "job_dead_lettered", "handler_failed")] == [MOST] * 3
            counts = [(one["log_level"], one["of"], one["count"]) for one in lines if "of" in one]
            assert counts == [
                ("warning", "job_dead_lettered", 1), ("info", "job_failed", 9 * MOST), ("info", "handler_failed", 3)
            ]  # fmt: skip


async def test_what_was_left_out_is_counted_at_the_end_of_a_process(log: FailureLog) -> None:
    with capture_logs() as lines:
        async with running(log.run):
            log.note([failed(number) for number in range(MOST + 7)])
    assert [line["count"] for line in lines if line["event"] == "failures_left_out"] == [7]


def test_a_period_has_so_many_lines_and_counts_the_others() -> None:
    limit = LineLimit(3, 10.0)
    assert [limit.take(2, 0.0), limit.take(2, 9.9), limit.take(2, 9.9)] == [2, 1, 0]
    assert (limit.settle(), limit.settle()) == (3, 0)


def test_the_next_period_begins_with_its_first_line() -> None:
    limit = LineLimit(1, 10.0)
    assert [limit.take(1, 0.0), limit.take(1, 25.0), limit.take(1, 34.9), limit.take(1, 35.0)] == [1, 1, 0, 1]
