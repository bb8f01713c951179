"""Payments: what a customer has paid in advance becomes less, exactly once for each order."""

from __future__ import annotations

from datetime import UTC, datetime

import pulse
from shop.app import app
from shop.database import Customer, Order, Sessions
from shop.mail import Mail, send_mail


@app.handler("charge", topic="payments", max_attempts=5, timeout_s=60)
async def charge(ctx: pulse.Context, order_id: int, sessions: Sessions = pulse.provided()) -> None:
    """One transaction has the payment, the receipt's job, and the end of this job: all of it happens, or nothing."""
    async with sessions() as session, ctx.transaction(session):
        order = await session.get_one(Order, order_id)
        customer = await session.get_one(Customer, order.email, with_for_update=True)
        if customer.cents < order.cents:
            raise pulse.Discard(f"order {order.id} costs {order.cents} cents, and {customer.cents} are left")
        customer.cents -= order.cents
        order.paid_at = datetime.now(UTC)
        receipt = Mail(to=order.email, subject=f"Receipt for order {order.id}", text=f"You paid {order.cents} cents.")
        await pulse.sql.submit_async(session, pulse.call(send_mail, receipt))
        ctx.complete({"left": customer.cents})
