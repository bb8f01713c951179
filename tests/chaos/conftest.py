"""The marker of the suite."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Tell pytest of it."""
    config.addinivalue_line("markers", "chaos: breaks a running system, and checks every invariant afterwards")
