"""The two loops of asyncio that pulse runs on: they treat sockets that have failed differently."""

from __future__ import annotations

from typing import Final

import pytest

LOOPS: Final = pytest.mark.parametrize(
    "anyio_backend", [("asyncio", {"use_uvloop": False}), ("asyncio", {"use_uvloop": True})], ids=["asyncio", "uvloop"]
)
