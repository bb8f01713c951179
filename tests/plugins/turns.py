"""
A pytest plugin that divides the tests marked ``rest``: with PULSE_TEST_TURN=2/4 the second quarter of them runs alone.

PULSE_TEST_CHANGED has paths of files, a line each: the tests about these always run.

As long as a test keeps its name it belongs to the same part, and the parts of all turns together are the whole. Tests
of a class stay together: some go on with what the one before has left.

``python -m tests.plugins.turns 4`` prints a turn of four for the last commit, the next one for the next commit.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import zlib
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final, NamedTuple

import pytest

TURN_VARIABLE: Final = "PULSE_TEST_TURN"
CHANGED_VARIABLE: Final = "PULSE_TEST_CHANGED"
# Where the tests of a folder are, in tests/; of all others by the same name.
_HOMES: Final = {"actors/pulse_actors": "actors", "supervisor/pulse_supervisor": "supervisor", ".ci/rules": "rules"}
_SOURCES: Final = (".py", ".sql")
_DAY_S: Final = 86400
_START: Final = 283  # of the checksums: so the quarters took as long as each other when they were measured


class Turn(NamedTuple):
    """The *number*-th (from 1) of so many *parts*."""

    number: int
    parts: int

    def has(self, item: pytest.Item) -> bool:
        together = item.getparent(pytest.Class) or item
        return zlib.crc32(together.nodeid.encode(), _START) % self.parts == self.number - 1


_TURN: Final = pytest.StashKey[Turn]()


def parse(text: str) -> Turn:
    """
    What PULSE_TEST_TURN says.

    :raises pytest.UsageError: not a turn
    """
    found = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", text)
    turn = Turn(int(found[1]), int(found[2])) if found else None
    if turn is None or turn.number > turn.parts:
        raise pytest.UsageError(f"{TURN_VARIABLE} is {text!r}: NUMBER/PARTS expected, as 1/4 or 4/4")
    return turn


def about(path: str, tests: AbstractSet[str]) -> AbstractSet[str]:
    """
    Which of the files *tests* are about the file *path*.

    It is one itself, or some mirror it, as ``tests/pulse/a/test_b_pg.py`` mirrors ``pulse/a/b.py``, or all of their
    folder do.
    """
    folder, _, name = path.rpartition("/")
    if path in tests or not name.endswith(_SOURCES):
        return tests & {path}
    for home, mirrored in _HOMES.items():
        folder = re.sub(rf"^{re.escape(home)}\b", mirrored, folder)
    mirrors = re.compile(re.escape(f"tests/{folder}/test_{name.rpartition('.')[0]}") + r"(_\w+)?\.py")
    return set(filter(mirrors.fullmatch, tests)) or {
        one for one in tests if one.rpartition("/")[0] == f"tests/{folder}"
    }


def turn_of(repository: Path, parts: int) -> Turn:
    """Of the last commit; of the day, where it is not known how many there are: in a shallow clone, or without git."""
    is_whole = _git(repository, "rev-parse", "--is-shallow-repository") == "false"
    count = _git(repository, "rev-list", "--count", "--first-parent", "HEAD")
    number = int(count) if is_whole and count.isdigit() else int(time.time() // _DAY_S)
    return Turn(number % parts + 1, parts)


def _git(repository: Path, *words: str) -> str:
    git = shutil.which("git")
    if git is None:
        return ""
    command = [git, "-c", f"safe.directory={repository.resolve()}", "-C", str(repository), *words]
    return subprocess.run(command, capture_output=True, check=False, text=True).stdout.strip()


def pytest_configure(config: pytest.Config) -> None:
    if text := os.environ.get(TURN_VARIABLE):
        config.stash[_TURN] = parse(text)


@pytest.hookimpl(trylast=True)  # all of them are marked then (tests/plugins/databases.py)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What is marked ``rest`` waits for its turn, unless it is about what was changed."""
    if turn := config.stash.get(_TURN, None):
        changed = os.environ.get(CHANGED_VARIABLE, "").splitlines()
        files = {item: item.nodeid.partition("::")[0] for item in items}
        at_once = set[str]().union(*(about(path, {*files.values()}) for path in changed))
        waiting = {
            item for item, file in files.items()
            if item.get_closest_marker("rest") and file not in at_once and not turn.has(item)
        }  # fmt: skip
        config.hook.pytest_deselected(items=list(waiting))
        items[:] = [item for item in items if item not in waiting]


if __name__ == "__main__":
    number, parts = turn_of(Path.cwd(), int(sys.argv[1]))
    print(f"{number}/{parts}")  # noqa: T201
