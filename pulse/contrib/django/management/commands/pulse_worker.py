"""``manage.py pulse_worker``: ``pulse worker`` for the handlers of the project, by its settings."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from typing import Any, Final

import click
from django.core.management.base import BaseCommand  # type: ignore[import-untyped]

from pulse.contrib.django.connections import close_connections
from pulse.contrib.django.settings import project_settings
from pulse.worker.command import worker

_APP: Final = "pulse.contrib.django.worker:app"


class Command(BaseCommand):  # type: ignore[misc]  # Django has no types
    """
    The command; it has the options of ``pulse worker``.

    Attributes:
        help: Its description.
    """

    help = "Run the handlers that are registered in jobs.py of the installed apps."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add what ``pulse worker`` takes; it checks the values itself."""
        for option in _options():
            told = (option.help or "").replace("%", "%%")
            if option.is_flag:
                parser.add_argument(*option.opts, dest=option.name, action="store_true", help=told)
            elif option.multiple:
                parser.add_argument(*option.opts, dest=option.name, action="append", metavar=option.metavar, help=told)
            else:
                parser.add_argument(*option.opts, dest=option.name, metavar=option.metavar, help=told)

    def handle(self, **given: object) -> None:
        """
        Become the pool: its parent runs no code of the project, so this process is replaced.

        The secrets of the project go by the environment; a command line can be read by everybody.
        """
        words = [word for option in _options() for word in _words_of(option, given.get(option.name or ""))]
        # Where manage.py found the project: handler processes import it from there, too.
        path = os.pathsep.join(filter(None, (sys.path[0], os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, **project_settings().environment, "PYTHONPATH": path}
        close_connections()
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(sys.executable, [sys.executable, "-m", "pulse.worker", _APP, *words], environment)  # noqa: S606 - no shell


def _options() -> Iterator[click.Option]:
    return (one for one in worker.params if isinstance(one, click.Option) and not one.hidden)


def _words_of(option: click.Option, value: Any) -> list[str]:  # noqa: ANN401 - as argparse has it
    """The value of an option, as words of a command line."""
    if value is None or value is False:
        return []
    if option.is_flag:
        return [option.opts[0]]
    return [word for one in (value if option.multiple else [value]) for word in (option.opts[0], str(one))]
