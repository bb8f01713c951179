"""What a handler's exceptions mean for the next try."""

from __future__ import annotations

from typing import Any

import msgpack
import msgspec
import pytest

import pulse
from pulse.app.handler import make_handler
from pulse.app.outcome import Discard, RetryAfter, Snooze
from pulse.errors import HandlerError
from pulse.protocol import Assignment
from pulse.worker.execution.attempt import Attempt


class TeapotError(ConnectionError):
    """A kind of ConnectionError."""


def ends(retry_on: Any, value: object, *, attempt: int = 1, tries: int | None = None) -> tuple[str, Any]:
    """How an attempt of a handler that declares *retry_on* ends with *value*."""
    extra = None if tries is None else {"tries": msgspec.Raw(msgpack.packb(tries))}
    job = Assignment(bytes(16), attempt, "n", "t", "{}", None, 30.0, extra)
    return Attempt(job, make_handler("n", lambda: None, retry_on=retry_on), 0.0).ending(value)


RULES: Any = {
    ValueError: 30,
    ConnectionError: "list:1,2,3",
    TeapotError: pulse.Discard,
    OSError: None,
}


@pytest.mark.parametrize(("error", "outcome", "delay_s"), [
    (ValueError("x"), "retry", 30.0), (ConnectionResetError("x"), "retry", 1.0), (TeapotError("x"), "discard", None),
    (FileNotFoundError("x"), "error", None), (KeyError("x"), "error", None),
    (ExceptionGroup("g", [ExceptionGroup("g", [ValueError("x")])]), "retry", 30.0),
    (ExceptionGroup("g", [ValueError("x"), ValueError("y")]), "error", None),
])  # fmt: skip
def test_a_mapping(error: Exception, outcome: str, delay_s: float | None) -> None:
    """The class nearest to the exception counts; what no class is named for ends as usual; the text stays."""
    found, detail = ends(RULES, error)
    assert found == outcome
    text = detail[1] if outcome == "retry" else detail
    assert "x" in text
    assert delay_s is None or detail[0] == delay_s


@pytest.mark.parametrize(("attempt", "tries", "delay_s"), [(1, None, 1.0), (2, None, 2.0), (9, 2, 2.0), (9, None, 3.0)])
def test_back_off_by_charged_tries(attempt: int, tries: int | None, delay_s: float) -> None:
    """A back-off counts what was charged, which the server tells where that is not the attempt's number."""
    assert ends(RULES, ConnectionError("x"), attempt=attempt, tries=tries)[1][0] == delay_s


def test_a_function() -> None:
    """It hears the exception itself, and the tries."""
    said: list[tuple[type, int]] = []

    def policy(error: BaseException, tries: int) -> float | None:
        said.append((type(error), tries))
        return 7.0 if tries < 3 else None

    assert ends(policy, ExceptionGroup("g", [KeyError("x")]), attempt=2)[1][0] == 7.0
    assert ends(policy, KeyError("x"), attempt=3)[0] == "error"
    assert said == [(KeyError, 2), (KeyError, 3)]


def _fails(_error: BaseException, _tries: int) -> float:
    raise RuntimeError("no idea")


@pytest.mark.parametrize("wrong", [lambda _error, _tries: -1, lambda _error, _tries: "soon", _fails])
def test_a_function_that_is_wrong(wrong: Any) -> None:
    """The attempt fails as usual, and its error tells of the function, too."""
    outcome, text = ends(wrong, KeyError("x"))
    assert outcome == "error"
    assert text.startswith("KeyError: 'x'")
    assert "retry_on" in text


@pytest.mark.parametrize(("value", "outcome"), [
    (None, "ok"), (Snooze(5), "snooze"), (Discard("x"), "discard"), (RetryAfter(5, "x"), "retry"), (object(), "error"),
])  # fmt: skip
def test_what_it_is_not_asked_about(value: object, outcome: str) -> None:
    """Results, and what already says how to go on."""
    assert ends({Exception: 99.0}, value)[0] == outcome
    if outcome == "retry":
        assert ends({Exception: 99.0}, value)[1][0] == 5


def test_what_was_stopped() -> None:
    """An attempt that outlasted its time waits as usual, however it took that."""
    job = Assignment(bytes(16), 1, "n", "t", "{}", 1.0, 30.0)
    attempt = Attempt(job, make_handler("n", lambda: None, retry_on={Exception: 99.0}), 0.0)
    attempt.stopped = "timeout"
    assert attempt.ending(ValueError("x")).outcome == "error"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"backoff": "soon"}, r"handler 'n': backoff must be one of quadratic\[:UNIT\], .*, not 'soon'"),
        (
            {"retry_on": {ValueError: -1}},
            r"handler 'n': retry_on of ValueError is -1; allowed are seconds from 0 to 1e\+09, .*",
        ),
        ({"retry_on": {ValueError: "fixed:-5"}}, r"handler 'n': retry_on of ValueError is 'fixed:-5'; allowed are .*"),
        ({"retry_on": {ValueError: True}}, r"handler 'n': retry_on of ValueError is True; allowed are .*"),
        ({"retry_on": {"ValueError": 1}}, r"handler 'n': retry_on has 'ValueError'; exception classes are allowed"),
        ({"retry_on": {int: 1}}, r"handler 'n': retry_on has <class 'int'>; exception classes are allowed"),
        ({"retry_on": 5}, r"handler 'n': retry_on must be a mapping of exception classes or a function, not 5"),
        (
            {"retry_on": ValueError},
            r"handler 'n': retry_on must be a mapping of exception classes or a function, not .*",
        ),
    ],
)
def test_what_a_handler_may_not_declare(given: dict[str, Any], message: str) -> None:
    """One line, at import."""
    with pytest.raises(HandlerError, match=message):
        make_handler("n", lambda: None, **given)


def test_the_stall_of_a_topic() -> None:
    """What the handler promised counts; else what the server says of its topic."""
    extra = {"stall_s": msgspec.Raw(msgpack.packb(2.5))}
    job = Assignment(bytes(16), 1, "n", "t", "{}", None, 30.0, extra)
    assert Attempt(job, make_handler("n", lambda: None), 0.0).stall_s == 2.5
    assert Attempt(job, make_handler("n", lambda: None, stall_s=1.0), 0.0).stall_s == 1.0
    assert Attempt(job, None, 0.0).stall_s == 2.5
