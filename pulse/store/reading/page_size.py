"""
Cuts pages of jobs to the size of one frame.

Args and results may be of any length in the database: SQL submits any, and jsonb puts a space behind each comma. A row
that is too long is returned without its longest texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from pulse.protocol import MAX_FRAME_BYTES

Row = dict[str, object]

PAGE_BYTES: Final = 4 * 1024 * 1024  # of text in a page; half a frame, so that the names around it always fit too
ROW_BYTES: Final = MAX_FRAME_BYTES - 192 * 1024  # of text in one row with its history; beside it are relatives, signals
_ENTRY_BYTES: Final = 512  # of names, numbers and times around the texts of one attempt: about half of that
LONG: Final = ("args", "result", "progress", "last_error")


def text_bytes(row: Mapping[str, object]) -> int:
    """Bytes of text in *row*, as UTF-8."""
    return sum(_length(value) for value in row.values() if isinstance(value, str))


def _length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def fit_row(row: Row, max_bytes: int = ROW_BYTES) -> Row:
    """
    *row*, unchanged if its text has at most *max_bytes*.

    Else its longest texts are replaced by None until it fits, and ``omitted`` names them.
    """
    omitted = _too_long(row, max_bytes)
    return {**row, **dict.fromkeys(omitted), "omitted": omitted} if omitted else row


def _too_long(row: Row, max_bytes: int) -> list[str]:
    excess = text_bytes(row) - max_bytes
    if excess <= 0:
        return []
    lengths = {name: _length(value) for name in LONG if isinstance(value := row.get(name), str)}
    omitted: list[str] = []
    for name in sorted(lengths, key=lambda name: -lengths[name]):
        if excess <= 0:
            break
        omitted.append(name)
        excess -= lengths[name]
    return omitted


def fit_job(row: Row, history: Sequence[Row], max_bytes: int = ROW_BYTES) -> Row:
    """*row* with its ``history``; if that is too long, the oldest attempts are left out, and ``omitted`` names it."""
    fitted = fit_row(row, max_bytes)
    left = max_bytes - text_bytes(fitted)
    kept = 0
    for entry in reversed(history):
        left -= text_bytes(entry) + _ENTRY_BYTES
        if left < 0:
            break
        kept += 1
    if kept == len(history):
        return {**fitted, "history": list(history)}
    omitted = [*_too_long(row, max_bytes), "history"]
    return {**fitted, "history": list(history[len(history) - kept :]), "omitted": omitted}


class PageRows:
    """
    A page that is filled piece by piece.

    Args:
        max_bytes: Bytes of text in all rows; the first row is taken even if it has more.

    Attributes:
        rows: Its rows.
        is_full: Whether a row did not fit: the rest is for the next page.
    """

    def __init__(self, max_bytes: int = PAGE_BYTES) -> None:
        self.rows: list[Row] = []
        self.is_full = False
        self._left = max_bytes

    def take(self, rows: Iterable[Row]) -> None:
        """Add the next *rows* while they fit, each cut to the size of a frame."""
        for row in map(fit_row, rows):
            self._left -= text_bytes(row)
            if self.rows and self._left < 0:
                self.is_full = True
                return
            self.rows.append(row)


def fit_page(rows: Iterable[Row], max_bytes: int = PAGE_BYTES) -> list[Row]:
    """The first of *rows* that together have at most *max_bytes* of text; at least one, if there is one."""
    page = PageRows(max_bytes)
    page.take(rows)
    return page.rows
