"""Which server a command works for: the one that an option names, or the server of a queue in the config file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pulse.client.discovery import find_servers
from pulse.system.directories import CLIENT_SOCKET

if TYPE_CHECKING:
    from pulse.config import Settings
    from pulse.routes import Queue, Routes

__all__ = ["chosen_server", "queue_at", "refuse_two"]


def refuse_two(options: Mapping[str, object]) -> None:
    """
    Refuse a command line that names two servers; *options*: the values of those that name one, by what a person writes.

    Raises:
        click.UsageError: Two of them are given.
    """
    given = [option for option, value in options.items() if value is not None]
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given[:2])} name two servers: one is allowed")


def queue_at(routes: Routes, named: str | Path | None) -> Queue | None:
    """
    The queue whose server a client finds; None: no queue's.

    Args:
        routes: The queues in the config file.
        named: What names the server; None: the environment, or where servers usually are.
    """
    return routes.at(str(find_servers(named)[0])) if routes.queues else None


def chosen_server(
    settings: Settings, routes: Routes, named: str | Path | None, *, queue: str | None = None, needed: str
) -> str | Path | None:
    """
    The server that a command works for; None: a client finds it, by the environment or where servers usually are.

    Args:
        settings: Those of the command.
        routes: The queues in its config file.
        named: The socket or address that an option names.
        queue: Or the queue.
        needed: What a person must give where the file has several queues, and nothing names a server.

    Raises:
        BadRequestError: There is no such queue.
        ConfigError: There are several queues, and no server is named; or its address is malformed.
        PathError: The path can never be a socket.
    """
    if queue is not None:
        named = routes.named(queue).server
    elif named is None and not os.environ.get("PULSE_CONNECT"):
        if settings.runtime_dir is None:
            routes.refuse_several(needed)
        else:
            named = settings.runtime_dir / CLIENT_SOCKET
    find_servers(named)
    return named
