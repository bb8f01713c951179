"""Handlers with effects in fenced transactions, which die at a step when they are run first."""

from __future__ import annotations

import os
import signal
from typing import Final

import anyio
import asyncpg
import psycopg

import pulse

RUN: Final = "INSERT INTO public.runs VALUES ('{}', {}, '{}')"
RUNS: Final = "SELECT count(*) FROM public.runs WHERE job = '{}'"
EFFECT: Final = "INSERT INTO public.effects VALUES ('{}', {})"

app = pulse.App()


def step(name: str, die: str) -> None:
    if name == die:
        os.kill(os.getpid(), signal.SIGKILL)


@app.handler("hold")
async def hold(gate: str) -> None:
    while not await anyio.Path(gate).exists():  # noqa: ASYNC110 - another process opens it
        await anyio.sleep(0.01)


@app.handler("pay-async", backoff="fixed:0")
async def pay_async(ctx: pulse.Context, direct: str, dsn: str, die: str = "", gate: str = "") -> str:
    seen = await asyncpg.connect(direct)
    await seen.execute(RUN.format(ctx.job_id, ctx.attempt, ctx.worker))
    die = die if await seen.fetchval(RUNS.format(ctx.job_id)) == 1 else ""
    await seen.close(timeout=5)
    connection = await asyncpg.connect(dsn)
    step("before", die)
    async with ctx.transaction(connection):
        step("in", die)
        await connection.execute(EFFECT.format(ctx.job_id, ctx.attempt))
        ctx.complete({"attempt": ctx.attempt})
        step("end", die)
    step("after", die)
    await connection.close(timeout=5)
    if gate:
        await hold(gate)
    if die == "raise":
        raise LookupError("after the commit")
    return "nobody reads this"


def pay(ctx: pulse.Context, direct: str, dsn: str, die: str = "") -> None:
    with psycopg.connect(direct, autocommit=True) as seen:
        seen.execute(RUN.format(ctx.job_id, ctx.attempt, ctx.worker))
        die = die if seen.execute(RUNS.format(ctx.job_id)).fetchall() == [(1,)] else ""
    with psycopg.connect(dsn, autocommit=True) as connection:
        step("before", die)
        with ctx.transaction(connection):
            step("in", die)
            connection.execute(EFFECT.format(ctx.job_id, ctx.attempt))
            ctx.complete({"attempt": ctx.attempt})
            step("end", die)
        step("after", die)
    if die == "raise":
        raise LookupError("after the commit")


app.handler("pay-plain", backoff="fixed:0")(pay)
app.handler("pay-apart", backoff="fixed:0", isolate=True)(pay)
