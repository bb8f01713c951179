"""Lengths of time, as people type them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse.common.duration import ABOVE_ZERO, ZERO_OR_MORE, exact, seconds_of
from pulse.common.text import duration


@pytest.mark.parametrize(("text", "seconds"), [
    ("90", 90.0), ("0.25", 0.25), (" 1e9 ", 1e9), ("5m", 300.0), ("2h30m", 9000.0), ("1d 2h 3min 4s 5ms", 93784.005),
    ("1.5h", 5400.0), (".5M", 30.0), ("500ms", 0.5),
])  # fmt: skip
def test_understood(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "m", "-1", "-5m", "nan", "inf", "1e10", "999999d", "5m5m", "30m2h", "5x", "5 m s", "1:30", "\u0663m"]
)
def test_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f"^{ZERO_OR_MORE}$".replace("(", r"\(").replace(")", r"\)")):
        seconds_of(text, zero=True)


def test_zero_is_refused_unless_it_is_allowed() -> None:
    assert seconds_of("0", zero=True) == seconds_of("0h0m", zero=True) == 0.0
    for text in ("0", "0m"):
        with pytest.raises(ValueError) as caught:  # noqa: PT011 -- the message is compared
            seconds_of(text)
        assert str(caught.value) == ABOVE_ZERO


@given(st.floats(min_value=0.001, max_value=1e9))
def test_what_pulse_shows_can_be_typed(seconds: float) -> None:
    assert seconds_of(duration(seconds)) <= seconds + 0.05 + 1e-9


@pytest.mark.parametrize(("seconds", "text"), [
    (604_800.0, "7d"), (5400, "1h30m"), (90, "1m30s"), (0.5, "0.5s"), (86_400.25, "1d0.25s"), (0, "0"), (1e9, "1e+09"),
])  # fmt: skip
def test_what_is_written_is_read(seconds: float, text: str) -> None:
    assert exact(seconds) == text
    assert seconds_of(text, zero=True) == seconds
