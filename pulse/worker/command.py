"""The command line of a worker pool: ``pulse worker`` and ``python -m pulse.worker``."""

from __future__ import annotations

import os
import signal
from typing import Final

import click

from pulse import config
from pulse.common.extras import require
from pulse.logs import configure_logging
from pulse.queues.server_option import chosen_server, refuse_two
from pulse.system import processes as procs
from pulse.system.log_forward import LEVELS
from pulse.worker.app_name import check_app_name
from pulse.worker.options import Backend, PoolOptions, PoolTopics, absolute_socket

__all__ = ["worker"]

_NEEDED: Final = "--queue NAME is needed"
EPILOG: Final = """
\b
Examples:
  pulse worker shop.jobs:app
  pulse worker shop.jobs:app --processes 4 --concurrency 50
  pulse worker shop.jobs:app --topic images --topic mails --backend trio
  pulse worker shop.jobs:app --reload --log-level debug
"""


@click.command("worker", epilog=EPILOG)
@click.argument("app", metavar="MODULE:APP")
@click.option("--processes", type=click.IntRange(1, 1024), help="Handler processes.  [default: 1]")
@click.option("--concurrency", type=click.IntRange(1, 10_000), help="Handlers at once in each process.  [default: 10]")
@click.option(
    "--spares",
    type=click.IntRange(0, 8),
    help="Processes that wait to replace one that dies, if none can be forked.  [default: 1]",
)
@click.option("--no-preload", is_flag=True, help="Import the app in each process: do not fork them from one that has.")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="T",
    help="Serve this topic; may be given again.  [default: the handlers']",
)
@click.option("--socket", type=click.Path(), metavar="PATH", help="The server's socket.  [default: looked for]")
@click.option(
    "--connect", metavar="ADDRESS", help="A server elsewhere, tls://HOST:PORT; PULSE_USER and PULSE_PASSWORD log in."
)
@click.option("--queue", metavar="NAME", help="Work for this queue of the config file; needed if it has [queues].")
@click.option("--backend", type=click.Choice(["asyncio", "trio"]), default="asyncio", show_default=True)
@click.option("--drain-s", metavar="DURATION", help="How long handlers may go on when stopping.  [default: 30]")
@click.option("--log-level", type=click.Choice(LEVELS), help="Lowest level that is logged.  [default: info]")
@click.option(
    "--log-format",
    type=click.Choice(["json", "console"]),
    help="[default: console on a terminal, else json]",
)
@click.option("--reload", "reloads", is_flag=True, help="For development: start again when a file of the app changes.")
@click.option("--parent-pid", type=int, hidden=True)
def worker(  # noqa: PLR0913, PLR0917 - one parameter per option, as click wants it
    app: str,
    processes: int | None,
    concurrency: int | None,
    spares: int | None,
    no_preload: bool,
    topics: tuple[str, ...],
    socket: str | None,
    connect: str | None,
    queue: str | None,
    backend: Backend,
    reloads: bool,
    parent_pid: int | None,
    **settings_given: str | None,
) -> None:
    """
    Run the handlers of an app.

    MODULE is looked for in the current directory too. SIGTERM lets running handlers finish, for --drain-s; a second one
    ends the pool at once. With --reload the same is done when a Python file changes, and the pool is started again.
    """
    check_app_name(app)
    if parent_pid is not None:
        procs.die_with_parent(parent_pid, signal.SIGTERM)
    if backend == "trio":
        require("--backend trio", ["trio"], "trio")
    if wrong := [topic for topic in topics if not 1 <= len(topic) <= 200]:  # noqa: PLR2004 - as in the database
        raise click.UsageError(f"--topic is {wrong[0]!r:.60}: 1 to 200 characters are allowed.")
    refuse_two({"--socket": socket, "--connect": connect, "--queue": queue})
    preload = 0 if no_preload else None
    sizes = {"processes": processes, "concurrency": concurrency, "spares": spares, "preload": preload}
    given = {**sizes, **settings_given}
    settings, routes = config.load_with_routes(os.environ, overrides=given)
    configure_logging(settings.log_level, settings.log_format)
    if queue is None:
        routes.refuse_several(_NEEDED)
    named = connect if connect is not None else absolute_socket(socket)
    where = chosen_server(settings, routes, named, queue=queue, needed=_NEEDED)
    if where is not None and (connect is not None or queue is not None):
        os.environ["PULSE_CONNECT"] = str(where)  # for handlers that submit jobs
    if queue is not None:
        os.environ["PULSE_CONFIG"] = str(settings.config)  # for those that have changed their directory
    if reloads:
        require("--reload", ["watchfiles"])
        from pulse.worker.pool.reload import run_reloading

        context = click.get_current_context()
        context.exit(run_reloading(app, [app, *_words_of(context)]))
    options = PoolOptions(
        app=app,
        processes=settings.processes,
        concurrency=settings.concurrency,
        spares=settings.spares,
        preload=settings.preload,
        topics=PoolTopics(named=topics or None, queue=queue, routes=routes if queue is not None else None),
        socket=None if where is None else str(where),
        backend=backend,
        drain_s=settings.drain_s,
        obey_s=settings.obey_s,
        log_level=settings.log_level,
        log_format=settings.log_format,
    )
    from pulse.worker.pool.parent import run_pool

    click.get_current_context().exit(run_pool(options))


def _words_of(context: click.Context) -> list[str]:
    """The options that were given, as words of a command line; but those of this process alone."""
    words: list[str] = []
    for option in context.command.params:
        value = context.params[option.name or ""]
        if not isinstance(option, click.Option) or value is None or option.hidden or option.name == "reloads":
            continue
        if option.is_flag:
            words += [option.opts[0]] if value else []
        else:
            words += [word for one in (value if option.multiple else (value,)) for word in (option.opts[0], str(one))]
    return words
