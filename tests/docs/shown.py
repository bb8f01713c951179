"""
A page's sample output, compared with what the command prints.

Both must be equal, but for what differs from run to run. An id stands for the id that takes its place, the same one
wherever it is shown again, and so does a pid behind that word; the first digits of an id stand for those of any; a time
stands for any time, a duration for any duration, a user for any user, a number of four digits and more for any number;
``…`` for anything, alone in a line for any lines. The width of gaps does not count.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

UUID: Final = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_BEGIN: Final = r"\b[0-9a-f]{8}-[0-9a-f-]{2,27}(?![0-9a-f-])"
_TIME: Final = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:\d\d)?"
_DURATION: Final = r"\d[\d.,]* (?:ms|s|min|h|d|days?)\b"
_TOKENS: Final = re.compile(
    rf"(?P<uuid>{UUID})|(?P<begin>{_BEGIN})|(?P<time>{_TIME})|(?P<ago>{_DURATION} ago)|(?P<duration>{_DURATION})"
    r"|(?<=pid )(?P<pid>\d+)|(?P<number>\b\d{4,}\b)|(?P<who>\buid \d+ \([\w-]+\))"
    r"|(?P<lines>^[ ]*…\n)|(?P<some>…)|(?P<gap>[ ]+)",
    re.MULTILINE,
)
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

Known = dict[str, str]  # ids and pids as the page shows them -> as they are


def plain(output: str) -> str:
    text = _ESCAPES.sub("", output).replace("\r\n", "\n")
    return "\n".join(line.rpartition("\r")[2].rstrip() for line in text.strip().split("\n"))


def with_known(command: str, known: Known) -> str:
    """A command to run: with the real ids and pids for those of the page."""
    return re.sub(rf"{UUID}|\b\d{{3,}}\b", lambda match: known.get(match[0], match[0]), command)


def compare(shown: str, said: str, known: Known) -> bool:
    """Whether *said* is what the page has *shown*; learns the ids that it meets."""
    names: dict[str, str] = {}
    match = re.fullmatch(_pattern(plain(shown) + "\n", known, names), plain(said) + "\n")
    if match is None:
        return False
    known.update({uuid: match[name] for uuid, name in names.items()})
    return True


def _pattern(shown: str, known: Known, names: dict[str, str]) -> str:
    parts, end = list[str](), 0
    for token in _TOKENS.finditer(shown):
        parts += [re.escape(shown[end : token.start()]), _KINDS[str(token.lastgroup)](token[0], known, names)]
        end = token.end()
    return "".join([*parts, re.escape(shown[end:])])


def _same(pattern: str) -> Callable[[str, Known, dict[str, str]], str]:
    """The real value, where the page has shown it before."""

    def one(text: str, known: Known, names: dict[str, str]) -> str:
        if text in known:
            return re.escape(known[text])
        if text in names:
            return f"(?P={names[text]})"
        names[text] = f"id{len(names)}"
        return f"(?P<{names[text]}>{pattern})"

    return one


def _always(pattern: str) -> Callable[[str, Known, dict[str, str]], str]:
    return lambda _text, _known, _names: pattern


_KINDS: Final[dict[str, Callable[[str, Known, dict[str, str]], str]]] = {
    "uuid": _same(UUID), "begin": _always(_BEGIN), "pid": _same(r"\d+"), "time": _always(_TIME),
    "ago": _always(rf"(?:{_DURATION} ago|just now|now)"), "duration": _always(_DURATION), "number": _always(r"\d+"),
    "who": _always(r"uid \d+ \([\w-]+\)"), "lines": _always(r"(?:[^\n]*\n)*?"), "some": _always(r"[^\n]*?"),
    "gap": _always(r"[ ]+"),
}  # fmt: skip
