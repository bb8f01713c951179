"""
What an actor does about the schema when it starts.

It is installed where there is none. An older one is upgraded here if that takes a moment, or if PostgreSQL is
embedded: nobody else uses that. Tables are filled and indexes made by `pulse migrate`, when an operator says so.
Meanwhile a server works with the schema of the release before its own, or after.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio
import structlog

from pulse.errors import ConfigError, SchemaError, UnavailableError
from pulse.store.admin import schema
from pulse.store.admin.upgrade.plan import steps_between
from pulse.store.admin.upgrade.runner import upgrade
from pulse.store.admin.upgrade.steps import StepKind

if TYPE_CHECKING:
    from pulse.store.store import Store

MOMENT_S: Final = 5.0  # for all brief steps, with their waits: people and the supervisor wait for the start

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
    if boot and embedded:
        await _upgrade(store, alone=True)
    found = await store.prepare(install=boot)
    if boot and 0 < found < schema.SCHEMA_VERSION and _takes_a_moment(found):
        error = f"not within {MOMENT_S:g} s"  # else it works with the schema as it is
        with anyio.move_on_after(MOMENT_S):
            try:
                await _upgrade(store)
                found, error = schema.SCHEMA_VERSION, ""
            except (ConfigError, SchemaError, UnavailableError) as raised:
                error = raised.message
        if error:
            log.warning("schema_upgrade_failed", error=error)
    if not tells or found in {0, schema.SCHEMA_VERSION}:
        return
    older = "pulse migrate upgrades it once no server needs the one before this"
    newer = "a server of a newer release runs, or has run: upgrade this one, too"
    message = older if found < schema.SCHEMA_VERSION else newer
    log.warning("schema_of_another_release", found=found, own=schema.SCHEMA_VERSION, message=message)


def _takes_a_moment(found: int) -> bool:
    """Whether an upgrade from that version fills no table and makes no index."""
    return all(step.kind is StepKind.BRIEF for step in steps_between(found, schema.SCHEMA_VERSION))


async def _upgrade(store: Store, *, alone: bool = False) -> None:
    await upgrade(store.query.target, lambda text: log.info("schema_upgrade", step=text), alone=alone)
