"""
The app as handler processes load it: Django is set up.

``manage.py pulse_worker`` starts them; so does ``pulse worker pulse.contrib.django.worker:app``, with
DJANGO_SETTINGS_MODULE in the environment.
"""

from __future__ import annotations

import django  # type: ignore[import-untyped]
from django.apps import apps  # type: ignore[import-untyped]

from pulse.app.app import App
from pulse.contrib.django.connections import close_connections, keep_fresh_async
from pulse.contrib.django.settings import project_settings

__all__ = ["app"]


def load() -> App:
    """
    The app with the handlers of all installed apps.

    Raises:
        ConfigError: ``PULSE`` is wrong; `pulse worker` does not run the checks.
    """
    if not apps.ready:
        django.setup()
    # What modules have opened when they were imported: processes that are forked from here must not share it.
    close_connections()
    project_settings()
    from pulse.contrib.django import app as registered

    keep_fresh_async(registered)
    return registered


app = load()
