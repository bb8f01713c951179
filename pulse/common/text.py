"""Numbers, times and foreign text in words for people. Pure: no clock, no terminal."""

from __future__ import annotations

import shlex
import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

ELLIPSIS: Final = "…"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TAB: Final = "    "
_SHORT_LINE: Final = 200  # characters; longer lines are cut themselves
# Below so many seconds a duration is shown in this unit; at least two of a unit, so that rounding is never far off.
_UNITS: Final = ((120.0, 1, "s"), (7_200.0, 60, "min"), (172_800.0, 3_600, "h"), (float("inf"), 86_400, "d"))
_TENTHS_BELOW_S: Final = 10.0
_MILLISECONDS_BELOW_S: Final = 0.1
# What differs from job to job in an error: mail addresses, UUIDs, addresses in memory, other hex ids, IPv6, numbers and
# IPv4. PostgreSQL groups dead letters by it, too.
VARIES: Final = (
    r"[^\s<>\"'(),;=]+@[\w.-]+|[0-9a-f]{8}-[0-9a-f-]{27}|0x[0-9a-f]+|(?<![0-9a-z])(?=[a-f]*\d)[0-9a-f]{8,}(?![0-9a-z])"
    r"|\b(?:[0-9a-f]{1,4}:){2,7}[0-9a-f]{1,4}\b|\d+(?:[.:,]\d+)*"
)
_NOW_BELOW_S: Final = 0.5  # the clocks of two hosts agree no better than that


def iso(seconds: float) -> str:
    """
    Unix *seconds* as ISO 8601 in UTC, to the microsecond where there is one: ``2030-01-31T12:00:00Z``.

    Raises:
        OverflowError: The time lies outside the years 1 to 9999.
    """
    moment = _EPOCH + timedelta(microseconds=round(seconds * 1e6))
    return moment.replace(tzinfo=None).isoformat() + "Z"


def duration(seconds: float) -> str:
    """A length of time, as ``7 ms``, ``3.5 s``, ``42 s``, ``5 min``, ``3 h``, ``12 d``."""
    seconds = max(0.0, seconds)
    if 0 < seconds < _MILLISECONDS_BELOW_S:
        return f"{max(1, round(seconds * 1000))} ms"
    if seconds < _TENTHS_BELOW_S:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    size, unit = next((size, unit) for below, size, unit in _UNITS if seconds < below)
    return f"{int(seconds / size)} {unit}"


def ago(moment_s: float, now_s: float) -> str:
    """How far *moment_s* is from *now_s*: ``3 min ago``, ``in 12 s``, ``now``."""
    distance_s = now_s - moment_s
    if abs(distance_s) < _NOW_BELOW_S:
        return "now"
    return f"{duration(distance_s)} ago" if distance_s > 0 else f"in {duration(-distance_s)}"


def count(number: int, noun: str, plural: str | None = None) -> str:
    """*number* things, as ``1 job`` or ``12,000 jobs``."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def printable(text: str, *, keep_lines: bool = False) -> str:
    """
    *text* with every character that could act on a terminal, or hide, written as its escape.

    Args:
        text: Anything: a name, an error, a worker's topic.
        keep_lines: Leave line breaks as they are and show tabs as spaces.
    """
    if text.isprintable():
        return text
    if keep_lines:
        lines = text.replace("\r\n", "\n").replace("\t", _TAB).split("\n")
        return "\n".join(map(printable, lines))
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def shell_word(text: str) -> str:
    """*text* quoted as one word of a command line, for people to copy into bash or zsh."""
    if text.isprintable():
        return shlex.quote(text)
    escaped = "".join(char if char.isprintable() and char not in "\\'" else _shell_escaped(char) for char in text)
    return f"$'{escaped}'"


def one_line(text: str) -> str:
    """*text* on one line: runs of white space become one space, the rest is made printable."""
    return printable(" ".join(text.split()))


def width_of(text: str) -> int:
    """How many columns of a terminal *text* (printable) takes: wide characters two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(map(_char_width, text))


def cut(text: str, width: int) -> str:
    """*text* in at most *width* columns; what is missing is shown by an ellipsis."""
    if width_of(text) <= width:
        return text
    room = width - 1
    kept = 0
    for char in text:
        room -= _char_width(char)
        if room < 0:
            break
        kept += 1
    return (text[:kept].rstrip() + ELLIPSIS) if width > 0 else ""


def headline(error: str) -> str:
    """The line of an error that says what happened: the last of a bare traceback, else the first."""
    text = error.strip()
    if text.startswith("Traceback "):
        return text.rsplit("\n", 1)[-1]
    return text.split("\n", 1)[0]


def cut_middle(text: str, max_bytes: int) -> str:
    """
    *text* in at most *max_bytes* of UTF-8: of a long one the middle is left out, and a line says how much.

    The begin of an error says what it is about, and its end where it happened.
    """
    if len(text) <= max_bytes // 4 and text.isascii():
        return text
    data = text.encode("utf-8", "replace")
    if len(data) <= max_bytes:
        return data.decode()
    room = max_bytes - len(_left_out(len(data)).encode())
    if room <= 0:
        return data[:max_bytes].decode("utf-8", "ignore")
    head = data[: room // 2].decode("utf-8", "ignore")
    tail = data[len(data) - (room - room // 2) :].decode("utf-8", "ignore")
    if len(head) - (end := head.rfind("\n")) <= _SHORT_LINE and end > 0:
        head = head[:end]
    if 0 <= (begin := tail.find("\n")) <= _SHORT_LINE:
        tail = tail[begin + 1 :]
    return f"{head}{_left_out(len(data) - len(head.encode()) - len(tail.encode()))}{tail}"


def _left_out(size_bytes: int) -> str:
    return f"\n… {size_bytes:,} bytes left out …\n"


def similar_names(name: str, names: Sequence[str], most: int = 3, least: float = 0.6) -> list[str]:
    """Up to *most* of *names* whose similarity to *name* is *least* (0 to 1) or more, the most similar first."""
    import difflib  # for messages only: most programs that import this never need it

    return difflib.get_close_matches(name, names, most, least)


def _char_width(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in {"W", "F"} else 1


def _shell_escaped(char: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "replace"))


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
