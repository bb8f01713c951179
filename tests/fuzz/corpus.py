"""The inputs that are kept: one to a line, in base64, the shortest first; and how the few are chosen from very many."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).with_name("corpus.txt")
MOST_BYTES: Final = 40_000  # of all of them
_VARYING: Final = re.compile(r"0x[0-9a-f]+|\d+|'[^']*'|\"[^\"]*\"|\(byte .*?\)|which is .*", re.DOTALL)
_LONGEST: Final = 160


def load(file: Path = FILE) -> list[bytes]:
    """All of them; none where there is no file."""
    return [base64.b64decode(line) for line in file.read_text("ascii").split()] if file.exists() else []


def save(inputs: Iterable[bytes], file: Path = FILE) -> None:
    """Write them down."""
    lines = sorted((base64.b64encode(one).decode() for one in {*inputs}), key=lambda line: (len(line), line))
    file.write_text("".join(f"{line}\n" for line in lines), "ascii")


def alike(found: str) -> str:
    """What was found, without what differs from input to input: numbers and quoted values."""
    return _VARYING.sub("_", found[:2000])[:_LONGEST]


def chosen(
    inputs: Iterable[bytes], look: Callable[[bytes], Iterable[str]], most_bytes: int = MOST_BYTES
) -> Sequence[bytes]:
    """Of *inputs*, the shortest first, those with which something is found that none before has found."""
    known: set[str] = set()
    kept: list[bytes] = []
    size = 0
    for one in sorted({*inputs}, key=lambda data: (len(data), data)):
        found = {alike(word) for word in look(one)} - known
        if found and size + len(one) <= most_bytes:
            known |= found
            kept.append(one)
            size += len(one)
    return kept
