"""Values of labels: anybody may name a topic."""

from __future__ import annotations

import re
import zlib
from typing import Final

LONGEST: Final = 80
_UNFIT: Final = re.compile(
    "[^\\x20-\\x7e\u00a0-\u200a\u2010-\u2027\u2030-\u205f\u2070-\ud7ff\uf900-\ufefe\uff00-\uffef]"
)


def clean(text: str) -> str:
    """*text* as a label's value: short, printable, in one line; what has to be changed keeps a mark of its own."""
    fit = _UNFIT.sub("?", text)[:LONGEST]
    return fit if fit == text else f"{fit}#{zlib.crc32(text.encode('utf-8', 'surrogatepass')):08x}"
