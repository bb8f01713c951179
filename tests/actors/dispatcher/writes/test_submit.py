"""Submits that are refused without the database."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from pulse.errors import BadRequestError
from pulse_actors.dispatcher.writes.submit import MAX_ARGS_BYTES, args_problem, checked
from tests.support.store.helpers import job


def problem(size_bytes: int, words: str = " as PostgreSQL prints them, with all digits of numbers like 1e999") -> str:
    return f"args have {size_bytes} bytes{words}; at most {MAX_ARGS_BYTES} are allowed"


def wrapped(number: str, count: int) -> str:
    return f'{{"a":[{",".join([number] * count)}]}}'


@pytest.mark.parametrize(("args", "expected"), [
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
], ids=itertools.count())  # fmt: skip
def test_numbers_that_print_as_megabytes(args: str, expected: str | None) -> None:
    """Bytes count as PostgreSQL prints them: each number with all of its digits; not so in strings."""
    assert args_problem(args) == expected


@pytest.mark.parametrize(("fields", "said"), [
    ({"args": f'"{"x" * MAX_ARGS_BYTES}"'}, "args have "),
    ({"run_at": 1.0, "delay_s": 1.0}, "run_at and delay_s are both given; "),
    ({"run_at": -1e11}, "run_at is -1e+11; Unix seconds of the years 1 to 9999 are allowed"),
    ({"expires_at": -1e11}, "expires_at is -1e+11; Unix seconds of the years 1 to 9999 are allowed"),
    ({"expires_in_s": 1.0, "expires_at": 4e9}, "expires_at and expires_in_s are both given; "),
    ({"expires_in_s": 1.0, "delay_s": 1.0}, "expires_in_s is 1; more than delay_s, 1, is allowed"),
    ({"unique_until": "end"}, "unique_until or on_conflict is given; they are allowed with unique only"),
    ({"on_conflict": "skip"}, "unique_until or on_conflict is given; they are allowed with unique only"),
    ({"on_failure": "run"}, "on_failure is given; it is allowed with after only"),
    ({"after": [], "on_failure": "run"}, "on_failure is given; it is allowed with after only"),
    ({"expires_at": 3e9, "run_at": 4e9}, "expires_at is 3000000000; more than run_at, 4000000000, is allowed"),
], ids=itertools.count())  # fmt: skip
def test_a_bad_job_is_named_with_what_is_allowed(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRequestError) as refused:
        checked([job(), job(**fields)])
    assert refused.value.message.startswith(f"job 1 (n): {said}")


def test_what_is_right_passes_as_it_is() -> None:
    jobs = [job(run_at=1.0), job(delay_s=1.0, expires_in_s=2.0), job(run_at=1.0, expires_at=2.0)]
    assert checked(jobs) == jobs
