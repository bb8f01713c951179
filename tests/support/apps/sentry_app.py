"""An app that reports to the Sentry that ``SENTRY_DSN`` names."""

from __future__ import annotations

import anyio
import sentry_sdk

import pulse
import pulse.contrib.sentry

sentry_sdk.init(traces_sample_rate=1.0)
app = pulse.App()
pulse.contrib.sentry.install(app)
_met: list[anyio.Event] = []


@app.handler("fail")
async def fail(user: str) -> None:
    sentry_sdk.set_user({"id": user})
    sentry_sdk.add_breadcrumb(message=f"about to fail for {user}")
    await meet()
    raise LookupError(f"no such order of {user}")


async def meet() -> None:
    """Wait for the other one, so that two attempts are under way at once."""
    _met.append(anyio.Event())
    if len(_met) == 2:
        for one in _met:
            one.set()
    await _met[0].wait()


@app.handler("fail-plain")
def fail_plain() -> None:
    sentry_sdk.set_tag("thread", "yes")
    raise LookupError("in a thread")


@app.handler("fail-apart", isolate=True)
def fail_apart() -> None:
    raise LookupError("in a process of its own")


@app.handler("fine")
async def fine() -> str:
    return "done"


@app.handler("discard")
async def discard() -> None:
    raise pulse.Discard("no such customer")


@app.handler("later")
async def later() -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(busy)


async def busy() -> None:
    raise pulse.RetryAfter(5, "busy")


@app.handler("exit")
def leave() -> None:
    raise SystemExit(3)
