"""Which pulse this is."""

from __future__ import annotations

from typing import Final

# Also in pyproject.toml, and not read from the installation's metadata: that takes each process 50 ms, more than all else
# that a process needs before it says hello.
VERSION: Final = "0.1.0"
