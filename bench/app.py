"""Handlers to measure with: as good as nothing to do, so that what is measured is pulse."""

from __future__ import annotations

import asyncio
import functools
import os
import time
from pathlib import Path
from typing import Any, Final

import asyncpg

import pulse
from bench.count import VARIABLE, Count

DSN: Final = "BENCH_DSN"  # the database of the effects
POOL: Final = 10  # connections, as an application has them
EFFECT: Final = "INSERT INTO public.effects VALUES ($1, $2)"
EFFECTS: Final = "INSERT INTO public.effects SELECT * FROM unnest($1::int[], $2::text[])"
STAMPS: Final = "BENCH_STAMPS"  # path of the file into which `stamp` writes its milliseconds, a line each
IDS: Final = "BENCH_IDS"  # path of the file into which `noted` writes the 16 bytes of each id, in one write

app = pulse.App()
_count: Final = Count(Path(os.environ[VARIABLE])) if VARIABLE in os.environ else None


def _opened(variable: str) -> int | None:
    path = os.environ.get(variable)
    return None if path is None else os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


_ids: Final = _opened(IDS)
_stamps: Final = _opened(STAMPS)


def _begun() -> None:
    if _count is not None:
        _count.add()


@app.handler("noop")
async def noop(number: int, pad: str) -> None:  # noqa: ARG001 - they only travel
    """Nothing, but to be counted."""
    _begun()


@app.handler("plain")
def plain(number: int, pad: str) -> None:  # noqa: ARG001 - they only travel
    """The same in a thread."""
    if _count is not None:
        _count.add_from_threads()


@app.handler("nap")
async def nap(number: int, pad: str) -> None:  # noqa: ARG001 - they only travel
    """Wait as one does for a peer: 10 ms."""
    _begun()
    await asyncio.sleep(0.01)


@app.handler("noted")
async def noted(number: int, pad: str, ctx: pulse.Context) -> None:  # noqa: ARG001 - they only travel
    """Write down which job this is."""
    _begun()
    if _ids is not None:
        os.write(_ids, ctx.job_id.bytes)


@functools.cache
def _pool() -> asyncpg.Pool[asyncpg.Record]:
    return asyncpg.create_pool(os.environ[DSN], min_size=POOL, max_size=POOL)


@app.handler("effect")
async def effect(number: int, pad: str) -> None:
    """A row in a transaction of one's own, and then the report."""
    _begun()
    pool = await _pool()
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute(EFFECT, number, pad)


@app.handler("fenced")
async def fenced(number: int, pad: str, ctx: pulse.Context) -> None:
    """The same row in a fenced transaction, which completes the job."""
    _begun()
    pool = await _pool()
    async with pool.acquire() as connection, ctx.transaction(connection):
        await connection.execute(EFFECT, number, pad)


@app.handler("batch", batch=100)
async def batch(jobs: list[pulse.BatchJob[dict[str, Any]]]) -> None:
    """The rows of a hundred jobs in one statement."""
    for _ in jobs:
        _begun()
    pool = await _pool()
    await pool.execute(EFFECTS, [job.args["number"] for job in jobs], [job.args["pad"] for job in jobs])


@app.handler("stamp")
async def stamp(submitted_s: float) -> float:
    """Seconds since the submit call began, on the clock that all processes of a machine share."""
    took_s = time.monotonic() - submitted_s
    if _stamps is not None:
        os.write(_stamps, f"{1000 * took_s}\n".encode())
    return took_s


@app.handler("told")
async def told(number: int, pad: str, ctx: pulse.Context) -> float:  # noqa: ARG001 - they only travel
    """When it goes on behind its wait, on that clock."""
    await ctx.wait_for("go")
    return time.monotonic()
