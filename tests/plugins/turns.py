"""
A pytest plugin that divides the tests marked ``rest``: PULSE_TEST_TURN=2/3 leaves out all of them but the second third.

A test belongs to the same part in every run and on every machine, and the parts of all turns together are the whole.
"""

from __future__ import annotations

import os
import re
import zlib
from typing import Final, NamedTuple

import pytest

TURN_VARIABLE: Final = "PULSE_TEST_TURN"


class Turn(NamedTuple):
    """The *number*-th (from 1) of so many *parts*."""

    number: int
    parts: int

    def has(self, nodeid: str) -> bool:
        return zlib.crc32(nodeid.encode()) % self.parts == self.number - 1


def parse(text: str) -> Turn:
    """
    What PULSE_TEST_TURN says.

    :raises pytest.UsageError: not a turn
    """
    found = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", text)
    turn = Turn(int(found[1]), int(found[2])) if found else None
    if turn is None or turn.number > turn.parts:
        raise pytest.UsageError(f"{TURN_VARIABLE} is {text!r}: NUMBER/PARTS expected, as 1/3, 2/3 or 3/3")
    return turn


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What is marked ``rest`` waits for its turn. All of them are marked by now (tests/plugins/databases.py)."""
    text = os.environ.get(TURN_VARIABLE)
    if not text:
        return
    turn = parse(text)
    waiting = {item for item in items if item.get_closest_marker("rest") and not turn.has(item.nodeid)}
    config.hook.pytest_deselected(items=list(waiting))
    items[:] = [item for item in items if item not in waiting]
