"""``pulse passwd``: a bcrypt entry for PULSE_AUTH_USERS."""

from __future__ import annotations

import sys

import click

from pulse.cli.lazy import examples
from pulse.common.extras import require
from pulse.errors import BadRequestError
from pulse.security.credentials import hash_password


@click.command(epilog=examples("pulse passwd alice", 'printf %s "$PASSWORD" | pulse passwd alice'))
@click.argument("user", required=False)
def passwd(user: str | None) -> None:
    """
    Print the bcrypt entry of a password; with USER, as PULSE_AUTH_USERS wants it.

    The password is asked for twice on a terminal, without showing it; else it is the first line of standard input.
    """
    require("pulse passwd", ["bcrypt"])
    if user is not None and (
        not user or any(char in ":," or not char.isprintable() or char.isspace() for char in user)
    ):
        raise BadRequestError(f"user is {user!r:.80}: a name without spaces, colons and commas is allowed")
    if sys.stdin.isatty():
        password: str = click.prompt("Password", hide_input=True, confirmation_prompt="The same again", err=True)
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    entry = hash_password(password)
    click.echo(entry if user is None else f"{user}:{entry}")
