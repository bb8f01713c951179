"""What a handler returned or raised, as the wire says it."""

from __future__ import annotations

import asyncio
import math
import os
import uuid
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse import Discard, RetryAfter, Snooze
from pulse.app.outcome import ERROR_MAX_BYTES, Ending, classify, clean_text, crashed, describe, stalled, timed_out


class UnprintableError(Exception):
    """Cannot be shown."""

    def __str__(self) -> str:
        raise SystemExit("not even that")


class SecretlyEmptyError(Exception):
    """Has nothing to say."""

    def __str__(self) -> str:
        return ""


def raised(error: BaseException) -> BaseException:
    """The error with a traceback."""
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


@pytest.mark.parametrize(
    ("value", "ending"),
    [
        (None, Ending("ok", None)),
        ({"ok": True}, Ending("ok", '{"ok":true}')),
        (0, Ending("ok", "0")),
        ("", Ending("ok", '""')),
        (Snooze(5), Ending("snooze", 5.0)),
        (Discard("no such customer"), Ending("discard", "no such customer")),
        (Discard(""), Ending("discard", "discarded by the handler")),
        (RetryAfter(30, "rate limited"), Ending("retry", (30.0, "rate limited"))),
        (ValueError("boom"), Ending("error", "ValueError: boom")),
        (SecretlyEmptyError(), Ending("error", "SecretlyEmptyError")),
        (SystemExit(), Ending("error", "SystemExit: the handler called sys.exit(None)")),
        (SystemExit("bye"), Ending("error", "SystemExit: the handler called sys.exit('bye')")),
        (KeyboardInterrupt(), Ending("error", "KeyboardInterrupt: raised by the handler")),
        (asyncio.CancelledError(), Ending("error", "CancelledError")),
        (UnprintableError(), Ending("error", "UnprintableError: <unprintable: its str() raises SystemExit>")),
        (math.nan, Ending("error", "result is not JSON: Out of range float values are not JSON compliant")),
        (uuid.UUID(int=1), Ending("error", "result is not JSON: Object of type UUID is not JSON serializable")),
        ("a\0b", Ending("error", "result is not storable: it contains a NUL character")),
        ("\ud800", Ending("error", "result is not storable: it contains a lone surrogate")),
    ],
)
def test_classify(value: object, ending: Ending) -> None:
    """Every value and every exception has one ending."""
    found = classify(value)
    if ending.outcome == "error" and "JSON" in str(ending.detail):
        assert str(found.detail).startswith(str(ending.detail)[:40])
    else:
        assert found == ending


def test_a_coroutine_is_not_a_result() -> None:
    """A plain def that returns a coroutine is told to be an async def, and the coroutine is put away."""

    async def work() -> None: ...

    ending = classify(work())
    assert ending.outcome == "error"
    assert "async def" in str(ending.detail)


@pytest.mark.parametrize("error", [Discard("why"), RetryAfter(3, "why"), ValueError("why")])
def test_a_group_of_one_is_that_one(error: Exception) -> None:
    """What a nursery or task group wraps is seen through, however often."""
    wrapped = ExceptionGroup("a", [ExceptionGroup("b", [error])])
    assert classify(wrapped) == classify(error)


def test_a_group_of_several_names_them() -> None:
    """A group is a failure that lists what failed."""
    text = describe(ExceptionGroup("two", [ValueError("first"), Discard("second")]))
    assert text.splitlines() == [
        "ExceptionGroup: two (2 sub-exceptions)",
        "  from ValueError: first",
        "  from Discard: second",
    ]


def test_describe_tells_cause_and_calls() -> None:
    """Type and message first, then the causes, then the last calls; causes that point at each other end the list."""

    def fail() -> None:
        try:
            os.environ[""]
        except KeyError as error:
            raise ValueError("boom") from error

    with pytest.raises(ValueError, match="boom") as caught:
        fail()
    lines = describe(caught.value).splitlines()
    assert lines[:2] == ["ValueError: boom", "  from KeyError: ''"]
    assert "test_outcome.py" in lines[-2]
    assert 'raise ValueError("boom") from error' in lines[-1]
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert len(describe(first).splitlines()) <= 6


def test_describe_is_bounded() -> None:
    """A deep stack and a long message still make a text of at most 64 KiB that begins with the message."""

    def deeper(levels: int) -> None:
        if levels == 0:
            raise ValueError("ä" * 100_000)
        deeper(levels - 1)

    with pytest.raises(ValueError, match="ä") as caught:
        deeper(200)
    text = describe(caught.value)
    assert len(text.encode()) <= ERROR_MAX_BYTES
    assert text.startswith("ValueError: ää")


@given(st.text(), st.integers(0, 50))
def test_clean_text_is_storable(text: str, max_bytes: int) -> None:
    """Any text becomes UTF-8 without NUL, within its limit; what can be stored is not changed."""
    cleaned = clean_text(text, max_bytes)
    assert len(cleaned.encode()) <= max(max_bytes, 0)
    assert "\0" not in cleaned
    assert clean_text(cleaned) == cleaned
    good = "".join(one for one in text if one != "\0" and not "\ud800" <= one <= "\udfff")
    assert clean_text(good) == good


def test_error_texts_are_storable() -> None:
    """NUL and lone surrogates in messages, of every kind of failure, are replaced."""
    for error in (ValueError("a\0b\ud800"), Discard("a\0b\ud800"), RetryAfter(1, "a\0b\ud800")):
        detail = classify(raised(error)).detail
        text = str(detail[1] if isinstance(detail, tuple) else detail)
        assert "\0" not in text
        text.encode()


@pytest.mark.parametrize(("end", "said"), [(timed_out, "timed out after"), (stalled, "stalled: no progress for")])
def test_what_a_limit_says(end: Callable[..., Ending], said: str) -> None:
    """The reason comes first, with how long that was; what the handler made of it follows."""
    assert end(60.0) == Ending("error", f"{said} 60 s")
    text = str(end(0.5, ValueError("cleanup failed")).detail)
    assert text.splitlines() == [f"{said} 0.5 s", "ValueError: cleanup failed"]


def test_crashed_says_how() -> None:
    """The reason begins as that of every proven death."""
    assert crashed("SIGSEGV", -11) == Ending("crash", ("worker process died: SIGSEGV", -11))


@pytest.mark.parametrize("seconds", [-1, math.nan, math.inf, 1e10])
@pytest.mark.parametrize("kind", [Snooze, RetryAfter])
def test_impossible_delays_are_refused(kind: Callable[[float], object], seconds: float) -> None:
    """A delay must be finite and not negative; the mistake is the handler's, so it is told there."""
    with pytest.raises(ValueError, match="seconds must be between 0"):
        kind(seconds)
