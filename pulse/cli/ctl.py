"""``pulse ctl``: the group, and what its commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from pulse.cli.lazy import Lazy, LazyGroup, examples
from pulse.cli.options import DURATION

_TIMEOUT_S: Final = 10.0  # a restart of the dispatcher passes within it; a person does not wait longer

COMMANDS: Final = {
    "status": Lazy("pulse.cli.system.status", "status", "Show how the whole system is doing."),
    "ping": Lazy("pulse.cli.system.processes", "ping", "Ask whether the server answers; for health checks."),
    "submit": Lazy("pulse.cli.jobs.submit", "submit", "Submit a job, or many from standard input."),
    "jobs": Lazy("pulse.cli.jobs.commands", "jobs", "List, show, cancel, retry and change jobs; tell why."),
    "queues": Lazy("pulse.cli.system.queues", "queues", "List the queues of the config file."),
    "workers": Lazy("pulse.cli.system.workers", "workers", "List the connected worker processes; drain one."),
    "dispatch": Lazy("pulse.cli.control.dispatch", "dispatch", "Pause and resume the handing out of jobs."),
    "topics": Lazy("pulse.cli.control.topics", "topics", "List topics and what is in them; change policies."),
    "limits": Lazy("pulse.cli.control.limits", "limits", "List and change limits of concurrency and rate."),
    "schedules": Lazy("pulse.cli.control.schedules", "schedules", "List, show, create and delete schedules."),
    "audit": Lazy("pulse.cli.system.audit", "audit", "Show what operators did, and who."),
    "actors": Lazy("pulse.cli.system.processes", "actors", "Restart an actor."),
    "logs": Lazy("pulse.cli.system.logs", "logs", "Show what the server's processes log."),
    "top": Lazy("pulse.cli.system.top", "top", "Watch topics, workers and jobs on a live screen."),
    "login": Lazy("pulse.cli.admin.login", "login", "Save the server and user for TCP."),
    "logout": Lazy("pulse.cli.admin.login", "logout", "Remove the saved login."),
    "drain": Lazy("pulse.cli.system.processes", "drain", "Let workers finish what they hold, and no more."),
}


def _connect_later(socket: Path | None, connect: str | None, queue: str | None, timeout: float) -> None:
    from pulse.cli.server import ServerHandle
    from pulse.queues.server_option import refuse_two

    refuse_two({"--socket": socket, "--connect": connect, "--queue": queue})
    server = ServerHandle(socket, timeout, connect)
    if queue is not None:
        from pulse.config import load_routes

        server.turn_to(load_routes().named(queue))
    click.get_current_context().obj = server


ctl: Final = LazyGroup(
    "ctl",
    COMMANDS,
    help="""
    Look at the running system, and control it.

    The server is $PULSE_CONNECT, if that is set, else looked for in $PULSE_RUNTIME_DIR, where pulse ctl login says, in
    the config file's runtime_dir, $XDG_RUNTIME_DIR/pulse, /run/pulse and a directory of this user in the temporary
    directory; the first that accepts is asked. Where the config file has several queues and no server is named, --topic
    or a job's id leads to one of them.
    """,
    epilog=examples("pulse ctl status", "pulse ctl --socket /run/pulse/pulse.sock jobs list --status RUNNING"),
    params=[
        click.Option(
            ["--socket"],
            type=click.Path(path_type=Path),
            metavar="PATH",
            help="The server's pulse.sock; supervisor.sock is looked for beside it.",
        ),
        click.Option(
            ["--connect"],
            metavar="ADDRESS",
            help="A server elsewhere, tls://HOST:PORT; PULSE_USER and PULSE_PASSWORD log in, or pulse ctl login.",
        ),
        click.Option(
            ["--queue"], metavar="NAME", help="The server of this queue of the config file; see pulse ctl queues."
        ),
        click.Option(
            ["--timeout"],
            type=DURATION,
            default=_TIMEOUT_S,
            metavar="DURATION",
            help="Longest wait for an answer (status of this machine: 2 s at most).",
        ),
    ],
    callback=_connect_later,
)
