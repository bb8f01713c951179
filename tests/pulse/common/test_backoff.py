"""Back-offs in words."""

from __future__ import annotations

import re

import pytest

from pulse.common.backoff import PATTERN, backoff_s, in_seconds, is_backoff
from tests.support.store.backoffs import BACKOFFS, NO_BACKOFFS


@pytest.mark.parametrize("word", BACKOFFS)
def test_good_words(word: str) -> None:
    assert is_backoff(word)
    assert re.search(PATTERN, word)
    assert all(0 <= backoff_s(word, tries) <= 1e9 for tries in (1, 2, 10, 10_000))


@pytest.mark.parametrize("word", [*NO_BACKOFFS, "fixed:\N{ARABIC-INDIC DIGIT ONE}", None, 5])
def test_bad_words(word: object) -> None:
    assert not is_backoff(word)
    with pytest.raises(ValueError, match=r"^backoff is .*; allowed are quadratic\[:UNIT\], .* to 999999999$"):
        backoff_s(word, 1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(("word", "waits"), [
    ("quadratic", [1, 4, 9, 16]), ("quadratic:0.5", [0.5, 2, 4.5, 8]), ("fixed:2.5", [2.5, 2.5, 2.5, 2.5]),
    ("list:1,5", [1, 5, 5, 5]),
])  # fmt: skip
def test_waits(word: str, waits: list[float]) -> None:
    assert [backoff_s(word, tries) for tries in (1, 2, 3, 4)] == waits


@pytest.mark.parametrize(("typed", "word"), [
    ("quadratic", "quadratic"), ("fixed:5.50", "fixed:5.50"), ("fixed:1h30m", "fixed:5400"),
    ("list:500ms,90,5m", "list:0.5,90,300"), ("list:5m,soon", "list:300,soon"),
])  # fmt: skip
def test_durations_become_seconds(typed: str, word: str) -> None:
    """What is no duration stays, for the message to show it."""
    assert in_seconds(typed) == word


def test_jitter() -> None:
    """An exponential wait lies between half and the whole, and is not always the same."""
    for tries, whole_s in ((1, 2.0), (2, 4.0), (3, 8.0), (4, 10.0), (50, 10.0)):
        waits = {backoff_s("exponential:2:10", tries) for _ in range(100)}
        assert whole_s / 2 <= min(waits) < max(waits) <= whole_s
