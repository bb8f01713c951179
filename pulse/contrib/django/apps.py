"""What Django makes of ``"pulse.contrib.django"`` in INSTALLED_APPS."""

from __future__ import annotations

from django.apps import AppConfig  # type: ignore[import-untyped]
from django.utils.module_loading import autodiscover_modules  # type: ignore[import-untyped]

__all__ = ["PulseConfig"]


class PulseConfig(AppConfig):  # type: ignore[misc]  # Django has no types
    """
    The app ``pulse``.

    Attributes:
        name: Its package.
        label: What Django calls it; by default it would be ``django``.
        verbose_name: What people read.
    """

    name = "pulse.contrib.django"
    label = "pulse"
    verbose_name = "pulse"

    def ready(self) -> None:
        """Import ``jobs.py`` of every app, after all models, and register the checks."""
        from pulse.contrib.django.checks import register_checks

        register_checks()
        autodiscover_modules("jobs")
