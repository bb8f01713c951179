"""
Advice with links: a command that the doctor or `jobs why` names becomes a link to the page that does the same.

What has no page stays as it is, to be typed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import Final
from urllib.parse import urlencode

from markupsafe import Markup

from pulse.ui.view.formatting import foreign

_COMMANDS: Final = frozenset({"pulse", "kill", "SELECT", "ROLLBACK"})
_ID: Final = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_OPTIONS: Final = r"((?: --(?:status|topic|name) (?:'[^']*'|\S+))*)"
_COLUMNS: Final = 400

Found = re.Match[str]


def _query(found: Found) -> str:
    words = shlex.split(found[1])
    return urlencode([(name.removeprefix("--"), value) for name, value in zip(words[::2], words[1::2], strict=True)])


def _gate(found: Found) -> str:
    query = _query(found)
    return f"/topics/view?{query}" if query else "/gate"


# A command, the page that does the same, what the link says, and what is said on that page itself.
_PAGES: Final[tuple[tuple[re.Pattern[str], Callable[[Found], str], str, str], ...]] = (
    (re.compile(rf"pulse ctl jobs (?:get|why) ({_ID})"), lambda found: f"/jobs/{found[1]}", "its page", "below"),
    (re.compile(rf"pulse ctl jobs stack ({_ID})"), lambda found: f"/jobs/{found[1]}/stack", "its stack", ""),
    (
        re.compile(rf"pulse ctl jobs (?:retry|cancel) ({_ID})"),
        lambda found: f"/jobs/{found[1]}",
        "its page",
        "the button above",
    ),
    (re.compile(r"pulse ctl jobs (?:get|why) ID\b"), lambda _: "/jobs?status=PENDING&due=yes", "the page of a job", ""),
    (re.compile(r"pulse ctl jobs retry ID…?"), lambda _: "/dead", "retry them under Dead letters", "retry them below"),
    (re.compile("pulse ctl jobs list" + _OPTIONS), lambda found: f"/jobs?{_query(found)}", "list these jobs", ""),
    (re.compile("pulse ctl dispatch resume" + _OPTIONS), _gate, "resume", ""),
    (re.compile(r"pulse ctl workers\b"), lambda _: "/workers", "Workers", "below"),
)


def linked(line: str, path: str = "") -> Markup:
    """A line of advice; *path*: of the page on which it stands."""
    line = foreign(line, _COLUMNS)
    for pattern, page, label, here in _PAGES:
        if (found := pattern.search(line)) is None:
            continue
        to = page(found)
        is_here = bool(here) and to == path
        link = Markup("{}").format(here) if is_here else Markup('<a href="{}">{}</a>').format(to, label)
        return Markup("{}{}{}").format(line[: found.start()], link, linked_rest(line[found.end() :], path))
    if line.partition(" ")[0] in _COMMANDS and not line.endswith("."):  # else it is a sentence
        return Markup("<code>{}</code>").format(line)
    return Markup("{}").format(line)


def linked_rest(text: str, path: str) -> Markup:
    """What comes behind a link: it may name another command."""
    return linked(text, path) if "pulse ctl" in text else Markup("{}").format(text)
