"""What became of a job, as people read it: pure functions of the job and a time."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from pulse.cli.jobs.story import story, where
from pulse.protocol.answers import AttemptInfo, JobInfo

NOW_S = 1_900_000_000.0
ID = UUID("0190163d-8694-739b-aea5-966c26f8ad91")
WORKER = "h0st/b00t/42/1234.99/pool/1"


def told(*, whole_stacks: bool = False, **columns: Any) -> list[str]:
    """The lines, without their styles and times."""
    job = JobInfo(**{"id": ID.bytes, "submitted_at": NOW_S - 100, "max_attempts": 5, **columns})
    lines = ["".join(cell.text for cell in line) for line in story(job, NOW_S, whole_stacks=whole_stacks)]
    return [line.partition("Z  ")[2] or line.strip() for line in lines]


def attempt(number: int, outcome: str, **more: Any) -> AttemptInfo:
    """An attempt of two seconds."""
    return AttemptInfo(number, outcome, WORKER, NOW_S - 90 + number, NOW_S - 88 + number, **more)


def test_all_attempts_in_their_order() -> None:
    """Each attempt is told with its claim, place, end and reason; those that left no row are told of together."""
    history = [
        attempt(1, "error", error="ValueError: no\nTraceback ..."),
        attempt(2, "crashed", exit_code=-9, cpu_s=1.5, peak_rss_bytes=3 * 2**20),
        attempt(4, "snoozed", progress='{"a":1}'),
    ]
    found = told(status="COMPLETED", attempts=5, started_at=NOW_S - 5, completed_at=NOW_S - 2, history=history)
    assert found == [
        "submitted; first claimed after 11 s",
        "attempt 1 claimed by pool/1 on h0st, pid 1234",
        "attempt 1 error after 2 s, charged",
        "why: ValueError: no Traceback ...",
        "attempt 2 claimed by pool/1 on h0st, pid 1234",
        "attempt 2 crashed (SIGKILL) after 2 s, uncharged",
        "used: 1.50 s of CPU, 3 MiB of memory",
        "attempt 4 claimed by pool/1 on h0st, pid 1234",
        "attempt 4 snoozed after 2 s, uncharged",
        'progress: {"a": 1}',
        "attempt 3 left no record: given back unstarted, or completed before a retry",
        "attempt 5 claimed",
        "COMPLETED, 3 s after its claim",
    ]


@pytest.mark.parametrize(
    ("columns", "last"),
    [
        ({"status": "PENDING", "next_run_at": NOW_S + 60}, "due in 60 s"),
        ({"status": "RETRYING", "next_run_at": NOW_S - 60}, "due since 60 s: `pulse ctl jobs why` tells why it waits"),
        ({"status": "PENDING", "next_run_at": 253402128000.0}, "held back behind an earlier job of its schedule"),
        ({"status": "RUNNING", "started_at": NOW_S - 7, "attempts": 1}, "still running, for 7 s"),
        ({"status": "CANCELED", "completed_at": NOW_S}, "CANCELED"),
        ({"status": "DEAD_LETTERED", "completed_at": NOW_S, "history": [AttemptInfo(0, "expired")]}, "DEAD_LETTERED"),
    ],
    ids=lambda value: value.get("status") if isinstance(value, dict) else None,
)
def test_how_it_stands(columns: dict[str, Any], last: str) -> None:
    """The last line says what it waits for, or how it ended."""
    assert told(**columns)[-1] == last


def test_fired_by_a_schedule() -> None:
    """Who fired it, and for when."""
    (first, *_) = told(status="PENDING", schedule_id=ID.bytes, occurrence=0.0)
    assert first == f"fired by schedule {ID}, for 1970-01-01T00:00:00Z"


def test_stacks_are_short_unless_asked_for() -> None:
    """The innermost frames are shown, and how many there are; all on demand."""
    hung = [attempt(1, "timeout", stack="\n".join(f"line {number}" for number in range(9)))]
    short = told(status="PENDING", attempts=1, history=hung)
    assert [line for line in short if line.startswith("line")] == [f"line {number}" for number in range(5, 9)]
    assert any("the 4 innermost of 9 lines; --stack shows all" in line for line in short)
    assert (
        len([line for line in told(status="PENDING", history=hung, whole_stacks=True) if line.startswith("line")]) == 9
    )


@pytest.mark.parametrize(("newest", "numbers"), [("last", range(5, 9)), ("first", range(4))])
def test_a_short_stack_is_of_the_handler(newest: str, numbers: range) -> None:
    """Of several parts the first is shown, which is the handler's, at the end at which it hangs."""
    handler = [f"Here (most recent call {newest}):", *(f"line {number}" for number in range(9))]
    stack = "\n".join([*handler, "Current thread 0x1 (most recent call first):", "  File host.py"])
    short = told(status="PENDING", attempts=1, history=[attempt(1, "timeout", stack=stack)])
    shown = [line for line in short if line.startswith(("line", "File"))]
    assert shown == [f"line {number}" for number in numbers]


def test_what_is_no_identity_is_shown_as_it_is() -> None:
    """A worker of another kind, or hostile text, harms nobody."""
    assert where("tcp\x1b/user") == "tcp\\x1b/user"
