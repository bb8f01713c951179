"""
pulse in a Django project: ``"pulse.contrib.django"`` in INSTALLED_APPS, and handlers in ``jobs.py`` of any app.

- apps: finds the handlers of all apps, and registers the checks
- checks: what ``manage.py check`` says of pulse
- connections: closes old connections around handlers
- management: the command ``manage.py pulse_worker``
- migrations: the migration that installs the schema
- schema: installs the schema on a connection of Django's
- settings: ``PULSE`` in the settings module
- submitting: submits and signals jobs in the transaction of a connection of Django's; the client of this process
- templates: the link to the dashboard on the admin's first page
- templatetags: the tag that this link needs
- worker: the app as handler processes load it
"""

from __future__ import annotations

from pulse.app.app import App
from pulse.contrib.django.connections import keep_fresh
from pulse.contrib.django.settings import settings_and_problems
from pulse.contrib.django.submitting import asignal, asubmit, asubmit_many, client, signal, submit, submit_many

__all__ = ["app", "asignal", "asubmit", "asubmit_many", "client", "signal", "submit", "submit_many"]

_settings, _problems = settings_and_problems()
app = App(codec=None if _problems else _settings.codec)  # with problems nothing runs but `manage.py check`, which tells
keep_fresh(app)
