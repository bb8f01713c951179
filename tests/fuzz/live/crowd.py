"""Connections that come and go, and connections that stay and say next to nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Final

from pulse.protocol import encode
from tests.fuzz.frames import Sent, hello
from tests.fuzz.live.visits import Conversation, Script

LORIS_S: Final = 8.0  # longer than the server waits for a hello
BYTE_S: Final = 0.4


async def drop(on: Conversation, rng: random.Random) -> None:
    """Gone at once."""


async def drop_after_hello(on: Conversation, rng: random.Random) -> None:
    await on.write([_hello(rng)])


async def drop_after_welcome(on: Conversation, rng: random.Random) -> None:
    await on.write([_hello(rng)])
    async with asyncio.timeout(LORIS_S):
        while not on.heard and not on.is_over:  # noqa: ASYNC110 - two things are waited for
            await asyncio.sleep(0.005)


async def drop_in_hello(on: Conversation, rng: random.Random) -> None:
    data = _hello(rng).data
    on.writer.write(data[: rng.randrange(len(data))])
    await on.writer.drain()


async def say_nothing(on: Conversation, rng: random.Random) -> None:
    await _wait(on, LORIS_S)


async def trickle(on: Conversation, rng: random.Random) -> None:
    await _trickle(on, _hello(rng).data)


async def trickle_later(on: Conversation, rng: random.Random) -> None:
    """A frame after a valid hello, a byte at a time."""
    await on.write([_hello(rng)])
    await _trickle(on, encode("ping", 1, {"later": "x" * 40}))


async def _trickle(on: Conversation, data: bytes) -> None:
    for at in range(int(LORIS_S / BYTE_S)):
        if on.is_over:
            return
        on.writer.write(data[at : at + 1])
        await on.writer.drain()
        await _wait(on, BYTE_S)


async def _wait(on: Conversation, seconds: float) -> None:
    ends_s = asyncio.get_running_loop().time() + seconds
    while not on.is_over and asyncio.get_running_loop().time() < ends_s:  # noqa: ASYNC110 - two things are waited for
        await asyncio.sleep(0.05)


def _hello(rng: random.Random) -> Sent:
    """A client's hello, or one of a worker that takes no jobs."""
    body = hello(rng, role=rng.choice(("client", "worker")), worker=f"crowd-{rng.randrange(50)}")
    return Sent(encode("hello", 0, {**body, "capacity": 0}), "hello")


CROWD: Final[Sequence[tuple[float, Script]]] = (
    (40.0, drop), (30.0, drop_after_hello), (20.0, drop_after_welcome), (8.0, drop_in_hello), (0.7, say_nothing),
    (0.7, trickle), (0.6, trickle_later),
)  # fmt: skip
