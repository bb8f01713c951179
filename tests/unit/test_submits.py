"""What of args can be told without the database."""

from __future__ import annotations

import json

import pytest

from pulse_actors.dispatcher.submits import MAX_ARGS_BYTES, args_problem


def problem(size_bytes: int) -> str:
    """What is said of so many."""
    words = f"args have {size_bytes} bytes, with all digits of numbers like 1e999"
    return f"{words}; at most {MAX_ARGS_BYTES} are allowed"


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ("{}", None),
        ('{"a": [' + "-1.5E-0999, " * 1000 + "1]}", None),
        (json.dumps({"a": [1.7976931348623157e308] * 1000, "b": 5e-324}), None),
        ('{"a": ' + '"1e131071 \\"" ,' * 50 + '"b": 1e131071}', None),
        ('{"a": 1e131071}', None),
        ('{"a": [' + "1e131071, " * 8 + "1]}", problem(8 * 131071 + 90)),
        ('{"a": [' + "1E+0999," * 1100 + "1]}", problem(1100 * 1007 + 10)),
        ('{"a": [' + "1e99," * 12_000 + "1]}", problem(12_000 * 104 + 10)),
        ('{"a": [' + ("1e" + "9" * 5000 + ",") * 9 + "1]}", problem(9 * (131_072 + 5003) + 10)),
        ('"' + "x" * MAX_ARGS_BYTES + '"', problem(MAX_ARGS_BYTES + 2)),
        ("é" * MAX_ARGS_BYTES, problem(2 * MAX_ARGS_BYTES)),
        ("x" * MAX_ARGS_BYTES, None),
    ],
)
def test_numbers_that_print_as_megabytes(args: str, expected: str | None) -> None:
    """Bytes are counted as they come, and each number as all of its digits; strings say anything."""
    assert args_problem(args) == expected
