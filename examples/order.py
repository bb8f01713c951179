"""
An order: it waits days for its payment, and for somebody who approves a large one, and holds no worker meanwhile.

    pulse-supervisor &
    pulse worker examples.order:app &
    python -m examples.order 7 120000
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from uuid import UUID

import pulse

LARGE_CENTS = 100_000
DAY_S = 86400.0

app = pulse.App()


@app.handler("order", topic="orders")
async def order(ctx: pulse.Context, number: int, cents: int, pay_within_s: float = 3 * DAY_S) -> str:
    """What has finished, a step or a wait, is not done again after a crash. A step that a crash has cut short is."""
    await ctx.step("reserve", post, "stock", f"{number} reserved")
    payment = await ctx.wait_for("payment", timeout_s=pay_within_s)
    if payment is None:
        await ctx.step("release", post, "stock", f"{number} released")
        await ctx.step("mail", post, "mail", f"{number} canceled: no payment has come")
        return "canceled"
    if cents >= LARGE_CENTS:
        approval = await ctx.wait_for("approval", timeout_s=7 * DAY_S)
        if approval is None or not approval.payload:
            # A service that takes money or gives it back knows a second call by its key.
            await ctx.step("refund", post, "bank", f"{number} refunded, key {ctx.job_id} refund")
            await ctx.step("release", post, "stock", f"{number} released")
            await ctx.step("mail", post, "mail", f"{number} refused: you have your money back")
            return "refused"
    await ctx.step("ship", post, "stock", f"{number} shipped")
    await ctx.step("mail", post, "mail", f"{number} is on its way")
    return "shipped"


def post(service: str, text: str) -> None:
    """Stands for a call of a service: a line of its file."""
    with Path(os.environ.get("SHOP", "."), service).open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")


def pay(client: pulse.Client, job: UUID, receipt: str) -> bool:
    """The bank says so twice now and then; its number as the key makes that one payment."""
    return client.signal(job, "payment", {"receipt": receipt}, key=receipt)


def main(number: int, cents: int) -> None:
    """Order, pay, approve, and wait until it is shipped."""
    with pulse.Client() as client:
        job = client.submit(pulse.call(order, number, cents))
        print("paid:", pay(client, job, f"receipt {number}"))
        print("paid again:", pay(client, job, f"receipt {number}"))
        if cents >= LARGE_CENTS:  # another one may be shipped by now, and takes no more signals
            client.signal(job, "approval", payload=True)
        print(client.result(job, str, timeout_s=60))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
