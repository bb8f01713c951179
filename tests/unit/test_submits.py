"""What of args can be told without the database."""

from __future__ import annotations

import json
from typing import Final

import pytest

from pulse_actors.dispatcher.submits import MAX_ARGS_BYTES, args_problem

WORDS: Final = "at most 999 is allowed: PostgreSQL writes all digits"


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ("{}", None),
        ('{"a": 1e999, "b": -1.5E-0999}', None),
        (json.dumps({"a": 1.7976931348623157e308, "b": 5e-324}), None),
        ('{"a": "1e131071", "b\\\\": "\\"9E9999", "1e1000": 1}', None),
        ('{"a": 1e131071}', f"args have a number with the exponent 131071; {WORDS}"),
        ('{"a": "1e131071", "b": [5E+01000]}', f"args have a number with the exponent +01000; {WORDS}"),
        ('{"a": "\\"", "b": -2.5e-16383}', f"args have a number with the exponent -16383; {WORDS}"),
        ('{"a": 1e' + "9" * 40 + "}", f"args have a number with the exponent {'9' * 20}; {WORDS}"),
        (
            '"' + "x" * MAX_ARGS_BYTES + '"',
            f"args have {MAX_ARGS_BYTES + 2} bytes; at most {MAX_ARGS_BYTES} are allowed",
        ),
        ("é" * MAX_ARGS_BYTES, f"args have {2 * MAX_ARGS_BYTES} bytes; at most {MAX_ARGS_BYTES} are allowed"),
    ],
)
def test_numbers_that_print_as_megabytes(args: str, problem: str | None) -> None:
    """Bytes are counted as they come; a number has no more digits than letters; strings say anything."""
    assert args_problem(args) == problem
