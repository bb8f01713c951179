"""The event loop of actors: uvloop where it is installed, and an error of anyio that means nothing."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
from typing import Any


def hear_loop(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """
    Drop an error of anyio that means nothing.

    anyio wakes a task that reads from a socket when data arrives, and when the socket was closed. If a peer connects
    and leaves at once both happen together; the second wake comes too late, which is harmless.
    """
    if isinstance(context.get("exception"), asyncio.InvalidStateError) and "set_result" in str(context.get("message")):
        return
    loop.default_exception_handler(context)


def import_loop() -> None:
    """Import what the event loop needs: once, for all processes that are forked afterwards."""
    importlib.import_module("anyio._backends._asyncio")
    if loop_options()["use_uvloop"]:
        importlib.import_module("uvloop")


def loop_options() -> dict[str, Any]:
    """Options of anyio.run: uvloop, where it is installed."""
    return {"use_uvloop": importlib.util.find_spec("uvloop") is not None}
