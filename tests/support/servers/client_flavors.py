"""The same steps on the blocking client, and on the async one with asyncio and with trio."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

import pulse

FLAVORS: Final = ("blocking", "asyncio", "trio")


def using(
    flavor: str, path: Path, *steps: Callable[[Any], Any], timeout_s: float = 10.0, **options: Any
) -> list[object]:
    """What the steps come to, one after the other, on one client of that flavor."""
    if flavor == "blocking":
        with pulse.Client(path, timeout_s=timeout_s, **options) as client:
            return [step(client) for step in steps]

    async def run() -> list[object]:
        async with pulse.connect(path, timeout_s=timeout_s, **options) as client:
            results: list[object] = []
            for step in steps:
                value = step(client)
                results.append(await value if inspect.isawaitable(value) else value)
            return results

    return anyio.run(run, backend=flavor)


def failing(flavor: str, error: type[Exception], said: str, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The step, which must fail so."""

    async def ask(client: Any) -> None:
        with pytest.raises(error, match=said):
            await step(client)

    def call(client: Any) -> None:
        with pytest.raises(error, match=said):
            step(client)

    return call if flavor == "blocking" else ask
