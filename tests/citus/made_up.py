"""An upgrade of a queue on Citus, made up: its steps, and what works after them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import asyncpg
import pytest

from pulse.store.admin.schema import SCHEMA_VERSION
from tests.support.admin.upgrade_kit import step

if TYPE_CHECKING:
    from pulse.store.connections.session import Session

NEXT: Final = SCHEMA_VERSION + 1
MADE_UP: Final = f"made up {NEXT}"
REGIONS: Final = (
    "CREATE TABLE IF NOT EXISTS pulse.regions (name text PRIMARY KEY, colour pulse.colour, gone int, spare int)"
)
COLOURS: Final = (
    "CREATE OR REPLACE FUNCTION pulse.colours() RETURNS bigint LANGUAGE sql BEGIN ATOMIC\n"
    "  SELECT count(colour) FROM pulse.regions;\nEND"
)
TYPE: Final = step("type", "CREATE DOMAIN pulse.colour AS text CHECK (VALUE <> '')")
MORE: Final = (
    TYPE
    + step("table", REGIONS)
    + step("row", "INSERT INTO pulse.regions VALUES ('here', 'red') ON CONFLICT (name) DO NOTHING")
    + step("widen", "ALTER TABLE pulse.witnesses ADD COLUMN IF NOT EXISTS colour pulse.colour", table="pulse.witnesses",
           lock="ACCESS EXCLUSIVE")
    + step("count", COLOURS)
    + step("trigger", "CREATE OR REPLACE TRIGGER regions_changed AFTER INSERT ON pulse.regions FOR EACH STATEMENT "
           "EXECUTE FUNCTION pulse.tell_topics()", table="pulse.regions", lock="SHARE ROW EXCLUSIVE")
    + step("narrow", "ALTER TABLE pulse.regions DROP COLUMN IF EXISTS gone, DROP COLUMN IF EXISTS spare",
           table="pulse.regions", lock="ACCESS EXCLUSIVE")
    + step("anew", "ALTER TABLE pulse.regions ADD COLUMN IF NOT EXISTS spare int DEFAULT 7", table="pulse.regions",
           lock="ACCESS EXCLUSIVE")
)  # fmt: skip
FORMS: Final = """
    CREATE TYPE pulse.way AS ENUM ('in');
    ALTER TYPE pulse.way ADD VALUE IF NOT EXISTS 'out';
    CREATE TABLE IF NOT EXISTS pulse.spares (way pulse.way, job uuid CONSTRAINT spares_job REFERENCES pulse.jobs (id));
    CREATE INDEX IF NOT EXISTS spares_way ON pulse.spares (way);
    ALTER TABLE pulse.spares ALTER COLUMN way SET DEFAULT 'out', ALTER COLUMN way SET NOT NULL, SET (fillfactor = 90);
    CREATE OR REPLACE TRIGGER spared AFTER INSERT ON pulse.spares
        FOR EACH STATEMENT EXECUTE FUNCTION pulse.tell_topics();
    CREATE OR REPLACE FUNCTION pulse.spare() RETURNS int LANGUAGE sql AS $$ SELECT 1 $$;
    REVOKE ALL ON FUNCTION pulse.spare() FROM PUBLIC;
    INSERT INTO pulse.spares DEFAULT VALUES;
    ALTER TABLE pulse.spares ALTER COLUMN way DROP NOT NULL, DROP CONSTRAINT IF EXISTS spares_job;
    DROP FUNCTION IF EXISTS pulse.spare();
    DROP TRIGGER IF EXISTS spared ON pulse.spares;
    DROP INDEX IF EXISTS pulse.spares_way;
    DROP TABLE IF EXISTS pulse.spares;
    DROP TRIGGER IF EXISTS spared ON pulse.spares;
    DROP TYPE IF EXISTS pulse.way;
"""
ANEW: Final = f"CREATE DOMAIN pulse.colour AS text;\n{REGIONS.replace('IF NOT EXISTS ', '')};\n{COLOURS};\n"
ADD: Final = step(
    "add", "ALTER TABLE pulse.jobs ADD COLUMN IF NOT EXISTS region text DEFAULT 'here'", table="pulse.jobs",
    lock="ACCESS EXCLUSIVE",
)  # fmt: skip


async def filled(connection: Session, count: int) -> None:
    await connection.execute(f"SELECT pulse.submit('nap') FROM generate_series(1, {count})")


async def works(connection: Session) -> None:
    """The queue is of the next version on this node."""
    assert await connection.fetchval("SELECT max(version) FROM pulse.schema_version") == NEXT
    assert await connection.fetchval("SELECT name FROM pulse.regions") == "here"
    assert await connection.fetchval("SELECT pulse.colours()") == 1
    job = await connection.fetchval("SELECT pulse.submit('nap')")
    assert await connection.fetchval("DELETE FROM pulse.jobs WHERE id = $1 RETURNING region", job) == "here"
    assert await connection.fetchval("SELECT count(colour) FROM pulse.witnesses") == 0
    assert await connection.fetchval("SELECT spare FROM pulse.regions") == 7
    witness = "INSERT INTO pulse.witnesses VALUES (pulse.uuid7(), 1, DEFAULT, 1, 1, 'p', 'h')"
    assert await connection.fetchval(f"{witness} RETURNING tableoid = 'pulse.witnesses'::regclass")
    for wrong in ("UPDATE pulse.jobs SET region = NULL", "UPDATE pulse.regions SET colour = ''"):
        with pytest.raises(asyncpg.CheckViolationError):
            await connection.execute(wrong)
