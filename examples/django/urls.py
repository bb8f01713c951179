"""The pages: the admin, and orders."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path

from examples.django.shop import views

urlpatterns = [
    path("admin/", admin.site.urls),
    path("orders", views.create),
    path("orders/<int:order_id>", views.show),
    path("orders/<int:order_id>/confirm", views.confirm_again),
]
