"""``pulse migrate``: install or upgrade the schema, and make the database roles."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pulse.cli.lazy import examples
from pulse.cli.options import with_config, with_dsn
from pulse.common.extras import require
from pulse.errors import ConfigError, PulseError
from pulse.security.schema_name import DEFAULT, quoted

if TYPE_CHECKING:
    from pulse.store.admin.roles import Made
    from pulse.store.connections.pool import Target
    from pulse.store.store import Store


@click.command(
    epilog=examples(
        "pulse migrate --dsn postgresql://pulse@db.example.com/shop",
        "PULSE_DSN='host=/run/postgresql dbname=shop' pulse migrate",
        "pulse migrate --roles --dsn postgresql://postgres@db.example.com/shop",
        "pulse migrate --roles --print | psql shop",
    )
)
@with_dsn("")
@with_config
@click.option(
    "--roles",
    is_flag=True,
    help="Also make the database roles owner, server, submit and read, each of which may do what it must, and no more.",
)
@click.option(
    "--roles-prefix",
    "prefix",
    metavar="PREFIX",
    default="pulse_",
    show_default=True,
    help="What the names of the roles begin with; roles belong to the whole server, not to one database.",
)
@click.option(
    "--print", "--dry-run", "only_print", is_flag=True, help="With --roles: print the SQL, for a superuser; do nothing."
)
def migrate(config: Path | None, prefix: str, *, roles: bool, only_print: bool, **given: str | None) -> None:
    """
    Install or upgrade the schema of the queue in the database.

    Harmless to repeat, and safe when several do it at once. The supervisor does the same at its start, unless its role
    may do no more than it must.
    """
    from pulse.config import load

    if only_print and not roles:
        raise click.UsageError("--print is allowed with --roles only.")
    require("pulse migrate", ["asyncpg"])
    if roles:
        prefix = _checked(prefix)
    settings = load(os.environ, config, given)
    if only_print:
        from pulse.store.admin.roles import roles_script

        click.echo(roles_script(prefix, settings.schema or DEFAULT), nl=False)
        return
    if settings.dsn is None:
        raise click.UsageError(
            "no database is named: give --dsn or set PULSE_DSN; the supervisor looks after its own embedded PostgreSQL."
        )
    from pulse.store.connections.pool import Target

    target = Target(settings.dsn, "pulse migrate", settings.schema or DEFAULT)
    for line in asyncio.run(_migrate(target, prefix if roles else None)):
        click.echo(line)


def _checked(prefix: str) -> str:
    from pulse.store.admin.roles import checked_prefix

    try:
        return checked_prefix(prefix)
    except ConfigError as error:
        raise click.UsageError(f"--roles-prefix: {error.message}") from None


def what_was_done(found: int, newest: int, name: str = DEFAULT) -> str:
    """
    What a migration did, in words.

    Args:
        found: The version of the schema that was there, 0 for none.
        newest: The version that is there now.
        name: The schema, as SQL has it.
    """
    if found == newest:
        return f"schema {name} is at version {newest}: nothing to do"
    if found == 0:
        return f"schema {name} installed, version {newest}"
    return f"schema {name} upgraded from version {found} to {newest}"


def _what_became(made: Made, prefix: str) -> list[str]:
    """What was done about the roles, and what is left to do."""
    new = f"; new: {', '.join(made.roles)}" if made.roles else ""
    return [
        f"roles {prefix}owner, {prefix}server, {prefix}submit and {prefix}read have what each of them needs{new}",
        f"members of {prefix}owner, who may upgrade: {', '.join(made.members) or 'none but superusers'}",
        f"let the server log in as one that has {prefix}server alone: CREATE ROLE … LOGIN IN ROLE {prefix}server;",
    ]


async def _migrate(target: Target, prefix: str | None) -> list[str]:
    from pulse.store.admin.schema import SCHEMA_VERSION
    from pulse.store.store import Store

    store = Store(target, hot=1, queries=1)
    try:
        await store.check_sessions()
        done = [what_was_done(await store.prepare(), SCHEMA_VERSION, quoted(target.schema))]
        return done if prefix is None else [*done, *_what_became(await _make_roles(store, prefix), prefix)]
    except Exception as error:
        if getattr(error, "sqlstate", None) is None:
            raise
        raise PulseError(f"the database refused: {error}") from error
    finally:
        store.close()


async def _make_roles(store: Store, prefix: str) -> Made:
    from pulse.store.admin.roles import make_roles

    async with store.query.connection(deadline_s=60.0) as connection:
        return await make_roles(connection, prefix)
