"""Notes what a test reaches: lines of code, statements that it sends, and what these call in the schema."""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

import asyncpg

from tests.mutants import judges
from tests.mutants.source import SCHEMA, statement_of, statements
from tests.plugins.databases import EMPTY

_OFTEN: Final = 60  # calls of a function in one test, of which the lines are noted


class Reached(NamedTuple):
    """
    What one test did without any mutant.

    Attributes:
        took_s: With what it sets up.
        passed: Else it judges nothing.
        lines: path -> bits, one for each line, and names of statements sent.
        why: It failed: the last line of its error; it was skipped, or passed: "".
    """

    took_s: float
    passed: bool
    lines: dict[str, int]
    why: str = ""


class Recorder:
    """
    Records tests of this process, one after the other.

    Args:
        paths: The files whose lines are noted; none: only what is sent.
    """

    def __init__(self, paths: frozenset[str]) -> None:
        self._paths = paths
        self._sent = _watch_statements()

    def record(self, run: Callable[[], tuple[bool, str]]) -> Reached:
        """What the test does that *run* runs, which returns whether it passed, and why not."""
        lines: defaultdict[CodeType, set[int]] = defaultdict(set)
        self._sent.clear()
        trace = _tracer(self._paths, lines) if self._paths else None
        begun_s = time.perf_counter()
        threading.settrace(trace)
        sys.settrace(trace)
        passed, why = run()
        sys.settrace(None)
        threading.settrace(None)
        bits: defaultdict[str, int] = defaultdict(int, dict.fromkeys(self._sent, 1))
        for code, numbers in lines.items():
            for number in numbers:
                bits[code.co_filename] |= 1 << number
        return Reached(time.perf_counter() - begun_s, passed, dict(bits), why)


def _watch_statements() -> set[str]:
    """Record the names of statements that are sent from now on, and what they call."""
    names = {statement_of(name).sql: name for name in statements() if name != SCHEMA}
    sent: set[str] = set()
    connection: Any = asyncpg.Connection

    def watched(method: Any) -> Any:
        def call(self: Any, query: str, *words: Any, **options: Any) -> Any:
            prepared = query.partition("PREPARE ")[2].partition(" AS ")[2]
            sent.update(names[text] for text in (query, prepared) if text in names)
            if query != EMPTY:
                sent.update(judges.parts_of(query))
            return method(self, query, *words, **options)

        return call

    for name in ("_get_statement", "execute"):
        setattr(connection, name, watched(getattr(connection, name)))
    return sent


def _tracer(paths: frozenset[str], lines: defaultdict[CodeType, set[int]]) -> Any:
    calls: defaultdict[CodeType, int] = defaultdict(int)

    def call(frame: FrameType, event: str, _: object) -> Any:
        code = frame.f_code
        if event != "call" or code.co_filename not in paths:
            return None
        if frame.f_trace is not None:  # a coroutine goes on: that is no other call
            return frame.f_trace
        calls[code] += 1
        if calls[code] > _OFTEN:
            return None
        add = lines[code].add

        def line(inner: FrameType, event: str, _: object) -> Any:
            if event == "line":
                add(inner.f_lineno)
            return line

        return line

    return call
