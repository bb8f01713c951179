"""What an attempt reports, and its worker logs, when its handler ends after it has completed its job."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from pulse.app.handler import make_handler
from pulse.app.outcome import DONE, Snooze
from pulse.protocol import Assignment
from pulse.worker.execution.attempt import Attempt
from pulse.worker.execution.late_endings import MOST


def attempt(name: str) -> Attempt:
    made = Attempt(Assignment(bytes(16), 1, name, "t", "{}", 2.0, 30.0), make_handler(name, lambda: None), 0.0)
    made.fence_for("w", lambda *_: None).move("completed")
    return made


@pytest.mark.parametrize("value", [None, {"a": 1}, Snooze(5), LookupError("late"), object()])
def test_it_is_done_whatever_the_handler_answers(value: object) -> None:
    made = attempt("done")
    assert made.ending(value) == DONE
    made.stopped = "timeout"
    assert made.ending(value) == DONE


@pytest.mark.parametrize("phase", ["", "commits"])
def test_without_the_commit_it_ends_as_ever(phase: str) -> None:
    made = attempt("open")
    made.fenced_apart(phase)  # type: ignore[arg-type]
    assert made.ending({"a": 1}) == ("ok", '{"a":1}')


def test_what_is_logged() -> None:
    """A result that is thrown away once for each handler; exceptions as far as the limit allows."""
    with capture_logs() as logs:
        for name in ("one", "one", "two"):
            attempt(name).ending(None)
            attempt(name).ending(1)
        for _ in range(MOST + 1):
            attempt("one").ending(LookupError("late"))
    assert [(line["event"], line["name"]) for line in logs[:2]] == [
        ("result_not_stored", "one"),
        ("result_not_stored", "two"),
    ]
    assert {line["event"] for line in logs[2:]} == {"handler_failed_after_commit"}
    assert MOST <= len(logs) <= MOST + 2  # another test may have used up one of the limit
    assert all(isinstance(line["exc_info"], LookupError) for line in logs[2:])
