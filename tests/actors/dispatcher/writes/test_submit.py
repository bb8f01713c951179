"""What of args can be told without the database."""

from __future__ import annotations

import itertools
import json

import pytest

from pulse_actors.dispatcher.writes.submit import MAX_ARGS_BYTES, args_problem


def problem(size_bytes: int, words: str = " as PostgreSQL prints them, with all digits of numbers like 1e999") -> str:
    """What is said of so many."""
    return f"args have {size_bytes} bytes{words}; at most {MAX_ARGS_BYTES} are allowed"


def wrapped(number: str, count: int) -> str:
    """So many of one number, as compact JSON."""
    return f'{{"a":[{",".join([number] * count)}]}}'


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ("{}", None),
        (wrapped("-1.5E-0999", 1000), None),
        (json.dumps({"a": [1.7976931348623157e308] * 1000, "b": 5e-324}), None),
        ('{"a": ' + '"1e131071 \\"" ,' * 50 + '"b": 1e131071}', None),
        (wrapped("1e131071", 1), None),
        (wrapped("1e131071", 8), problem(8 * (8 + 131071) + 7 + 8 + 8)),
        (wrapped("1E+0999", 1100), problem(1100 * (7 + 999) + 1099 + 8 + 1100)),
        (wrapped("1e99", 12_000), problem(12_000 * (4 + 99) + 11_999 + 8 + 12_000)),
        (wrapped("1e9", 100_000), problem(100_000 * (3 + 9) + 99_999 + 8 + 100_000)),
        (wrapped("1e" + "9" * 5000, 8), problem(8 * (5002 + 131_072) + 7 + 8 + 8)),
        (wrapped("1", 400_000), problem(400_000 + 399_999 + 8 + 400_000)),
        (wrapped("1", 400_000).replace(",", ", "), problem(400_000 + 2 * 399_999 + 8, "")),
        (wrapped("1", 349_000), None),
        (wrapped("1", 349_000).replace(",", ", "), None),
        ('{"a": "' + "1,1:" * 200_000 + '"}', None),
        ('{"a":1e11,"' + '\\"' * 520_000, None),  # no JSON: the database says so, after no more time than for any other
        ('"' + "x" * MAX_ARGS_BYTES + '"', problem(MAX_ARGS_BYTES + 2, "")),
        ("é" * MAX_ARGS_BYTES, problem(2 * MAX_ARGS_BYTES, "")),
        ("x" * MAX_ARGS_BYTES, None),
    ],
    ids=itertools.count(),
)
def test_numbers_that_print_as_megabytes(args: str, expected: str | None) -> None:
    """Bytes are counted as they are printed: each number with all of its digits; strings say anything."""
    assert args_problem(args) == expected
