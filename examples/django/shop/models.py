"""What is stored."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """An order; *confirmed_at* is set by its job."""

    customer = models.CharField(max_length=100)
    cents = models.PositiveIntegerField()
    confirmed_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"order {self.pk} of {self.customer}"
