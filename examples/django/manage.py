"""
A shop on Django: an order and the job that confirms it exist both or neither.

    pulse-supervisor --dsn "$DSN" &
    python -m examples.django.manage migrate
    python -m examples.django.manage pulse_worker --processes 2 &
    python -m examples.django.manage runserver
"""

from __future__ import annotations

import os
import sys

from django.core.management import execute_from_command_line


def main() -> None:
    """Run a command."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "examples.django.settings")
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
