"""
A pytest plugin that writes every skipped test with its reason to the file named by PULSE_SKIPS_FILE.

A skip that nobody reads is a hole in the suite: ``.ci/run`` lists them at its end, and can fail on them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

FILE_VARIABLE: Final = "PULSE_SKIPS_FILE"


class SkipList:
    """Collects skips while the suite runs; one line for each at its end: test, tabulator, reason."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._note(report)

    def pytest_sessionfinish(self) -> None:
        """Write the list, empty too: its absence would mean that the suite did not end."""
        self._path.write_text("".join(f"{line}\n" for line in self._lines), "utf-8")

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        told = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
        reason = " ".join(told.removeprefix("Skipped: ").split())
        self._lines.append(f"{report.nodeid}\t{reason}")


def pytest_configure(config: pytest.Config) -> None:
    path = os.environ.pop(FILE_VARIABLE, None)  # runs that a test starts would write over it
    if path and not hasattr(config, "workerinput"):  # what ran in a process of pytest-xdist is reported to the first
        config.pluginmanager.register(SkipList(Path(path)), "pulse-skips")
