"""The version of pulse."""

from __future__ import annotations

from typing import Final

# Also in pyproject.toml; reading it from the installation's metadata would take 50 ms.
VERSION: Final = "0.2.0"
