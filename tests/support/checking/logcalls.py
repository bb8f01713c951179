"""Finds every event that the product logs by reading its source: the name, or the fixed parts of a composed one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LEVELS: Final = frozenset({"debug", "info", "warning", "error", "critical", "exception"})
LOGGERS: Final = frozenset({"log", "_log", "logger"})
CALLABLES: Final = frozenset({"log", "_log", "tell"})  # a bound method of a logger, handed over


@dataclass(frozen=True, slots=True)
class LogCall:
    """One call; *event* is None where the name is composed, *text* its constant parts; *spread*: with ``**fields``."""

    path: Path
    line: int
    level: str
    event: str | None
    text: str
    fields: frozenset[str]
    spread: bool


def log_calls(root: Path) -> Iterator[LogCall]:
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and (level := _level(node.func)) and node.args:
                yield _call(path, node, level)


def _level(function: ast.expr) -> str:
    """The level of a call that logs, '?' where the caller chose it; '' for other calls."""
    match function:
        case ast.Attribute(value=ast.Name(id=name) | ast.Attribute(attr=name), attr=level) if (
            name in LOGGERS and level in LEVELS
        ):
            return "error" if level == "exception" else level
        case ast.Name(id=name) | ast.Attribute(attr=name) if name in CALLABLES:
            return "?"
        case _:
            return ""


def _call(path: Path, node: ast.Call, level: str) -> LogCall:
    named = {keyword.arg for keyword in node.keywords if keyword.arg is not None}
    is_exception = isinstance(node.func, ast.Attribute) and node.func.attr == "exception"
    fields = frozenset(named - {"exc_info"} | ({"exception"} if is_exception or "exc_info" in named else set[str]()))
    spread = any(keyword.arg is None for keyword in node.keywords)
    match node.args[0]:
        case ast.Constant(value=str(event)):
            return LogCall(path, node.lineno, level, event, event, fields, spread)
        case ast.JoinedStr(values=values):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in values)
            return LogCall(path, node.lineno, level, None, text, fields, spread)
        case other:
            return LogCall(path, node.lineno, level, None, ast.unparse(other), fields, spread)
