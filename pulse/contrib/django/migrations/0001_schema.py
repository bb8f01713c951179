"""Installs the schema of pulse; see ``pulse.contrib.django.schema``."""

from __future__ import annotations

from django.db import migrations  # type: ignore[import-untyped]

from pulse.contrib.django.schema import install, leave


class Migration(migrations.Migration):  # type: ignore[misc]  # Django has no types
    """
    The only one.

    Attributes:
        initial: Whether it is the first.
        operations: What it does.
    """

    initial = True
    operations = (migrations.RunPython(install, leave),)
