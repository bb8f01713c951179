"""
How long JSON gets in the database: jsonb writes all digits of a number, and 1e999 has a thousand of them. Pure.

What comes here need not be JSON: each step takes a time that grows with the length of the text and no faster.
"""

from __future__ import annotations

import re
from typing import Final

from pulse.protocol import CLAIM_MAX_BYTES

MOST_DIGITS: Final = 131_072  # before the point of a number of PostgreSQL; it refuses those that have more
_GROWTH: Final = 16_386  # bytes that it makes of a character at most: 1e131071 is eight
_EXPONENT: Final = re.compile(r"[0-9][eE][+-]?0*([1-9][0-9]*)")
_STRING: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)  # one that has no end goes to that of the text


def excess(text: str, most_bytes: int) -> int | None:
    """How many bytes jsonb makes of *text* at most, where that is too much; None: it is *most_bytes* or less."""
    if len(text) * _GROWTH <= most_bytes:
        return None  # most are that short
    size_bytes = len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
    if size_bytes <= most_bytes and (2 * size_bytes > most_bytes or _EXPONENT.search(text)):
        bare = _STRING.sub('""', text)
        # Nine digits are enough to see that there are too many, and few enough to be read at once.
        exponents = [int(found[:9]) for found in _EXPONENT.findall(bare)]
        blanks = sum(bare.count(mark) - bare.count(mark + " ") for mark in ",:")
        size_bytes += blanks + sum(min(one, MOST_DIGITS) for one in exponents)
    return size_bytes if size_bytes > most_bytes else None


def comes_back(text: str | None) -> bool:
    """Whether *text*, a worker's progress or checkpoint, still fits into what is handed out with the next attempt."""
    return text is None or excess(text, CLAIM_MAX_BYTES) is None
