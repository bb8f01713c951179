"""The handlers of the healthy worker."""

from __future__ import annotations

from typing import Final

import pulse

TOPIC: Final = "healthy"
app = pulse.App()


@app.handler("echo", topic=TOPIC)
async def echo(n: int, ctx: pulse.Context) -> dict[str, int]:
    return {"n": n, "attempt": ctx.attempt}
