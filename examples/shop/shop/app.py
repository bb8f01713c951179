"""The app, and what all its handlers share: connections, logging, and Sentry."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import AsyncIterator

import httpx2
import sentry_sdk
from sqlalchemy.ext.asyncio import async_sessionmaker

import pulse
import pulse.contrib.sentry
from shop.database import Sessions, make_engine

log = logging.getLogger("shop")
log.setLevel(logging.INFO)  # a worker shows warnings only, unless a logger says otherwise

sentry_sdk.init()  # where to: SENTRY_DSN; nowhere without it
app = pulse.App()
pulse.contrib.sentry.install(app)  # before other middleware, so that it sees what that raises


@app.middleware
async def timed(ctx: pulse.Context, call_next: pulse.CallNext) -> object:
    """Around each attempt of each handler. The log line gets the job's id by itself."""
    began_s = time.monotonic()
    try:
        return await call_next()
    finally:
        log.info("%s took %.3f s", ctx.name, time.monotonic() - began_s)


@app.lifespan
async def database() -> AsyncIterator[Sessions]:
    """One engine for each process; handlers get its sessions by the type."""
    engine = make_engine()
    yield async_sessionmaker(engine)
    await engine.dispose()


@app.lifespan
async def mail_service() -> AsyncIterator[httpx2.AsyncClient]:
    """One client for each process, which keeps its connections."""
    async with httpx2.AsyncClient(base_url=os.environ["MAIL_URL"], timeout=10) as client:
        yield client
