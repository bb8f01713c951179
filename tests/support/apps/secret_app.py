"""Apps whose jobs are secret: one with the keys of the environment, and one without any."""

from __future__ import annotations

import os

import pulse
from pulse.encryption import KEYS, FernetCodec

app = pulse.App(codec=FernetCodec.from_env() if KEYS in os.environ else None)
keyless = pulse.App()


def _charge(card: str, ctx: pulse.Context) -> dict[str, object]:
    saved = None if ctx.previous is None else ctx.previous.checkpoint
    if not isinstance(saved, dict):
        ctx.checkpoint({"card": card})
        raise pulse.RetryAfter(0.01, "the bank is closed")
    return {"charged": saved["card"], "attempt": ctx.attempt}


app.handler("charge")(_charge)
app.handler("charge-apart", isolate=True)(_charge)


@keyless.handler("keyless")
async def read(card: str) -> str:
    return card


@keyless.handler("tells", topic="keyless")
def tells(card: str) -> dict[str, str]:
    return {"card": card}


@keyless.handler("hears", topic="keyless")
def hears(ctx: pulse.Context) -> list[object]:
    signal = ctx.wait_for("approval", timeout_s=0)
    return [signal and signal.payload, *(parent.result for parent in ctx.parents())]
