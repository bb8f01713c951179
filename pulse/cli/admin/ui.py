"""The command line of the dashboard: ``pulse ui``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from pulse import config
from pulse.cli.lazy import examples
from pulse.common.extras import require
from pulse.errors import ConfigError
from pulse.logs import configure_logging
from pulse.queues.server_option import chosen_server, queue_at, refuse_two
from pulse.security.credentials import Credentials, parse_users

if TYPE_CHECKING:
    from pulse.ui.auth.address import ListenAddress

DEFAULT: Final = "127.0.0.1:8470"
_NEEDED: Final = ("starlette", "uvicorn", "jinja2", "sse_starlette", "bcrypt")
_REMOTE: Final = """\
WARNING: {where} can be reached from other machines, and sends passwords, args and results unencrypted over the network.
Every user who logs in can cancel every job. Put a proxy with TLS in front, or use ssh -L instead."""


@click.command(
    epilog=examples(
        "pulse ui",
        "pulse ui --read-only --listen 127.0.0.1:9000",
        "pulse ui --listen unix:/run/pulse/ui.sock",
    )
)
@click.option(
    "--listen", metavar="ADDRESS", help=f"HOST:PORT, or unix:/path.  [default: {DEFAULT}]", show_default=False
)
@click.option(
    "--socket", type=click.Path(path_type=Path), metavar="PATH", help="The server's socket.  [default: looked for]"
)
@click.option("--queue", metavar="NAME", help="The server of this queue of the config file; links lead to the others.")
@click.option("--read-only", is_flag=True, help="Allow no changes.")
@click.option(
    "--allow-host", "names", multiple=True, metavar="NAME", help="A name that it may be called by; may be repeated."
)
@click.option(
    "--force-remote", is_flag=True, help="Allow an address that other machines can reach; needs PULSE_AUTH_USERS."
)
def ui(
    listen: str | None,
    socket: Path | None,
    queue: str | None,
    names: tuple[str, ...],
    *,
    read_only: bool,
    force_remote: bool,
) -> None:
    """
    Serve the dashboard until it is interrupted.

    It asks the server over its socket, as pulse ctl does. A browser logs in with a user of PULSE_AUTH_USERS (pulse
    passwd makes an entry); without such users, by a link that is printed and works once. At a Unix socket nobody logs
    in: it is for the user who started it, and root.
    """
    require("pulse ui", _NEEDED, "ui")
    from pulse.ui.auth.address import bind, parse_listen
    from pulse.ui.data.queries import Questions
    from pulse.ui.server import run
    from pulse.ui.site import Site, SiteOptions

    refuse_two({"--socket": socket, "--queue": queue})
    settings, routes = config.load_with_routes(os.environ)
    configure_logging(settings.log_level, settings.log_format)
    users = None if settings.auth_users is None else parse_users(settings.auth_users)
    wanted = parse_listen(listen or settings.ui_listen or DEFAULT)
    _check_remote(wanted, users, force_remote=force_remote)
    server = chosen_server(settings, routes, socket, queue=queue, needed="--queue NAME is needed")
    if queue is None and socket is None and (found := queue_at(routes, server)) is not None:
        queue = found.name
    listening, address = bind(wanted)
    if not address.is_local:
        click.echo(_REMOTE.format(where=address.url), err=True)
    options = SiteOptions(
        address,
        frozenset(names),
        users if address.path is None else None,
        read_only=read_only,
        queue=queue,
        routes=routes,
    )
    site = Site(options, Questions(server), lambda text: click.echo(text, err=True))
    click.get_current_context().exit(run(site, listening, address))


def _check_remote(address: ListenAddress, users: Credentials | None, *, force_remote: bool) -> None:
    """
    Refuse an address that other machines reach, unless it is meant, and there are users.

    Raises:
        ConfigError: It is not, or there are none.
    """
    if address.is_local:
        return
    if not force_remote:
        raise ConfigError(
            f"--listen is {address.netloc}: other machines can reach it; a loopback address or unix:/path is allowed, "
            "and --force-remote says that this is meant"
        )
    if users is None:
        raise ConfigError(f"--listen is {address.netloc}: --force-remote needs users that log in; set PULSE_AUTH_USERS")
