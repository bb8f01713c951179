"""Handlers with effects in fenced transactions, which die at a step of their first attempt."""

from __future__ import annotations

import os
import signal
from typing import Final

import anyio
import asyncpg
import psycopg

import pulse

RUN: Final = "INSERT INTO public.runs VALUES ('{}', {})"
EFFECT: Final = "INSERT INTO public.effects VALUES ('{}', {})"

app = pulse.App()


def step(ctx: pulse.Context, name: str, die: str) -> None:
    if (name, ctx.attempt) == (die, 1):
        os.kill(os.getpid(), signal.SIGKILL)


@app.handler("pay-async", backoff="fixed:0")
async def pay_async(ctx: pulse.Context, direct: str, dsn: str, die: str = "", gate: str = "") -> str:
    seen = await asyncpg.connect(direct)
    await seen.execute(RUN.format(ctx.job_id, ctx.attempt))
    await seen.close(timeout=5)
    connection = await asyncpg.connect(dsn)
    step(ctx, "before", die)
    async with ctx.transaction(connection):
        step(ctx, "in", die)
        await connection.execute(EFFECT.format(ctx.job_id, ctx.attempt))
        ctx.complete({"attempt": ctx.attempt})
        step(ctx, "end", die)
    step(ctx, "after", die)
    await connection.close(timeout=5)
    while gate and not await anyio.Path(gate).exists():  # noqa: ASYNC110 - another process makes it
        await anyio.sleep(0.01)
    if die == "raise":
        raise LookupError("after the commit")
    return "nobody reads this"


def pay(ctx: pulse.Context, direct: str, dsn: str, die: str = "") -> None:
    with psycopg.connect(direct, autocommit=True) as seen:
        seen.execute(RUN.format(ctx.job_id, ctx.attempt))
    with psycopg.connect(dsn, autocommit=True) as connection:
        step(ctx, "before", die)
        with ctx.transaction(connection):
            step(ctx, "in", die)
            connection.execute(EFFECT.format(ctx.job_id, ctx.attempt))
            ctx.complete({"attempt": ctx.attempt})
            step(ctx, "end", die)
        step(ctx, "after", die)
    if die == "raise":
        raise LookupError("after the commit")


app.handler("pay-plain", backoff="fixed:0")(pay)
app.handler("pay-apart", backoff="fixed:0", isolate=True)(pay)
