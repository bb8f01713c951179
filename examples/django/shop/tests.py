"""
What a project tests of its jobs; the database of the tests has the schema of pulse, since it was migrated.

    python -m examples.django.manage test examples.django.shop.tests
"""

from __future__ import annotations

from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.db import connection
from django.test import TestCase

from examples.django.shop.jobs import confirm
from examples.django.shop.models import Order
from pulse.contrib.django import app
from pulse.testing import run_submitted, submitted


class OrderTest(TestCase):
    """Orders and their jobs."""

    def test_an_order_is_confirmed_by_its_job(self) -> None:
        """They are stored together, and the job runs in the transaction of the test."""
        answer = self.client.post("/orders", {"customer": "Ada", "cents": "1200"})
        order = Order.objects.get(pk=answer.json()["order"])
        self.assertTrue(submitted(connection, confirm, order_id=order.pk))
        (job,) = run_submitted(connection, app)
        self.assertEqual((job.status, job.result), ("COMPLETED", f"order {order.pk} is confirmed"))
        order.refresh_from_db()
        self.assertIsNotNone(order.confirmed_at)

    def test_a_refused_order_leaves_nothing(self) -> None:
        """What was rolled back takes its job with it."""
        self.assertEqual(self.client.post("/orders", {"customer": "Bob", "cents": "200000"}).status_code, 422)
        self.assertEqual((Order.objects.count(), submitted(connection)), (0, []))

    async def test_an_async_view_submits_it_again(self) -> None:
        """In the transaction of the test, too."""
        order = await Order.objects.acreate(customer="Ada", cents=1200)
        answer = await self.async_client.post(f"/orders/{order.pk}/confirm")
        (job,) = await sync_to_async(submitted)(connection, confirm, order_id=order.pk)
        self.assertEqual((answer.status_code, answer.json()), (202, {"job": str(job.id)}))
        self.assertEqual((await self.async_client.post("/orders/0/confirm")).status_code, 404)

    def test_the_job_confirms_the_order(self) -> None:
        """A handler is a function."""
        order = Order.objects.create(customer="Ada", cents=1200)
        self.assertEqual(confirm(order.pk), f"order {order.pk} is confirmed")
        order.refresh_from_db()
        self.assertIsNotNone(order.confirmed_at)


class AdminTest(TestCase):
    """The admin."""

    def test_the_first_page_has_a_link_to_the_dashboard(self) -> None:
        """Above the recent actions."""
        self.client.force_login(User.objects.create_superuser("admin"))
        self.assertContains(self.client.get("/admin/"), '<a href="http://127.0.0.1:8470/">')
