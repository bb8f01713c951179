"""What an upgrade will do, and what it has done: for people who decide when to run it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from pulse.store.admin import schema
from pulse.store.admin.upgrade.steps import Step, steps_of
from pulse.store.connections.citus import is_distributed, shards_of
from pulse.store.connections.session import in_schema
from pulse.store.statements import parse, texts

if TYPE_CHECKING:
    from asyncpg import Connection, Record

__all__ = ["UPGRADE", "StepProgress", "StepState", "UpgradePlan", "noted", "plan", "steps_between"]

UPGRADE: Final = parse(*texts("admin/upgrade", "upgrade.sql"))


class StepProgress(msgspec.Struct, frozen=True):
    """How far a step has come: the key that it *reached*, how many *rows* it looked at, and whether it *is_done*."""

    reached: str | None = None
    rows: int = 0
    is_done: bool = False


class StepState(msgspec.Struct, frozen=True):
    """
    A step, and where it stands.

    Attributes:
        noted: What is done of it.
        rows: How many rows its table has, as PostgreSQL estimates; None: it has no table yet.
        size_bytes: The table's size with its indexes.
    """

    step: Step
    noted: StepProgress
    rows: int | None = None
    size_bytes: int | None = None


class UpgradePlan(msgspec.Struct, frozen=True):
    """
    An upgrade.

    Attributes:
        found: The version that is there; 0: none.
        wanted: That of this pulse.
        steps: From the one to the other, in order.
    """

    found: int
    wanted: int
    steps: list[StepState]


def steps_between(found: int, wanted: int) -> list[Step]:
    """The steps from one version of the schema to another, in order."""
    return [step for version in range(found + 1, wanted + 1) for step in steps_of(version, schema.VERSIONS)]


async def noted(connection: Connection[Record]) -> dict[tuple[int, str], StepProgress]:
    """What an upgrade that is under way has done, by version and step."""
    if not await connection.fetchval(UPGRADE["upgrade_notes_there"].sql):
        return {}
    rows = await connection.fetch(UPGRADE["upgrade_noted"].sql)
    return {
        (row["version"], row["step"]): StepProgress(row["reached"], row["rows"], is_done=row["is_done"]) for row in rows
    }


async def plan(connection: Connection[Record]) -> UpgradePlan:
    """What `pulse migrate` would do now."""
    found = await schema.installed_version(connection)
    steps = steps_between(found, schema.SCHEMA_VERSION) if found else []
    done = await noted(connection) if steps else {}
    kept = await shards_of(connection) if steps and await is_distributed(connection) else {}
    shards = {f"pulse.{name}": f"pulse_rows.{name}_{shard}" for name, shard in kept.items()}
    names = {step.table for step in steps if step.table is not None}
    tables = {in_schema(connection, shards.get(name, name)): name for name in names}
    sizes = {tables[row["name"]]: row for row in await connection.fetch(UPGRADE["upgrade_tables"].sql, [*tables])}
    planned = list[StepState]()
    for step in steps:
        size = sizes.get(step.table or "")
        where = (None, None) if size is None else (size["rows"], size["bytes"])
        planned.append(StepState(step, done.get((step.version, step.name), StepProgress()), *where))
    return UpgradePlan(found, schema.SCHEMA_VERSION, planned)
