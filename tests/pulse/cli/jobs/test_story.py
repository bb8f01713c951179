"""What happened to a job, line by line."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from pulse.cli.jobs.story import story
from pulse.protocol.answers import HELD_S, AttemptInfo, JobInfo

NOW_S = 1_900_000_000.0


@pytest.mark.parametrize(("attempts", "said"), [(2, "attempt 1 left"), (4, "3 attempts (1 to 3) left")])
def test_attempts_without_a_record(attempts: int, said: str) -> None:
    job = JobInfo(UUID(int=7).bytes, status="PENDING", attempts=attempts, next_run_at=NOW_S)
    assert any(cell.text.startswith(said) for line in story(job, NOW_S) for cell in line)


@pytest.mark.parametrize(("attempt", "lines"), [
    (AttemptInfo(attempt=0, outcome="expired", ended_at=NOW_S), ["expired: not started in time"]),
    (
        AttemptInfo(attempt=1, outcome="error", started_at=NOW_S - 5, ended_at=NOW_S, error="no"),
        ["attempt 1 claimed", "attempt 1 error after 5 s, charged", "no"],
    ),
    (AttemptInfo(attempt=1, outcome="released", ended_at=NOW_S), ["attempt 1 released, uncharged"]),
    (AttemptInfo(attempt=1, outcome="canceled", ended_at=NOW_S), ["attempt 1 canceled"]),
], ids=lambda one: one.outcome if isinstance(one, AttemptInfo) else "")  # fmt: skip
def test_how_an_attempt_ended(attempt: AttemptInfo, lines: list[str]) -> None:
    """One that never began has no number, no worker and no charge."""
    job = JobInfo(UUID(int=7).bytes, status="CANCELED", attempts=1, history=[attempt])
    assert ["".join(cell.text for cell in line[1:]) for line in story(job, NOW_S)] == lines


@pytest.mark.parametrize(("columns", "said"), [
    ({"waiting_on": 2, "next_run_at": NOW_S - 5}, "waits for 2 other jobs to end"),
    ({"waiting_on": 1, "next_run_at": 2e9}, "waits for 1 other job to end, not before 2033-05-18T03:33:20Z"),
    ({"waiting_on": 1, "next_run_at": HELD_S}, "waits for 1 other job to end"),
    ({"waiting_on": 0, "next_run_at": NOW_S + 5}, "due in 5 s"),
    ({"waiting_on": 1, "awaited_signal": "a", "next_run_at": NOW_S - 5}, "waits for 1 other job to end"),
    (
        {"awaited_signal": "a\n", "next_run_at": NOW_S + 60},
        'waits for the signal "a\\n", until 2030-03-17T17:47:40Z (in 60 s)',
    ),
    ({"awaited_signal": "a", "next_run_at": NOW_S + 9e8}, 'waits for the signal "a"'),
    ({"awaited_signal": "a", "next_run_at": NOW_S}, "due for 0 s: `pulse ctl jobs why` tells why it waits"),
    ({"next_run_at": HELD_S}, "held back behind an earlier job of its schedule"),
])  # fmt: skip
def test_what_a_job_waits_for(columns: dict[str, Any], said: str) -> None:
    """A time that means nothing is not shown."""
    job = JobInfo(UUID(int=7).bytes, status="PENDING", **columns)
    (line,) = story(job, NOW_S)
    assert line[-1].text.strip() == said
