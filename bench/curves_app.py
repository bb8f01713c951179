"""Handlers for `curves`: the same one on as many topics as the environment says."""

from __future__ import annotations

import os
from typing import Final

import pulse

TOPICS: Final = "BENCH_TOPICS"  # how many, in the environment of handlers

app = pulse.App()


async def nothing() -> None:
    """No more than to be called."""


for _topic in range(int(os.environ.get(TOPICS, "1"))):
    app.handler(f"nothing-{_topic}", topic=f"topic-{_topic}")(nothing)
