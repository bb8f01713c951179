"""
A pytest plugin for ``pytest -n 3``: no test runs beside another of its lane.

Tests of whole systems mostly wait, and have bars that a machine with too much to do would break. So they begin first:
``system`` are those whose bars are milliseconds, all of them one lane; ``patient`` those that make a fault, let it
last, and measure in seconds, and those of the browser. Single programs with bars of milliseconds are a lane, too:
``timed``. All other files are lanes by themselves, and those without a marker get what these leave of the processors.
"""

from __future__ import annotations

import gc
import os
from collections import defaultdict
from collections.abc import Generator
from typing import Any, Final, NamedTuple, cast

import pytest
from xdist.remote import Producer  # type: ignore[import-untyped]
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

MARKERS: Final = ("system", "patient", "timed")  # what has them begins in this order
NICE: Final = 10
HAS_YIELDED: Final = pytest.StashKey[bool]()


class Lanes(LoadScopeScheduling):  # type: ignore[misc]  # it is untyped
    """A scope is a lane: one process runs it, one test after the other."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.partition("@")[0]


class Told(NamedTuple):
    nodeid: str


def marker(item: pytest.Item) -> str | None:
    return next((name for name in MARKERS if item.get_closest_marker(name)), None)


def lane(item: pytest.Item) -> str:
    found = marker(item)
    return found if found in {"system", "timed"} else f"{found} {item.nodeid.partition('::')[0]}"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """A process without marked tests, or done with them, runs at a lower priority."""
    if marker(item) is None and not item.config.stash.setdefault(HAS_YIELDED, False):
        item.config.stash[HAS_YIELDED] = True
        os.nice(NICE)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """A process of the run that dies fails it: its successor would get nothing to do, and the run never end."""
    config.option.maxworkerrestart = "0"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None]:
    """What is collected stays: the garbage collector looks at none of it, now or while the tests run."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Lanes:
    """Instead of the one that was asked for on the command line."""
    config.option.loadscopereorder = False
    return Lanes(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole systems come first: they take as long as all others. Then those with more time than others."""
    order = {name: number for number, name in enumerate(MARKERS)}
    given_s: defaultdict[str, float] = defaultdict(float)
    for item in items:
        for timeout in item.iter_markers("timeout"):
            given_s[lane(item)] = max(given_s[lane(item)], *timeout.args)
    items.sort(key=lambda item: (order.get(marker(item) or "", len(MARKERS)), -given_s[lane(item)]))  # else as it was


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> Generator[None]:
    """The first process sees only names, not markers: a test's name begins with its lane."""
    if not hasattr(session.config, "workerinput"):
        return (yield)
    items: list[Any] = session.items
    session.items = [cast("pytest.Item", Told(f"{lane(item)}@{item.nodeid}")) for item in items]
    try:
        return (yield)
    finally:
        session.items = items
