"""``pulse ctl login`` and ``logout``: keep the TCP server and the user in a private file."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import click

from pulse.cli.lazy import examples
from pulse.client.client import Client
from pulse.client.discovery import TLS, Remote, parse_address, refuse_to_show_password, told_to_show
from pulse.client.login import Login, Saved, forget, save
from pulse.errors import BadRequestError

_WAIT_S = 10.0


@click.command(
    epilog=examples(
        "pulse ctl login tls://alice@queue.example:7420",
        'printf %s "$PASSWORD" | pulse ctl login tls://queue.example:7420 --user alice --ca ca.pem',
    )
)
@click.argument("address")
@click.option("--user", metavar="NAME", help="User to log in as; or give tls://NAME@HOST:PORT.")
@click.option(
    "--ca", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="CA certificates for the server, in PEM."
)
@click.option(
    "--cert", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="An own certificate, if it asks."
)
@click.option("--key", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="The key of that.")
@click.option("--insecure", is_flag=True, help="The password may go over tcp:// to another machine.")
@click.option("--no-check", is_flag=True, help="Save it without trying it.")
def login(
    address: str,
    user: str | None,
    ca: Path | None,
    cert: Path | None,
    key: Path | None,
    *,
    insecure: bool,
    no_check: bool,
) -> None:
    """
    Save ADDRESS and the login there; pulse ctl, the SDK and workers of this user connect to it from then on.

    The password is asked for on a terminal, without showing it; else it is the first line of standard input. Nothing is
    saved unless the server lets it in. What the environment names (PULSE_CONNECT, PULSE_RUNTIME_DIR) goes before.
    """
    server = parse_address(address)
    if user is not None and server.login.user not in {None, user}:
        raise BadRequestError(f"--user is {user!r:.60} and the address says {server.login.user!r:.60}: one is allowed")
    user = user or server.login.user
    if user is not None and not insecure and not told_to_show(os.environ):
        refuse_to_show_password(replace(server, login=Login(user, "")), "--insecure")
    password = None if user is None else _password(user)
    wanted = Login(user, password, *(None if one is None else one.absolute() for one in (ca, cert, key)))
    server = replace(server, login=wanted)
    if not no_check:
        _try(server)
    path = save(os.environ, Saved(str(server), wanted))
    whom = "" if user is None else f" as {user}"
    plain = "" if server.scheme == TLS else "; it is not encrypted"
    click.echo(f"saved in {path}: {server}{whom}{plain}", err=True)


@click.command(epilog=examples("pulse ctl logout"))
def logout() -> None:
    """Remove what pulse ctl login saved; servers are looked for on this machine again."""
    path = forget(os.environ)
    click.echo("nobody was logged in" if path is None else f"removed {path}", err=True)


def _password(user: str) -> str:
    if sys.stdin.isatty():
        asked: str = click.prompt(f"Password of {user}", hide_input=True, err=True)
        return asked
    password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise BadRequestError("no password came on standard input: its first line is the password")
    return password


def _try(server: Remote) -> None:
    """Log in once; whatever is wrong is raised."""
    with Client(server, timeout_s=_WAIT_S) as client:
        client.ping()
