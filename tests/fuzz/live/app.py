"""The handlers of the healthy worker, and the limit of one of their topics."""

from __future__ import annotations

from typing import Final

import anyio

import pulse

TOPIC: Final = "healthy"
LIMITED: Final = "healthy-limited"
MOST: Final = 2  # of its jobs run at once
MOST_OF_GROUP: Final = 1
WORK_S: Final = 0.05  # of such a job, so that it meets others
app = pulse.App()


@app.handler("echo", topic=TOPIC)
async def echo(n: int, ctx: pulse.Context) -> dict[str, int]:
    return {"n": n, "attempt": ctx.attempt}


@app.handler("work", topic=LIMITED)
async def work(n: int, ctx: pulse.Context) -> dict[str, int]:
    await anyio.sleep(WORK_S)
    return {"n": n, "attempt": ctx.attempt}
