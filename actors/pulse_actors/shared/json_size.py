"""
How long JSON becomes in the database: jsonb writes all digits of a number, and 1e999 has a thousand of them. Pure.

The input need not be JSON: each step takes time linear in the length of the text.
"""

from __future__ import annotations

import re
from typing import Final

from pulse.protocol import CLAIM_MAX_BYTES

MOST_DIGITS: Final = 131_072  # before the point of a number; PostgreSQL refuses more
_EXPONENT: Final = re.compile(r"[0-9][eE][+-]?0*([1-9][0-9]*)")
_STRING: Final = re.compile(
    r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL
)  # one without an end goes to the end of the text


def excess(text: str, most_bytes: int) -> int | None:
    """At most how many bytes jsonb makes of *text*, if that is too much; None: *most_bytes* or less."""
    if 5 * len(text) + MOST_DIGITS * _marks(text) <= most_bytes:
        return None  # most are that short, and have that few numbers with an exponent
    size_bytes = len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
    if size_bytes <= most_bytes and (2 * size_bytes > most_bytes or _EXPONENT.search(text)):
        bare = _STRING.sub('""', text)
        # Nine digits show that there are too many, and are few enough to be read at once.
        exponents = [int(found[:9]) for found in _EXPONENT.findall(bare)]
        blanks = sum(bare.count(mark) - bare.count(mark + " ") for mark in ",:")
        size_bytes += blanks + sum(min(one, MOST_DIGITS) for one in exponents)
    return size_bytes if size_bytes > most_bytes else None


def _marks(text: str) -> int:
    """How many numbers with an exponent there may be."""
    return text.count("e") + text.count("E")


def comes_back(text: str | None) -> bool:
    """Whether *text*, a worker's progress or checkpoint, fits into the assignment of the next attempt."""
    return text is None or excess(text, CLAIM_MAX_BYTES) is None
