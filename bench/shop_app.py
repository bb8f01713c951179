"""A shop's jobs, for the pictures of the dashboard: e-mails, thumbnails, payments and reports, some of which fail."""

from __future__ import annotations

import random
from typing import Final

import anyio

import pulse

app = pulse.App()
NO_ADDRESS: Final = 0.004  # of all e-mails
REFUSED: Final = 0.006
LARGE_PX: Final = 800
HOSTS: Final = ("smtp1.shop.example", "smtp2.shop.example")


@app.handler("send-mail", topic="mail", max_attempts=3, backoff="fixed:600", timeout_s=30)
async def send_mail(to: str, template: str) -> None:
    """An e-mail; some addresses do not exist, and the mail server is away at times."""
    await anyio.sleep(0.01)
    chance = random.random()
    if chance < NO_ADDRESS:
        raise pulse.Discard(f"no such address: {to}")
    if chance < NO_ADDRESS + REFUSED:
        raise ConnectionRefusedError(111, f"Connection refused by {random.choice(HOSTS)} after {template}")


@app.handler("thumbnail", topic="images", max_attempts=2, backoff="fixed:0.1", timeout_s=60)
async def thumbnail(path: str, width: int) -> dict[str, object]:
    """A smaller image; some uploads are no images."""
    await anyio.sleep(0.02)
    if path.endswith("7.jpg") and width > LARGE_PX:
        raise OSError(f"cannot identify image file {path} at 0x{random.getrandbits(44):x}")
    return {"path": f"small/{path}", "width": width}


@app.handler("charge", topic="payments", max_attempts=1, timeout_s=60)
async def charge(order: int, cents: int) -> None:
    """A payment."""
    await anyio.sleep(0.03)
    if cents % 13 == 0:
        raise RuntimeError(f"card of order {order} was declined: insufficient funds")


@app.handler("report", topic="reports", stall_s=600)
async def report(ctx: pulse.Context, month: str) -> None:
    """A long one that tells how far it is."""
    for step in range(10_000):
        await ctx.progress(min(0.99, 0.37 + step / 2000), f"{month}: {1200 + step * 3:,} orders")
        await anyio.sleep(1)
