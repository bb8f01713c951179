"""Which pulse this is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Final


def _installed() -> str:
    try:
        return version("pulse-supervisor")
    except PackageNotFoundError:  # run from a tree that was never installed
        return "0+unknown"


VERSION: Final = _installed()
