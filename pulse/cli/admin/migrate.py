"""``pulse migrate``: install or upgrade the schema, say what that will do, and make the database roles."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pulse.cli.admin.plan import show_plan
from pulse.cli.lazy import examples
from pulse.cli.options import with_config, with_dsn
from pulse.common.extras import require
from pulse.errors import ConfigError, PulseError
from pulse.security.schema_name import DEFAULT, quoted

if TYPE_CHECKING:
    from pulse.store.admin.roles import Made
    from pulse.store.admin.upgrade.plan import UpgradePlan
    from pulse.store.connections.pool import Target
    from pulse.store.store import Store


@click.command(
    epilog=examples(
        "pulse migrate --dsn postgresql://pulse@db.example.com/shop",
        "PULSE_DSN='host=/run/postgresql dbname=shop' pulse migrate",
        "pulse migrate --plan",
        "pulse migrate --roles --dsn postgresql://postgres@db.example.com/shop",
        "pulse migrate --roles --print | psql shop",
        "pulse migrate --citus --dsn postgresql://pulse@coordinator,node1,node2/shop",
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
@click.option("--plan", "only_plan", is_flag=True, help="Only say what an upgrade will do, and what is done of it.")
@click.option("--json", "as_json", is_flag=True, help="With --plan: print it as one JSON document.")
@click.option(
    "--citus", "on_citus", is_flag=True, help="Let Citus keep a new queue; --dsn names its coordinator and nodes."
)
def migrate(
    config: Path | None,
    prefix: str,
    *,
    roles: bool,
    only_print: bool,
    only_plan: bool,
    as_json: bool,
    on_citus: bool,
    **given: str | None,
) -> None:
    """
    Install or upgrade the schema of the queue in the database.

    Servers and workers go on meanwhile, also those of the release before. Harmless to repeat, safe when several do it
    at once; an upgrade that was interrupted goes on where it was. The supervisor installs the schema at its start,
    too, and upgrades it where that takes a moment, or where PostgreSQL is embedded.
    """
    from pulse.config import load

    _refuse_combinations(roles=roles, only_print=only_print, only_plan=only_plan, as_json=as_json)
    if on_citus and (roles or only_plan):
        raise click.UsageError("--citus is allowed without --roles and --plan only.")
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
    if only_plan:
        show_plan(asyncio.run(_told(target)), quoted(target.schema), as_json=as_json)
        return
    if on_citus:
        click.echo(asyncio.run(_distribute(target)))
    for line in asyncio.run(_migrate(target, prefix if roles else None)):
        click.echo(line)


def _refuse_combinations(*, roles: bool, only_print: bool, only_plan: bool, as_json: bool) -> None:
    if only_print and not roles:
        raise click.UsageError("--print is allowed with --roles only.")
    if only_plan and roles:
        raise click.UsageError("--plan is allowed without --roles only.")
    if as_json and not only_plan:
        raise click.UsageError("--json is allowed with --plan only.")


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
    from pulse.store.admin.upgrade.runner import upgrade

    async with _opened(target) as store:
        found = await upgrade(store.query.target, lambda text: click.echo(text, err=True))
        done = [what_was_done(found, max(found, SCHEMA_VERSION), quoted(target.schema))]
        return done if prefix is None else [*done, *_what_became(await _make_roles(store, prefix), prefix)]


async def _distribute(target: Target) -> str:
    from pulse.store.connections.citus_installation import distribute

    with _refusals():
        made = await distribute(target)
    return f"Citus {'keeps' if made else 'kept'} the tables of {quoted(target.schema)}{'' if made else ' already'}"


async def _told(target: Target) -> UpgradePlan:
    from pulse.store.admin.upgrade.plan import plan

    async with _opened(target) as store, store.query.connection() as connection:
        return await plan(connection)


@contextlib.asynccontextmanager
async def _opened(target: Target) -> AsyncGenerator[Store]:
    from pulse.store.store import Store

    store = Store(target, hot=1, queries=1)
    try:
        with _refusals():
            await store.check_sessions()
            yield store
    finally:
        store.close()


@contextlib.contextmanager
def _refusals() -> Generator[None]:
    """What the database refuses in here is one line."""
    try:
        yield
    except Exception as error:
        if getattr(error, "sqlstate", None) is None:
            raise
        raise PulseError(f"the database refused: {error}") from error


async def _make_roles(store: Store, prefix: str) -> Made:
    from pulse.store.admin.roles import make_roles

    async with store.query.connection(deadline_s=60.0) as connection:
        return await make_roles(connection, prefix)
