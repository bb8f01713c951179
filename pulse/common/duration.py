"""
Lengths of time as people type them, in seconds: ``90``, ``5m``, ``2h30m``.

The one parser of options, settings and the fields of the dashboard. It also reads what ``text.duration`` writes.
"""

from __future__ import annotations

import math
import re
from typing import Final

MAX_SECONDS: Final = 1e9  # 31 years, as on the wire
_UNITS_S: Final = {"d": 86400.0, "h": 3600.0, "min": 60.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_NUMBER: Final = r"(\d+(?:\.\d+)?|\.\d+)\s*"
# Each unit once, the longest first: 5m5m and 5m1h are slips of the hand.
_PARTS: Final = re.compile(
    rf"(?:{_NUMBER}(d)\s*)?(?:{_NUMBER}(h)\s*)?(?:{_NUMBER}(min|m)(?!s)\s*)?(?:{_NUMBER}(s)\s*)?(?:{_NUMBER}(ms))?",
    re.ASCII | re.IGNORECASE,
)
ABOVE_ZERO: Final = "a length of time above 0 is allowed, as 90 (seconds), 5m or 2h30m; at most 1e9 seconds"
ZERO_OR_MORE: Final = "a length of time, 0 or more, is allowed, as 90 (seconds), 5m or 2h30m; at most 1e9 seconds"


def allowed(*, zero: bool) -> str:
    """What may be typed; *zero*: also 0."""
    return ZERO_OR_MORE if zero else ABOVE_ZERO


def seconds_of(text: str, *, zero: bool = False) -> float:
    """
    The seconds that *text* says; *zero*: whether 0 is allowed.

    Raises:
        ValueError: It says no length of time, or one that is not allowed; the message is what is.
    """
    seconds = _parsed(text.strip())
    if (seconds >= 0 if zero else seconds > 0) and seconds <= MAX_SECONDS:
        return seconds
    raise ValueError(allowed(zero=zero))


def exact(seconds: float) -> str:
    """*seconds* as they are typed, without loss: ``7d``, ``1h30m``, ``0.5s``; 0 is ``0``."""
    if seconds <= 0 or seconds >= MAX_SECONDS:
        return f"{seconds:g}"
    parts: list[str] = []
    left_s = seconds
    for unit in ("d", "h", "m"):
        number, left_s = divmod(left_s, _UNITS_S[unit])
        parts += [f"{number:.0f}{unit}"] if number else []
    return "".join([*parts, f"{left_s:.12g}s"] if left_s else parts)


def _parsed(text: str) -> float:
    """The seconds; not a number where *text* is not understood."""
    try:
        return float(text)
    except ValueError:
        parts = _PARTS.fullmatch(text)
    found = [] if parts is None else [one for one in parts.groups() if one is not None]
    pairs = list(zip(found[::2], found[1::2], strict=True))
    return math.fsum(float(number) * _UNITS_S[unit.lower()] for number, unit in pairs) if pairs else math.nan
