"""``pulse metrics``: the Prometheus endpoint as a process."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from pulse.cli.lazy import examples

if TYPE_CHECKING:
    from pulse.config import Settings

STOPS: Final = frozenset({signal.SIGTERM, signal.SIGINT})


@click.command(epilog=examples("pulse metrics --listen 9187", "pulse metrics --listen /run/pulse/metrics.sock"))
@click.option(
    "--listen",
    metavar="ADDRESS",
    show_default="PULSE_METRICS, else metrics in the config file",
    help="A port of 127.0.0.1, host:port, or the path of a Unix socket.",
)
@click.option("--socket", type=click.Path(path_type=Path), metavar="PATH", help="The server's socket.")
@click.option(
    "--topics", type=click.IntRange(0, 1000), default=100, help="Topics, and limits, with series of their own."
)
@click.option("--parent-pid", type=int, hidden=True)
def metrics(listen: str | None, socket: Path | None, topics: int, parent_pid: int | None) -> None:
    """
    Serve metrics to Prometheus, under /metrics.

    It asks the running server as every client does, and answers every scrape, also while the server or the database
    is away: then pulse_up says so. The supervisor starts it where PULSE_METRICS is set.
    """
    from pulse import config
    from pulse.logs import configure_logging
    from pulse.queues.server_option import chosen_server
    from pulse.system import processes

    if parent_pid is not None:
        processes.die_with_parent(parent_pid, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    settings, routes = config.load_with_routes(os.environ, overrides={"metrics": listen})
    if settings.metrics is None:
        raise click.UsageError("no address is given: use --listen or set PULSE_METRICS.")
    configure_logging(settings.log_level, settings.log_format)
    needed = "--socket PATH is needed, with the server of one of them"
    server = chosen_server(settings, routes, socket, needed=needed)
    _serve(settings, server, topics, insists=parent_pid is not None)


def _serve(settings: Settings, server: str | Path | None, topics: int, *, insists: bool) -> None:
    from pulse.ops.metrics.run import serve

    serve(settings.metrics or "", server, topics, STOPS, insists=insists)
