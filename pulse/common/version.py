"""Which pulse this is."""

from __future__ import annotations

from typing import Final

# Also in pyproject.toml, and not read from the installation's metadata: that takes 50 ms of each process that says it.
VERSION: Final = "0.1.0"
