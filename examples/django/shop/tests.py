"""
What a project tests of its jobs; the database of the tests has the schema of pulse, since it was migrated.

    python -m examples.django.manage test examples.django.shop.tests
"""

from __future__ import annotations

from django.contrib.auth.models import User
from django.db import connection
from django.test import TestCase

from examples.django.shop.jobs import confirm
from examples.django.shop.models import Order


def jobs() -> list[tuple[str, str, dict[str, object]]]:
    """The jobs of this transaction."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT name, topic, args #>> '{}' FROM pulse.jobs")
        return list(cursor.fetchall())


class OrderTest(TestCase):
    """Orders and their jobs."""

    def test_an_order_has_its_job(self) -> None:
        """They are stored together."""
        answer = self.client.post("/orders", {"customer": "Ada", "cents": "1200"})
        order = Order.objects.get(pk=answer.json()["order"])
        self.assertEqual(jobs(), [("confirm-order", "default", f'{{"order_id": {order.pk}}}')])

    def test_a_refused_order_leaves_nothing(self) -> None:
        """What was rolled back takes its job with it."""
        self.assertEqual(self.client.post("/orders", {"customer": "Bob", "cents": "200000"}).status_code, 422)
        self.assertEqual((Order.objects.count(), jobs()), (0, []))

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
