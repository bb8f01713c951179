"""Handlers with spans of their own, which also log, for the tests of traces and logs."""

from __future__ import annotations

import logging
import os
import signal

import structlog
from opentelemetry import trace

import pulse

app = pulse.App()
tracer = trace.get_tracer("app")


@app.handler("outer")
async def outer() -> str:
    with tracer.start_as_current_span("inside"):
        structlog.get_logger().info("at_work", odd=float("nan"))
        logging.getLogger("app").warning("at work: %s", "\x1b[31m")
        async with pulse.connect() as client:
            return str(await client.submit("plain", {}))


@app.handler("plain", backoff="fixed:0", max_attempts=2)
def plain(ctx: pulse.Context) -> None:
    with tracer.start_as_current_span("inside plain"):
        if ctx.attempt == 1:
            raise ValueError("not yet\ncertainly not")


@app.handler("apart", isolate=True)
def apart() -> None:
    with tracer.start_as_current_span("inside apart"):
        pass


@app.handler("killed", isolate=True, max_crashes=1)
def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
