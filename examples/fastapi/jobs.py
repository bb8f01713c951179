"""
Handlers; the web application imports them to submit their jobs.

    pulse worker examples.fastapi.jobs:app --processes 2
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime

from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncEngine

import pulse
from examples.fastapi.database import Order, make_engine

app = pulse.App()


@app.lifespan
async def database() -> AsyncIterator[AsyncEngine]:
    """One engine for each process, in its event loop; handlers get it by its type."""
    engine = make_engine()
    yield engine
    await engine.dispose()


@app.handler("confirm", topic="orders", max_attempts=5, timeout_s=60)
async def confirm(order_id: int, engine: AsyncEngine = pulse.provided()) -> str:
    """Repeating it does no harm: an attempt that was confirmed already changes nothing."""
    async with engine.begin() as connection:
        change = update(Order).where(Order.id == order_id, Order.confirmed_at.is_(None))
        await connection.execute(change.values(confirmed_at=datetime.now(UTC)))
    return f"order {order_id} is confirmed"
