"""Reads the parts of the documentation that tests hold against the code: sections, tables and code blocks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

DOCS: Final = Path(__file__).resolve().parents[3] / "docs"
_HEADING: Final = re.compile(r"^(#{1,6}) (.+)$")
_FENCE: Final = re.compile(r"^```(\w*)$")
_CELLS: Final = re.compile(r"(?<!\\)\|")

Row = dict[str, str]


def section(page: str, heading: str) -> str:
    """The text under *heading* of *page*, up to the next heading of its level or a higher one."""
    level, lines, fenced = 0, list[str](), False
    for line in page.splitlines():
        fenced ^= _FENCE.match(line) is not None
        found = None if fenced else _HEADING.match(line)
        if found and level and len(found[1]) <= level:
            break
        if level:
            lines.append(line)
        if found and found[2] == heading:
            level = len(found[1])
    if not level:
        raise KeyError(heading)
    return "\n".join(lines)


def table(text: str) -> list[Row]:
    """The first table of *text*: a row by its columns' names, without the backquotes around words."""
    lines = text.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith("|")), None)
    if start is None:
        message = "no table"
        raise LookupError(message)
    columns, _, *rest = [_cells(line) for line in _while_table(lines[start:])]
    return [dict(zip(columns, cells, strict=True)) for cells in rest]


def blocks(text: str, language: str) -> list[str]:
    found: list[str] = []
    inside: list[str] | None = None
    for line in text.splitlines():
        fence = _FENCE.match(line)
        if inside is not None and fence:
            found.append("\n".join(inside))
            inside = None
        elif inside is not None:
            inside.append(line)
        elif fence and fence[1] == language:
            inside = []
    return found


def _while_table(lines: list[str]) -> list[str]:
    end = next((number for number, line in enumerate(lines) if not line.startswith("|")), len(lines))
    return lines[:end]


def _cells(line: str) -> list[str]:
    cells = _CELLS.split(line.strip().removeprefix("|").removesuffix("|"))
    return [cell.replace("\\|", "|").replace("`", "").strip() for cell in cells]
