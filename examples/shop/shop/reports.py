"""What was sold, each night."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pydantic import BaseModel
from sqlalchemy import func, select

import pulse
from shop.app import app
from shop.database import Order, Sessions
from shop.mail import STAFF, Mail, send_mail


class Sales(BaseModel):
    """What was sold in a day."""

    orders: int
    cents: int


@app.schedule("nightly-sales", cron="0 3 * * *", timezone="Europe/Berlin", overlap="skip")
@app.handler("sales", topic="reports", max_attempts=3)
async def sales(ctx: pulse.Context, sessions: Sessions = pulse.provided()) -> None:
    """Of the day before the occurrence: however late the job runs, it has the same numbers, and mails them once."""
    end = ctx.occurrence or datetime.now(UTC)  # there is none if somebody triggers it by hand
    is_sold = Order.paid_at.between(end - timedelta(days=1), end)
    query = select(func.count(), func.coalesce(func.sum(Order.cents), 0)).where(is_sold)
    async with sessions() as session, ctx.transaction(session):
        orders, cents = (await session.execute(query)).one()
        mail = Mail(to=STAFF, subject=f"Sales until {end:%Y-%m-%d}", text=f"{orders} orders, {cents} cents")
        await pulse.sql.submit_async(session, pulse.call(send_mail, mail))
        ctx.complete(Sales(orders=orders, cents=cents))
