"""Handlers for tests of the testing kit: each ends in another way."""

from __future__ import annotations

import time
from typing import Final

import anyio

import pulse

app: Final = pulse.App()


@app.handler("ends", retry_on={OSError: 30, KeyError: pulse.Discard}, max_attempts=3, backoff="fixed:7")
def ends(ctx: pulse.Context, kind: str, times: int = 1) -> int | pulse.Snooze:
    """End so often as *kind* says, then with the number of checkpoints."""
    seen = 0 if ctx.previous is None else int(str(ctx.previous.checkpoint or 0))
    ctx.progress(ctx.attempt)
    ctx.checkpoint(seen + 1)
    if ctx.attempt <= times:
        match kind:
            case "snooze":
                return pulse.Snooze(60)
            case "retry":
                raise pulse.RetryAfter(5, "later")
            case "error":
                raise ValueError("no")
            case "disk":
                raise OSError("full")
            case "key":
                raise KeyError("gone")
            case "discard":
                raise pulse.Discard("never")
            case "exit":
                raise SystemExit(3)
            case _:
                pass
    return seen + 1


@app.handler("slow", timeout_s=0.2, max_attempts=2, backoff="fixed:1")
async def slow() -> None:
    """Outlast its time."""
    await anyio.sleep_forever()


@app.handler("parent")
def parent(child: str, client: str = "") -> None:
    """Submit another job."""
    with pulse.Client(client or None) as connected:
        connected.submit("ends", {"kind": child})


@app.handler("hang", max_attempts=10)
def hang(first: int = 1, *, ctx: pulse.Context) -> str:
    """Do not end in the first attempts, whatever is asked for; its progress says that it has started."""
    ctx.progress("it runs")
    while ctx.attempt <= first:
        time.sleep(0.005)
    return "ended"


@app.schedule("hourly", cron="0 * * * *", overlap="skip")
@app.schedule("daily", cron="30 2 * * *", timezone="Europe/Berlin")
@app.handler("report")
def report(ctx: pulse.Context) -> str:
    """Say which occurrence it is of."""
    return str(ctx.occurrence)
