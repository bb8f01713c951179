"""Handlers: this module is found because it is called ``jobs``."""

from __future__ import annotations

from django.utils import timezone

import pulse
from examples.django.shop.models import Order
from pulse.contrib.django import app


@app.handler("confirm-order", topic="orders", max_attempts=5, timeout_s=60)
def confirm(order_id: int) -> str:
    """A plain def may use the ORM as a view does: it runs in a thread, with connections that work."""
    if not Order.objects.filter(pk=order_id, confirmed_at=None).update(confirmed_at=timezone.now()):
        raise pulse.Discard(f"there is no order {order_id} to confirm")
    return f"order {order_id} is confirmed"


@app.handler("count-orders", topic="orders")
async def count(customer: str) -> int:
    """An async def uses the async names of the ORM."""
    return await Order.objects.filter(customer=customer).acount()
