"""
A pytest plugin that writes what each test costs to the file named by PULSE_TIMES_FILE, one line for each test.

A line has five columns with tabulators between: wall time, CPU time of the test's own process, CPU time of the
processes that it started (all in seconds), when it began (seconds since the Epoch), and the test. Fixtures count for
the test that first asks for them, and their end for the last one that used them. The CPU time of programs that die
orphaned in the middle of a test is unknown to the kernel's accounts, and missing here.

``python -m tests.plugins.times FILE…`` prints the slowest tests and the sums of each folder.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Generator, Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Final

import pytest

FILE_VARIABLE: Final = "PULSE_TIMES_FILE"
SLOWEST: Final = 40
LOOK_S: Final = 0.2
_PROPERTY: Final = "pulse-cost"
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Cost:
    """What one test, or a folder of tests, took, in seconds."""

    wall_s: float = 0.0
    own_cpu_s: float = 0.0
    child_cpu_s: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(mine + more for mine, more in zip(astuple(self), astuple(other), strict=True)))


class Meter:
    def __init__(self) -> None:
        self._pid = os.getpid()  # a test may put another one there
        self._began_s = self._called_s = self._cpu_s = 0.0
        self._looked_s = self._child_cpu_s = 0.0

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None]:
        self._began_s, self._called_s, self._cpu_s = time.time(), time.monotonic(), time.process_time()
        yield

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None]:
        is_due = time.monotonic() - self._looked_s > LOOK_S
        child_cpu_s = self._look() if is_due else 0.0  # what is killed now leaves no account
        try:
            yield
        finally:
            child_cpu_s += self._look() if is_due else 0.0
            cost = Cost(time.monotonic() - self._called_s, time.process_time() - self._cpu_s, child_cpu_s)
            item.user_properties.append((_PROPERTY, [*astuple(cost), self._began_s]))

    def _look(self) -> float:
        """What the processes that tests started have taken since the last look."""
        before_s, self._child_cpu_s = self._child_cpu_s, _child_cpu_s(self._pid)
        self._looked_s = time.monotonic()
        return max(0.0, self._child_cpu_s - before_s)


class Ledger:
    """Writes the costs in the first process, each as soon as it is known: also of a run that is cut short."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8", buffering=1)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[_PROPERTY] = True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        found: Any = dict(report.user_properties).get(_PROPERTY) if report.when == "teardown" else None
        if found:
            self._file.write("\t".join([*(f"{value:.3f}" for value in found), report.nodeid]) + "\n")

    def pytest_unconfigure(self) -> None:
        self._file.close()


def _child_cpu_s(pid: int) -> float:
    """CPU time of the children that have ended, and of the descendants that live with theirs that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    ticks = sum(map(_ticks, _descendants(pid)))
    return ended.ru_utime + ended.ru_stime + ticks / _TICKS_PER_S


def _descendants(pid: int) -> Iterator[int]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208  # it is called for each test, often
    except OSError:
        return
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:  # noqa: PTH123  # the same
                children = file.read().split()
        except OSError:
            continue
        for child in map(int, children):
            yield child
            yield from _descendants(child)


def _ticks(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123  # the same
            return sum(map(int, file.read().rpartition(b")")[2].split()[11:15]))  # proc(5): utime to cstime
    except OSError:
        return 0


def pytest_configure(config: pytest.Config) -> None:
    given: dict[str, object] | None = getattr(config, "workerinput", None)
    path = os.environ.pop(FILE_VARIABLE, None)  # runs that a test starts would write over it
    if (given is not None and _PROPERTY in given) or (path and not config.getoption("numprocesses", None)):
        config.pluginmanager.register(Meter(), "pulse-meter")
    if path and given is None:
        config.pluginmanager.register(Ledger(Path(path)), "pulse-ledger")


def read(path: Path) -> dict[str, Cost]:
    found: dict[str, Cost] = {}
    for line in path.read_text("utf-8").splitlines():
        *numbers, _, test = line.split("\t", 4)
        found[test] = Cost(*map(float, numbers))
    return found


def summary(costs: dict[str, Cost]) -> Iterator[str]:
    """The slowest tests, and the sums of each folder; the dearest come first."""
    folders: dict[str, Cost] = defaultdict(Cost)
    counts: dict[str, int] = defaultdict(int)
    for test, cost in costs.items():
        for folder in (test.partition("::")[0].rpartition("/")[0], "all"):
            folders[folder] += cost
            counts[folder] += 1
    heading = f"{'wall s':>8} {'own CPU s':>10} {'children s':>11}"
    yield f"{heading}  the slowest {SLOWEST} of {len(costs)} tests"
    for test, cost in sorted(costs.items(), key=lambda one: -one[1].wall_s)[:SLOWEST]:
        yield f"{_figures(cost)}  {test}"
    yield f"{heading}  sums of each folder"
    for folder, cost in sorted(folders.items(), key=lambda one: -one[1].wall_s):
        yield f"{_figures(cost)}  {folder} ({counts[folder]} tests)"


def _figures(cost: Cost) -> str:
    return f"{cost.wall_s:8.2f} {cost.own_cpu_s:10.2f} {cost.child_cpu_s:11.2f}"


if __name__ == "__main__":
    print(*summary(dict(cost for name in sys.argv[1:] for cost in read(Path(name)).items())), sep="\n")  # noqa: T201
