"""Views: one stores an order and submits its job, in one transaction; others show it, and submit it again."""

from __future__ import annotations

from django.db import transaction
from django.http import Http404, HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

import pulse
from examples.django.shop.jobs import confirm
from examples.django.shop.models import Order
from pulse.contrib.django import asubmit, submit

LIMIT_CENTS = 100_000


def charge(cents: int) -> None:
    """Stands for a payment, which may fail."""
    if cents > LIMIT_CENTS:
        raise ValueError(f"a payment of {cents} cents was declined")


@csrf_exempt
@require_POST
def create(request: HttpRequest) -> JsonResponse:
    """Both are there, or neither: a refused order takes its job with it."""
    try:
        with transaction.atomic():
            order = Order.objects.create(customer=request.POST["customer"], cents=int(request.POST["cents"]))
            job_id = submit(pulse.call(confirm, order_id=order.pk), priority=5)
            charge(order.cents)
    except ValueError as error:
        return JsonResponse({"error": str(error)}, status=422)
    return JsonResponse({"order": order.pk, "job": str(job_id)}, status=201)


def show(_request: HttpRequest, order_id: int) -> JsonResponse:
    """An order."""
    order = get_object_or_404(Order, pk=order_id)
    return JsonResponse({"customer": order.customer, "confirmed_at": order.confirmed_at})


@csrf_exempt
@require_POST
async def confirm_again(_request: HttpRequest, order_id: int) -> JsonResponse:
    """Nothing is written beside the job, so it needs no transaction."""
    if not await Order.objects.filter(pk=order_id).aexists():
        raise Http404
    return JsonResponse({"job": str(await asubmit(pulse.call(confirm, order_id=order_id)))}, status=202)
