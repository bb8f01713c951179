"""Handlers that end otherwise than by a result, for every app of the tests; most are there as coroutine and plain."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NoReturn

import pulse


class UnprintableError(Exception):
    """Cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def _raise(error: BaseException) -> NoReturn:
    raise error


ENDS: Final[Mapping[str, Callable[[], object]]] = {
    "exit": lambda: sys.exit(3),
    "interrupt": lambda: _raise(KeyboardInterrupt()),  # what Ctrl-C raises
    "unprintable": lambda: _raise(UnprintableError()),
    "not-json": lambda: {1, 2},
    "snooze": lambda: pulse.Snooze(7),
    "discard": lambda: _raise(pulse.Discard("no such customer")),
}


def serve_ends(app: pulse.App, *, isolate: bool = False) -> None:
    """Register them all."""
    for name, end in ENDS.items():
        app.handler(f"{name}-plain", isolate=isolate)(end)
        app.handler(name, isolate=isolate)(_coroutine(end))
    app.handler("retry-after", isolate=isolate)(lambda: _raise(pulse.RetryAfter(9.5, "rate limited")))
    app.handler("cancel-itself", isolate=isolate)(_coroutine(lambda: _raise(asyncio.CancelledError())))


def _coroutine(end: Callable[[], object]) -> Callable[[], Awaitable[object]]:
    async def handler() -> object:
        return end()

    return handler
