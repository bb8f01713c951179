"""
A pytest plugin for ``pytest -n 3``: no test runs beside another of its file, and never two whole systems at once.

Tests of whole systems mostly wait, and have bars that a machine with too much to do would break. So they share one
lane, and begin first; all other files, tests of single processes among them, fill the other lanes, which get what the
first one leaves of the processors.
"""

from __future__ import annotations

import os
from typing import Final

import pytest
from xdist.remote import Producer  # type: ignore[import-untyped]
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

PROCESSES: Final = ("tests/process/", "tests/chaos/", "tests/fuzz/test_live")
SINGLE: Final = tuple(f"tests/process/test_{what}" for what in ("child_", "cli", "clients", "embedded", "worker_"))
NICE: Final = 10
BEGUN: Final = pytest.StashKey[str]()  # the first test of this process


class Lanes(LoadScopeScheduling):  # type: ignore[misc]  # it is untyped
    """A scope is what is run by one process, one test after the other."""

    def _split_scope(self, nodeid: str) -> str:
        return "systems" if is_system(nodeid) else nodeid.partition("::")[0]


def is_system(nodeid: str) -> bool:
    """Whether it is a test of a whole system."""
    return nodeid.startswith(PROCESSES) and not nodeid.startswith(SINGLE)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """A lane that does not begin with whole systems lets them go first."""
    if item.config.stash.setdefault(BEGUN, item.nodeid) == item.nodeid and not is_system(item.nodeid):
        os.nice(NICE)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """A process of the run that dies fails it: its successor would get nothing to do, and the run never end."""
    config.option.maxworkerrestart = "0"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Lanes:
    """Instead of the one that was asked for on the command line."""
    config.option.loadscopereorder = False
    return Lanes(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole systems come first: one process is busy with them for as long as the others need for all the rest."""
    items.sort(key=lambda item: not is_system(item.nodeid))
