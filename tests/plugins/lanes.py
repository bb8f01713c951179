"""
A pytest plugin for ``pytest -n 3``: no test runs beside another of its file, and few whole systems beside each other.

Tests of whole systems mostly wait, and have bars that a machine with too much to do would break. So they have two
lanes, and begin first: one for those whose bars are milliseconds; one for those that make a fault, let it last, and
measure in seconds, and for those of the browser. All other files, tests of single processes among them, get what these
leave of the processors.
"""

from __future__ import annotations

import os
from typing import Final

import pytest
from xdist.remote import Producer  # type: ignore[import-untyped]
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

PROCESSES: Final = ("tests/process/", "tests/chaos/", "tests/fuzz/test_live")
SINGLE: Final = tuple(f"tests/process/test_{what}" for what in ("child_", "cli", "clients", "embedded", "worker_"))
PATIENT: Final = (
    "tests/browser/",
    *(
        f"tests/process/test_{what}"
        for what in ("bad_days", "database_faults", "demo", "epochs", "logging", "long_locks", "overdue", "poolers")
    ),
)
NICE: Final = 10
SHARED: Final = ("0 systems", "1 patient")  # they begin in this order
HAS_YIELDED: Final = pytest.StashKey[bool]()


class Lanes(LoadScopeScheduling):  # type: ignore[misc]  # it is untyped
    """A scope is what is run by one process, one test after the other."""

    def _split_scope(self, nodeid: str) -> str:
        return lane(nodeid)


def lane(nodeid: str) -> str:
    """Which it belongs to; a file that is of no shared one is one by itself."""
    if nodeid.startswith(PATIENT):
        return SHARED[1]
    return SHARED[0] if nodeid.startswith(PROCESSES) and not nodeid.startswith(SINGLE) else nodeid.partition("::")[0]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """Who is done with whole systems, or never had any, lets them go first."""
    if lane(item.nodeid) not in SHARED and not item.config.stash.setdefault(HAS_YIELDED, False):
        item.config.stash[HAS_YIELDED] = True
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
    """Whole systems come first: they take as long as all the rest."""
    items.sort(key=lambda item: min(lane(item.nodeid), "2"))  # files stay in their order
