"""A handler's return value or exception, on the wire, and what its exceptions mean for the next try."""

from __future__ import annotations

import asyncio
import math
import os
import traceback
import uuid
from collections.abc import Callable
from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pulse
from pulse import Discard, RetryAfter, Snooze
from pulse.app.handler import make_handler
from pulse.app.outcome import ERROR_MAX_BYTES, Outcome, classify, clean_text, crashed, describe, stalled, timed_out
from pulse.app.parameters import ArgumentError
from pulse.errors import HandlerError
from pulse.protocol import Assignment
from pulse.worker.execution.attempt import Attempt
from pulse.worker.execution.runner import call_in_thread

ASSIGNMENT = Assignment(bytes(16), 1, "n", "t", "{}", None, 30.0)


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise SystemExit("not even that")


class SecretlyEmptyError(Exception):
    def __str__(self) -> str:
        return ""


def raised(error: BaseException) -> BaseException:
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


@pytest.mark.parametrize(("value", "ending"), [
    (None, Outcome("ok", None)),
    ({"ok": True}, Outcome("ok", '{"ok":true}')),
    (0, Outcome("ok", "0")),
    ("", Outcome("ok", '""')),
    (Snooze(5), Outcome("snooze", 5.0)),
    (Discard("no such customer"), Outcome("discard", "no such customer")),
    (Discard(""), Outcome("discard", "discarded by the handler")),
    (RetryAfter(30, "rate limited"), Outcome("retry", (30.0, "rate limited"))),
    (ValueError("boom"), Outcome("error", "ValueError: boom")),
    (SecretlyEmptyError(), Outcome("error", "SecretlyEmptyError")),
    (SystemExit(), Outcome("error", "SystemExit: the handler called sys.exit(None)")),
    (SystemExit("bye"), Outcome("error", "SystemExit: the handler called sys.exit('bye')")),
    (KeyboardInterrupt(), Outcome("error", "KeyboardInterrupt: raised by the handler")),
    (asyncio.CancelledError(), Outcome("error", "CancelledError")),
    (UnprintableError(), Outcome("error", "UnprintableError: <unprintable: its str() raises SystemExit>")),
    (math.nan, Outcome("error", "result is not JSON: Out of range float values are not JSON compliant")),
    (uuid.UUID(int=1), Outcome("ok", f'"{uuid.UUID(int=1)}"')),
    (object(), Outcome("error", "result is not JSON: Object of type object is not JSON serializable")),
    (ArgumentError("x is wrong"), Outcome("discard", "the handler does not take these args: x is wrong")),
    ("a\0b", Outcome("error", "result is not storable: it contains a NUL character")),
    ("\ud800", Outcome("error", "result is not storable: it contains a lone surrogate")),
])  # fmt: skip
def test_classify(value: object, ending: Outcome) -> None:
    found = classify(value)
    if ending.outcome == "error" and "JSON" in str(ending.detail):
        assert str(found.detail).startswith(str(ending.detail)[:40])
    else:
        assert found == ending


def test_a_coroutine_is_not_a_result() -> None:
    """The error says that it must be an async def, and the coroutine is closed."""

    async def work() -> None: ...

    ending = classify(work())
    assert ending.outcome == "error"
    assert "async def" in str(ending.detail)


@pytest.mark.parametrize("error", [Discard("why"), RetryAfter(3, "why"), ValueError("why")])
def test_a_group_of_one_is_that_one(error: Exception) -> None:
    assert classify(ExceptionGroup("a", [ExceptionGroup("b", [error])])) == classify(error)


def test_a_group_of_several_shows_them() -> None:
    lines = describe(BaseExceptionGroup("two", [raised(ValueError("first")), Discard("second")])).splitlines()
    assert lines[0] == "ExceptionGroup: two (2 sub-exceptions)"
    assert "    | ValueError: first" in lines
    assert "    | pulse.app.outcome.Discard: second" in lines


def test_describe_is_a_line_and_the_whole_traceback() -> None:
    """As Python prints it, with its causes, but without the calls of the worker itself."""

    def fail() -> None:
        try:
            os.environ[""]
        except KeyError as error:
            raise ValueError("boom") from error

    with pytest.raises(ValueError, match="boom") as caught:
        fail()
    first, _, rest = describe(caught.value).partition("\n")
    assert first == "ValueError: boom"
    printed = "".join(traceback.format_exception(caught.value)).splitlines()
    assert rest.splitlines() == [line for line in printed if not set(line) <= set(" ~^") or not line]
    inside = classify(call_in_thread(Attempt(ASSIGNMENT, None, 0.0), make_handler("n", fail), {}))
    assert "call_in_thread" not in str(inside.detail)
    assert "in fail" in str(inside.detail)


def test_an_error_without_calls_is_a_line() -> None:
    """Also one that the worker itself has raised; and causes that go round in a circle end."""
    inside = classify(call_in_thread(Attempt(ASSIGNMENT, None, 0.0), make_handler("n", lambda: None), {"no": 1}))
    assert "\n" not in str(inside.detail)
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert describe(first).splitlines()[0] == "ValueError: first"
    assert describe(first).count("direct cause") == 1


def test_a_long_traceback_is_cut_in_the_middle() -> None:
    def deeper(levels: int) -> None:
        if levels == 0:
            raise ValueError("ä" * 100)
        deepest(levels - 1)

    def deepest(levels: int) -> None:  # of two functions in turn each call is printed
        deeper(levels)

    with pytest.raises(ValueError, match="ä") as caught:
        deeper(400)
    text = describe(caught.value)
    assert ERROR_MAX_BYTES - 1000 < len(text.encode()) <= ERROR_MAX_BYTES
    lines = text.splitlines()
    assert lines[0] == lines[-1] == "ValueError: " + "ä" * 100
    (note,) = [line for line in lines if line.startswith("… ")]
    left_out = "\n".join(traceback.format_exception(caught.value)).encode()
    assert 0 < int(note.split()[1].replace(",", "")) < len(left_out)


@given(st.text(), st.integers(0, 50))
def test_clean_text_is_storable(text: str, max_bytes: int) -> None:
    cleaned = clean_text(text, max_bytes)
    assert len(cleaned.encode()) <= max(max_bytes, 0)
    assert "\0" not in cleaned
    assert clean_text(cleaned) == cleaned
    good = "".join(one for one in text if one != "\0" and not "\ud800" <= one <= "\udfff")
    assert clean_text(good) == good


def test_error_texts_are_storable() -> None:
    for error in (ValueError("a\0b\ud800"), Discard("a\0b\ud800"), RetryAfter(1, "a\0b\ud800")):
        detail = classify(raised(error)).detail
        text = str(detail[1] if isinstance(detail, tuple) else detail)
        assert "\0" not in text
        text.encode()


@pytest.mark.parametrize(("end", "said"), [(timed_out, "timed out after"), (stalled, "stalled: no progress for")])
def test_what_a_limit_says(end: Callable[..., Outcome], said: str) -> None:
    assert end(60.0) == Outcome("error", f"{said} 60 s")
    text = str(end(0.5, ValueError("cleanup failed")).detail)
    assert text.splitlines() == [f"{said} 0.5 s", "ValueError: cleanup failed"]


def test_crashed_says_how() -> None:
    assert crashed("SIGSEGV", -11) == Outcome("crash", ("worker process died: SIGSEGV", -11))


@pytest.mark.parametrize("seconds", [-1, math.nan, math.inf, 1e10])
@pytest.mark.parametrize("kind", [Snooze, RetryAfter])
def test_impossible_delays_are_refused(kind: Callable[[float], object], seconds: float) -> None:
    with pytest.raises(ValueError, match="seconds must be between 0"):
        kind(seconds)


class TeapotError(ConnectionError):
    """A kind of ConnectionError."""


def ends(retry_on: Any, value: object, *, attempt: int = 1, tries: int | None = None) -> tuple[str, Any]:
    """How an attempt of a handler that declares *retry_on* ends with *value*."""
    extra = None if tries is None else {"tries": msgspec.Raw(msgpack.packb(tries))}
    job = Assignment(bytes(16), attempt, "n", "t", "{}", None, 30.0, extra)
    return Attempt(job, make_handler("n", lambda: None, retry_on=retry_on), 0.0).ending(value)


RULES: Any = {ValueError: 30, ConnectionError: "list:1,2,3", TeapotError: pulse.Discard, OSError: None}


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
    """A back-off counts charged tries, which the server sends where they differ from the attempt's number."""
    assert ends(RULES, ConnectionError("x"), attempt=attempt, tries=tries)[1][0] == delay_s


def test_a_function() -> None:
    """It gets the exception itself, and the tries."""
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
    outcome, text = ends(wrong, KeyError("x"))
    assert outcome == "error"
    assert text.startswith("KeyError: 'x'")
    assert "retry_on" in text


@pytest.mark.parametrize(("value", "outcome"), [
    (None, "ok"), (Snooze(5), "snooze"), (Discard("x"), "discard"), (RetryAfter(5, "x"), "retry"), (object(), "error"),
])  # fmt: skip
def test_what_it_is_not_asked_about(value: object, outcome: str) -> None:
    """Results, and exceptions that already say how to go on."""
    assert ends({Exception: 99.0}, value)[0] == outcome
    if outcome == "retry":
        assert ends({Exception: 99.0}, value)[1][0] == 5


def test_what_was_stopped() -> None:
    """An attempt that outlasted its time has the usual back-off."""
    job = Assignment(bytes(16), 1, "n", "t", "{}", 1.0, 30.0)
    attempt = Attempt(job, make_handler("n", lambda: None, retry_on={Exception: 99.0}), 0.0)
    attempt.stopped = "timeout"
    assert attempt.ending(ValueError("x")).outcome == "error"


@pytest.mark.parametrize(("given", "message"), [
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
    ({"retry_on": ValueError}, r"handler 'n': retry_on must be a mapping of exception classes or a function, not .*"),
])  # fmt: skip
def test_what_a_handler_may_not_declare(given: dict[str, Any], message: str) -> None:
    with pytest.raises(HandlerError, match=message):
        make_handler("n", lambda: None, **given)


def test_the_stall_of_a_topic() -> None:
    """The handler's promise counts; else its topic's."""
    extra = {"stall_s": msgspec.Raw(msgpack.packb(2.5))}
    job = Assignment(bytes(16), 1, "n", "t", "{}", None, 30.0, extra)
    assert Attempt(job, make_handler("n", lambda: None), 0.0).stall_s == 2.5
    assert Attempt(job, make_handler("n", lambda: None, stall_s=1.0), 0.0).stall_s == 1.0
    assert Attempt(job, None, 0.0).stall_s == 2.5
