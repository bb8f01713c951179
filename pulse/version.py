"""Which pulse this is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("pulse-supervisor")
except PackageNotFoundError:  # run from a tree that was never installed
    VERSION = "0+unknown"
