"""``pulse migrate``: install or upgrade the schema."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import click

from pulse.cli.lazy import examples
from pulse.cli.params import with_config
from pulse.errors import PulseError

__all__ = ["migrate", "what_was_done"]


@click.command(
    epilog=examples(
        "pulse migrate --dsn postgresql://pulse@db.example.com/shop",
        "PULSE_DSN='host=/run/postgresql dbname=shop' pulse migrate",
    )
)
@click.option("--dsn", metavar="DSN", show_default="PULSE_DSN, else dsn in the config file", help="The database.")
@with_config
def migrate(dsn: str | None, config: Path | None) -> None:
    """
    Install or upgrade the schema `pulse` in the database.

    Harmless to repeat, and safe when several do it at once. The supervisor does the same at its start.
    """
    from pulse.config import load

    chosen = load(os.environ, config, {"dsn": dsn}).dsn
    if chosen is None:
        raise click.UsageError(
            "no database is named: give --dsn or set PULSE_DSN; the supervisor looks after its own embedded PostgreSQL."
        )
    click.echo(asyncio.run(_migrate(chosen)))


def what_was_done(found: int, newest: int) -> str:
    """
    What a migration did, in words.

    Args:
        found: The version of the schema that was there, 0 for none.
        newest: The version that is there now.

    """
    if found == newest:
        return f"schema pulse is at version {newest}: nothing to do"
    if found == 0:
        return f"schema pulse installed, version {newest}"
    return f"schema pulse upgraded from version {found} to {newest}"


async def _migrate(dsn: str) -> str:
    try:
        from pulse.store.pool import Target
        from pulse.store.schema import SCHEMA_VERSION
        from pulse.store.store import Store
    except ModuleNotFoundError as error:
        raise PulseError(f"{error.name} is missing: pip install 'pulse-supervisor[server]'") from None
    store = Store(Target(dsn, "pulse migrate"), hot=1, queries=1)
    try:
        return what_was_done(await store.prepare(), SCHEMA_VERSION)
    except Exception as error:
        if getattr(error, "sqlstate", None) is None:
            raise
        raise PulseError(f"the database refused: {error}") from error  # no right to create a schema, for one
    finally:
        store.close()
