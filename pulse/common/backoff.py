"""
Back-off: how long to wait after the n-th charged try, as one word. Pure.

The words are those of ``pulse.topics.backoff``; a test compares this with ``pulse.backoff_s`` in the database. Here it
is used for the ``retry_on`` of handlers, which the worker evaluates.
"""

from __future__ import annotations

import random
import re
from typing import Final

from pulse.common.duration import MAX_SECONDS, seconds_of

_SECONDS: Final = r"\d{1,9}(\.\d{1,6})?"
PATTERN: Final = (
    rf"^(quadratic(:{_SECONDS})?|exponential(:{_SECONDS}){{0,2}}|fixed:{_SECONDS}|list:{_SECONDS}(,{_SECONDS})*)\Z"
)
ALLOWED: Final = (
    "quadratic[:UNIT], exponential[:FIRST[:LONGEST]], fixed:SECONDS, list:SECONDS,SECONDS,... "
    "with seconds from 0 to 999999999"
)
MAX_BACKOFF: Final = 500  # characters; as in the database
_MAX_DOUBLINGS: Final = 40  # beyond, every product is longer than MAX_SECONDS
_FIRST_S: Final = 1.0
_LONGEST_S: Final = 3600.0  # a service that is down is asked once an hour
_SEPARATORS: Final = re.compile("([:,])")
_PLAIN: Final = re.compile(_SECONDS, re.ASCII)
_WORD: Final = re.compile(PATTERN, re.ASCII)


def is_backoff(word: object) -> bool:
    """Whether *word* is a back-off."""
    return isinstance(word, str) and len(word) <= MAX_BACKOFF and _WORD.search(word) is not None


def in_seconds(word: str) -> str:
    """*word* with its durations in seconds: ``exponential:1s:10m`` is ``exponential:1:600``; the rest stays."""
    kind, *durations = _SEPARATORS.split(word)
    return kind + "".join(one if _SEPARATORS.fullmatch(one) else _plain(one) for one in durations)


def _plain(text: str) -> str:
    if _PLAIN.fullmatch(text):
        return text  # as it was written
    try:
        return f"{seconds_of(text, zero=True):.15g}"
    except ValueError:
        return text


def backoff_s(word: str, tries: int) -> float:
    """
    Seconds to wait after charged try number *tries* (the first is 1).

    Exponential waits are drawn between half and the whole, so that jobs that failed together are not retried together.

    Raises:
        ValueError: *word* is not a back-off.

    Source: docs/adr/0032-policy.md.
    """
    if not is_backoff(word):
        raise ValueError(f"backoff is {word!r:.100}; allowed are {ALLOWED}")
    kind, *numbers = word.split(":")
    match kind:
        case "fixed":
            return float(numbers[0])
        case "list":
            delays = numbers[0].split(",")
            return float(delays[min(max(tries, 1), len(delays)) - 1])
        case "exponential":
            first_s, longest_s = ([float(one) for one in numbers] + [_FIRST_S, _LONGEST_S][len(numbers) :])[:2]
            whole_s = min(longest_s, first_s * 2.0 ** min(max(tries, 1) - 1, _MAX_DOUBLINGS))
            return whole_s * random.uniform(0.5, 1.0)  # noqa: S311 - jitter is no secret
        case _:
            unit_s = float(numbers[0]) if numbers else 1.0
            return min(unit_s * float(tries) ** 2, MAX_SECONDS)
