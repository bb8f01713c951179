"""``pulse ctl ping``: whether the server answers, told by the exit code; what the health check of a container asks."""

from __future__ import annotations

import time

import click

from pulse.cli.lazy import examples
from pulse.cli.output.render import Screen, foreign
from pulse.cli.server import current_server

__all__ = ["ping"]


@click.command(epilog=examples("pulse ctl ping", "pulse ctl --timeout 2 ping"))
def ping() -> None:
    """
    Ask whether supervisor and dispatcher answer: exit code 0 if both do, else 3. Over TCP: the dispatcher alone.

    For health checks. It says nothing of the database: a server waits for that, and to start it again would not help.
    """
    server, began_s = current_server(), time.monotonic()
    if server.elsewhere() is None:
        server.ask_supervisor("ping")
    server.ask("ping", repeatable=True)
    Screen().lines([[foreign(f"it answers, after {(time.monotonic() - began_s) * 1000:.1f} ms")]])
