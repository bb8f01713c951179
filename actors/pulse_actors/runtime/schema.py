"""
What an actor does about the schema when it starts.

It is installed where there is none. An older one is upgraded here if that takes a moment, or if PostgreSQL is
embedded: nobody else uses that. Tables are filled and indexes made by `pulse migrate`, when an operator says so.
Meanwhile a server works with the schema of the release before its own, or after.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from pulse.errors import SchemaError, UnavailableError
from pulse.store.admin import schema
from pulse.store.admin.upgrade.plan import plan
from pulse.store.admin.upgrade.runner import upgrade
from pulse.store.admin.upgrade.steps import StepKind

if TYPE_CHECKING:
    from pulse.store.store import Store

log = structlog.get_logger()


async def see_to_schema(store: Store, *, boot: bool, embedded: bool, tells: bool) -> None:
    """
    Install the schema, or look whether this pulse works with the one that is there.

    Args:
        store: The database.
        boot: Whether the supervisor starts the actor for the first time; else nothing is changed.
        embedded: Whether the database is the supervisor's own.
        tells: Whether this actor logs that the schema is that of another release.

    Raises:
        SchemaError: It does not work with it.
        UnavailableError: The database is away, or being restored.
    """
    if boot and (embedded or await _takes_a_moment(store)):
        try:
            await upgrade(store.query.target, lambda text: log.info("schema_upgrade", step=text), alone=embedded)
        except (SchemaError, UnavailableError) as error:
            if embedded:
                raise
            log.warning("schema_upgrade_failed", error=error.message)  # whether that matters is seen below
    found = await store.prepare(install=boot)
    if not tells or found in {0, schema.SCHEMA_VERSION}:
        return
    older = "pulse migrate upgrades it once no server needs the one before this"
    newer = "a server of a newer release runs, or has run: upgrade this one, too"
    message = older if found < schema.SCHEMA_VERSION else newer
    log.warning("schema_of_another_release", found=found, own=schema.SCHEMA_VERSION, message=message)


async def _takes_a_moment(store: Store) -> bool:
    """Whether there is an upgrade, from the release before, without a table to fill or an index to make."""
    async with store.query.connection() as connection:
        planned = await plan(connection)
    is_next = planned.found == planned.wanted - 1 > 0
    return is_next and all(one.step.kind is StepKind.BRIEF for one in planned.steps)
