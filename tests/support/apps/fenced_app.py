"""Handlers with effects in fenced transactions, which die at a step when they are run first."""

from __future__ import annotations

import os
import signal
from typing import Any

import anyio
import asyncpg
import psycopg

import pulse

app = pulse.App()


def run(ctx: pulse.Context) -> Any:
    return f"INSERT INTO public.runs VALUES ('{ctx.job_id}', {ctx.attempt}, '{ctx.worker}')"


def runs(ctx: pulse.Context) -> Any:
    return f"SELECT count(*) FROM public.runs WHERE job = '{ctx.job_id}'"


def effect(ctx: pulse.Context) -> Any:
    return f"INSERT INTO public.effects VALUES ('{ctx.job_id}', {ctx.attempt})"


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
    await seen.execute(run(ctx))
    die = die if await seen.fetchval(runs(ctx)) == 1 else ""
    await seen.close(timeout=5)
    connection = await asyncpg.connect(dsn)
    step("before", die)
    async with ctx.transaction(connection):
        step("in", die)
        await connection.execute(effect(ctx))
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
        seen.execute(run(ctx))
        die = die if seen.execute(runs(ctx)).fetchall() == [(1,)] else ""
    with psycopg.connect(dsn, autocommit=True) as connection:
        step("before", die)
        with ctx.transaction(connection):
            step("in", die)
            connection.execute(effect(ctx))
            ctx.complete({"attempt": ctx.attempt})
            step("end", die)
        step("after", die)
    if die == "raise":
        raise LookupError("after the commit")


app.handler("pay-plain", backoff="fixed:0")(pay)
app.handler("pay-apart", backoff="fixed:0", isolate=True)(pay)
