"""A check of many things in one test."""

from __future__ import annotations

import pytest

from tests.support.every import every


def test_all_offenders_are_named() -> None:
    """Whatever is raised for one, the others are looked at, and each that does not pass is named with its reason."""

    def check(number: int) -> None:
        assert number < 3, "it is too great"
        assert 1 / number

    with pytest.raises(AssertionError) as caught:
        every([0, 1, 2, 3, 4], check)
    said = str(caught.value)
    assert said.splitlines()[0] == "3 of 5 do not pass"
    for line in ("0: ZeroDivisionError: division by zero", "3: AssertionError: it is too great", "4: AssertionError:"):
        assert line in said
    assert "1: " not in said
    every([1, 2], check)


def test_nothing_to_check_is_a_failure() -> None:
    """An empty list would make a test that cannot fail."""
    with pytest.raises(AssertionError, match="nothing to check"):
        every([], print)
