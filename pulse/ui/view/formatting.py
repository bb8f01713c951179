"""How values look on a page. Pure: no clock but the one that is given, and nothing that a browser could act on."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from typing import Final
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from markupsafe import Markup, escape

from pulse.common.text import VARIES, ago, count, cut, cut_middle, duration, headline, iso, one_line, printable
from pulse.ops.job_text import pretty
from pulse.security.codec import shown_instead

__all__ = [
    "ago",
    "block",
    "clock",
    "count",
    "duration",
    "exactly",
    "first_line",
    "foreign",
    "iso",
    "json_block",
    "json_line",
    "kin",
    "lasting",
    "local_time",
    "number",
    "pill",
    "size",
    "stamp",
    "trace",
    "uuid",
    "whole",
    "zone_of",
]

BLOCK_CHARACTERS: Final = 20_000  # of args, results, errors and stacks on a page; the rest is a download
_LINE_CHARACTERS: Final = 120
_KIB: Final = 1024
_DECIMALS_BELOW: Final = 10
_KEPT: Final = 4  # characters that are looked at for each one that is shown: wide ones, escapes
_VARIES: Final = re.compile(VARIES, re.IGNORECASE)


def foreign(text: object, width: int = _LINE_CHARACTERS) -> str:
    """What others wrote, on one line, cut: directions and what hides become escapes; the template does the markup."""
    given = str(text)
    return cut(one_line(given[: width * _KEPT]), width)


def whole(text: object) -> str:
    """The same, uncut: for what is a value of a form or a title."""
    return printable(str(text))


def block(text: str, limit: int = BLOCK_CHARACTERS) -> str:
    """Several lines that others wrote; the end of a long text is left out, and that is said."""
    shown = printable(text[:limit].rstrip("\n"), keep_lines=True)
    return shown if len(text) <= limit else f"{shown}\n… {len(text) - limit:,} more characters"


def json_block(text: str, limit: int = BLOCK_CHARACTERS) -> str:
    """JSON text, indented where it is short enough to be read; of one that is encrypted, only that."""
    instead = shown_instead(text)
    if instead is not None:
        return instead
    if len(text) <= limit:
        with contextlib.suppress(msgspec.DecodeError, RecursionError):  # then it is shown as it came
            text = pretty(text, 60)
    return block(text, limit)


def json_line(text: str | None, width: int = _LINE_CHARACTERS) -> str:
    """The begin of a JSON text, on one line; of one that is encrypted, only that."""
    instead = shown_instead(text)
    if instead is not None:
        return instead
    return "" if text is None or text == "{}" else foreign(text, width)


def first_line(text: str | None, width: int = _LINE_CHARACTERS) -> str:
    """The line of an error that says what happened."""
    return foreign(headline(text or ""), width)


def trace(text: str, limit: int = BLOCK_CHARACTERS) -> str:
    """An error with its traceback; of a long one the middle is left out, and that is said."""
    return printable(cut_middle(text.rstrip("\n"), limit), keep_lines=True)


def kin(text: str | None) -> str:
    """An error without what differs from job to job: numbers, addresses, ids."""
    return _VARIES.sub("#", first_line(text, 200))


def number(value: float | None) -> str:
    """A count or a rate, with as many digits as mean something."""
    if value is None:
        return "–"
    if isinstance(value, int) or value >= _DECIMALS_BELOW:
        return f"{value:,.0f}"
    return f"{value:.1f}".removesuffix(".0")


def size(value: float) -> str:
    """A number of bytes."""
    for unit in ("B", "KiB", "MiB"):
        if value < _KIB:
            return f"{number(value)} {unit}"
        value /= _KIB
    return f"{number(value)} GiB"


def uuid(value: bytes | str) -> str:
    """An id of the wire as text."""
    if not isinstance(value, bytes):
        return str(UUID(value))
    digits = value.hex()  # a page may have a thousand: a UUID takes three times as long
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


@functools.lru_cache(64)
def pill(status: str) -> Markup:
    """A status as a coloured word; there are few, and each row has one."""
    return Markup('<span class="status {}">{}</span>').format(status.lower(), status.lower().replace("_", " "))


def stamp(moment_s: float | None, now_s: float, zone: tzinfo = UTC) -> Markup:
    """A time, relative; its exact value below the pointer, and for machines."""
    return _moment(moment_s, lambda known_s: ago(known_s, now_s), zone)


def lasting(moment_s: float | None, now_s: float) -> Markup:
    """For how long something lasts that began then; its exact begin below the pointer."""
    return _moment(moment_s, lambda known_s: f"for {duration(now_s - known_s)}", UTC)


def _moment(moment_s: float | None, say: Callable[[float], str], zone: tzinfo) -> Markup:
    if moment_s is None:
        return Markup("–")
    try:
        exact = iso(moment_s)
        if zone is UTC:
            local = f"{exact[:10]} {exact[11:19]} UTC"
        else:
            local = escape(datetime.fromtimestamp(moment_s, zone).strftime("%Y-%m-%d %H:%M:%S %Z"))
    except (OverflowError, ValueError, OSError):
        return Markup("never")
    return Markup(f'<time datetime="{exact}" title="{local}">{say(moment_s)}</time>')  # noqa: S704 -- all our own


def exactly(moment_s: float | None, now_s: float) -> Markup:
    """A time as a clock shows it, and how long ago: for what is compared with a log, or with another clock."""
    if moment_s is None:
        return Markup("–")
    try:
        exact = iso(int(moment_s))
    except (OverflowError, ValueError):
        return Markup("never")
    return Markup('<time datetime="{}">{} {}</time> ({})').format(exact, exact[:10], exact[11:], ago(moment_s, now_s))


def local_time(moment_s: float, zone: tzinfo) -> str:
    """A time on the clocks of a zone, to the second."""
    try:
        return datetime.fromtimestamp(moment_s, zone).strftime("%a %Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return "never"


def clock(moment_s: float) -> str:
    """A time of today, UTC."""
    return datetime.fromtimestamp(moment_s, UTC).strftime("%H:%M:%S")


def zone_of(name: str) -> tzinfo:
    """The zone of this name, UTC where this machine does not know it."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return UTC
