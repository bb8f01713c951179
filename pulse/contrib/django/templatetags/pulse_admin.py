"""``{% load pulse_admin %}``: what the template of the admin's first page needs."""

from __future__ import annotations

from typing import Any

from django import template  # type: ignore[import-untyped]

from pulse.contrib.django.settings import project_settings

register: Any = template.Library()


def pulse_dashboard_url() -> str:
    """The address of the dashboard, '' without one."""
    return project_settings().dashboard_url or ""


register.simple_tag(pulse_dashboard_url)
