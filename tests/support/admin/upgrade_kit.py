"""Upgrades made up by tests: what later releases may bring, in files of their own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from pulse.store.admin import schema
from pulse.store.admin.upgrade.runner import Upgrade
from pulse.store.admin.upgrade.steps import STRONG_LOCKS, WEAK_LOCKS, Step, StepKind
from tests.support.store.helpers import Patch, Sql

# The table as development versions made it, up to their version 10: a row for each version, and no release.
DEVELOPMENT: Final = """
    CREATE SCHEMA pulse;
    CREATE TABLE pulse.schema_version (
        version      int PRIMARY KEY CHECK (version >= 1),
        installed_at timestamptz NOT NULL DEFAULT clock_timestamp()
    );
    INSERT INTO pulse.schema_version SELECT generate_series(1, {});
"""
_LOCKS: Final = """
    SELECT mode FROM pg_locks WHERE locktype = 'relation' AND pid = pg_backend_pid() AND relation = to_regclass($1)
"""
# Every column, constraint, index, table's options, function, trigger and version of the schema.
_CATALOGUE: Final = """
    SELECT attrelid::regclass::text || '.' || attname || ' ' || format_type(atttypid, atttypmod) || ' ' || attnotnull
           || ' ' || coalesce(pg_get_expr(adbin, adrelid), '') AS line
    FROM pg_attribute JOIN pg_class c ON c.oid = attrelid LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
    WHERE c.relnamespace = 'pulse'::regnamespace AND attnum > 0 AND NOT attisdropped
    UNION ALL SELECT conrelid::regclass::text || ' ' || conname || ' ' || pg_get_constraintdef(oid) FROM pg_constraint
    WHERE connamespace = 'pulse'::regnamespace
    UNION ALL SELECT indexdef FROM pg_indexes WHERE schemaname = 'pulse'
    UNION ALL SELECT relname || ' ' || coalesce(reloptions::text, '') FROM pg_class
    WHERE relnamespace = 'pulse'::regnamespace
    UNION ALL SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'pulse'::regnamespace
    UNION ALL SELECT pg_get_triggerdef(oid) FROM pg_trigger
    WHERE tgrelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'pulse'::regnamespace) AND NOT tgisinternal
    UNION ALL SELECT to_jsonb(v)::text FROM pulse.schema_version v
    ORDER BY line
"""


def make_upgrades(monkeypatch: Patch, folder: Path, *versions: str) -> int:
    """
    Let this pulse be a later one, and return its version.

    Args:
        folder: For the files of the steps.
        versions: The steps of each version; SQL without a step's header is a step of its own, which locks nobody out.
    """
    upgrades = folder / "upgrades"
    upgrades.mkdir(exist_ok=True)
    for version, steps in enumerate(versions, max(schema.RELEASES) + 1):
        text = steps if "-- step:" in steps else step("made-up", steps, kind="long")
        (upgrades / f"{version}.sql").write_text(text, "utf-8")
        monkeypatch.setitem(schema.RELEASES, version, f"made up {version}")
    newest = max(schema.RELEASES)
    monkeypatch.setattr(schema, "VERSIONS", upgrades)
    monkeypatch.setattr(schema, "SCHEMA_VERSION", newest)
    return newest


def step(
    name: str, sql: str, *, kind: str = "brief", table: str = "none", lock: str = "none", key: str | None = None
) -> str:
    """A step, as a file of them has it."""
    header = f"-- step: {name}\n-- What:  {name}\n-- Kind:  {kind}\n-- Table: {table}\n-- Lock:  {lock}\n"
    header += "" if key is None else f"-- Key:   {key}\n"
    return f"{header}{sql.rstrip().rstrip(';')};\n"


async def upgraded(connection: Sql) -> int:
    """Upgrade the database of a session, and leave that as it was; the version that was found."""
    try:
        return await Upgrade(connection, lambda _: None).run()
    finally:
        if not connection.is_closed():
            await connection.execute("RESET ROLE; SELECT pg_advisory_unlock_all()")


async def lock_of(connection: Sql, step: Step) -> str:
    """Take a step, and tell the strongest lock that it had on its table; "none": none."""
    async with connection.transaction():
        values = (None, 1, None) if step.kind is StepKind.BATCHES else ()
        await connection.execute(step.sql, *values)
        rows = await connection.fetch(_LOCKS, step.table)
    modes = {re.sub(r"(?<=[a-z])(?=[A-Z])", " ", row["mode"].removesuffix("Lock")).upper() for row in rows}
    return max(modes, key=[*WEAK_LOCKS, *STRONG_LOCKS].index, default="none")


async def catalogue(connection: Sql) -> list[str]:
    return [row["line"] for row in await connection.fetch(_CATALOGUE)]
