"""Which commands a queue on Citus can take: those of each release, and none that would be misread."""

from __future__ import annotations

from typing import Final

import msgspec
import pytest

from pulse.errors import SchemaError
from pulse.store.admin import schema
from pulse.store.admin.upgrade.citus_forms import refuse_other_forms
from pulse.store.admin.upgrade.steps import Step, StepKind, parse_steps, steps_of
from pulse.store.connections.citus_schema import FENCE, commands
from pulse.store.statements import schema_sql
from tests.support.admin.upgrade_kit import step
from tests.support.systems.releases import STEPS

_FENCE: Final = "CREATE OR REPLACE FUNCTION pulse.check_attempt(id uuid) RETURNS bool LANGUAGE plpgsql AS $$\nBEGIN\n"
_ADD: Final = "ALTER TABLE pulse.jobs ADD COLUMN IF NOT EXISTS"
_TRIGGER: Final = "CREATE OR REPLACE TRIGGER a AFTER INSERT"


def _step(sql: str, kind: str = "brief") -> Step:
    (made,) = parse_steps(2, step("made-up", sql))
    return msgspec.structs.replace(made, kind=StepKind(kind))


def test_each_release_can_be_taken() -> None:
    """No release has a step by which the upgrade of a queue on Citus would end."""
    released = [one for version in range(2, schema.SCHEMA_VERSION + 1) for one in steps_of(version, schema.VERSIONS)]
    for one in (*released, *parse_steps(2, STEPS.read_text("utf-8"))):
        refuse_other_forms(one)


def test_all_functions_and_triggers_can_be_taken() -> None:
    """Those of this release, as a step of the next one may have them again."""
    kinds = ("CREATE FUNCTION", "CREATE TRIGGER", "CREATE CONSTRAINT TRIGGER", "REVOKE")
    found = [one for one in commands(schema_sql()) if one.startswith(kinds) and "jittered" not in one]
    assert len(found) > 40
    assert any(FENCE.match(one) for one in found)
    for command in found:
        refuse_other_forms(_step(command))


@pytest.mark.parametrize("sql", [
    f"{_ADD} a int DEFAULT 1 + (2), DROP CONSTRAINT IF EXISTS b, ADD CONSTRAINT b CHECK (a = 1 AND '\"$--' <> '(,')",
    "ALTER TABLE IF EXISTS pulse.x ALTER COLUMN a SET DEFAULT 'x',\n  ALTER COLUMN a DROP NOT NULL",
    "ALTER TABLE pulse.jobs SET (fillfactor = 90), DROP COLUMN IF EXISTS a",
    "CREATE TABLE IF NOT EXISTS pulse.x (\n  a pulse.job_time,\n  b uuid REFERENCES pulse.jobs ON DELETE CASCADE\n)",
    "CREATE INDEX IF NOT EXISTS x ON pulse.jobs (pulse.jittered(a)) WHERE b = ''",
    "DROP INDEX IF EXISTS pulse.idx_jobs_held",
    "DROP TABLE IF EXISTS pulse.x",
    "CREATE DOMAIN pulse.colour AS text CHECK (VALUE <> '')",
    "CREATE TYPE pulse.way AS ENUM ('in', 'out')",
    "ALTER TYPE pulse.way ADD VALUE IF NOT EXISTS 'up'",
    f"{_TRIGGER} OR UPDATE OF a, b ON pulse.jobs\n  FOR EACH ROW WHEN (NEW.a = 'x') EXECUTE FUNCTION pulse.x('y')",
    "DROP TRIGGER IF EXISTS a ON pulse.jobs",
    "DROP FUNCTION IF EXISTS pulse.x(int, text)",
    "GRANT EXECUTE ON FUNCTION pulse.x(int) TO PUBLIC",
    'INSERT INTO pulse.x VALUES (\'pulse.jobs; ctid\', "a") ON CONFLICT DO NOTHING',
    "SELECT pulse.x()",
    "UPDATE pulse.jobs SET a = 1",
])  # fmt: skip
def test_what_is_taken(sql: str) -> None:
    refuse_other_forms(_step(sql))


@pytest.mark.parametrize(("sql", "kind"), [
    *((sql, "brief") for sql in (
        "ALTER TABLE ONLY pulse.jobs DROP COLUMN IF EXISTS a",
        "alter table pulse.jobs DROP COLUMN IF EXISTS a",
        "ALTER TABLE pulse.jobs\n  DROP COLUMN IF EXISTS a",
        "ALTER TABLE pulse.jobs DROP a", "ALTER TABLE pulse.jobs DROP COLUMN a",
        "ALTER TABLE pulse.jobs DROP COLUMN IF EXISTS a CASCADE", "ALTER TABLE pulse.jobs RENAME TO x",
        "ALTER TABLE pulse.jobs ALTER COLUMN a TYPE text", "ALTER TABLE pulse.jobs ADD a int",
        'ALTER TABLE pulse."jobs" DROP COLUMN IF EXISTS a', 'ALTER TABLE pulse.jobs DROP COLUMN IF EXISTS "a"',
        f"{_ADD} a text DEFAULT 'pulse.jobs'",
        rf"{_ADD} a text DEFAULT E'\', DROP COLUMN IF EXISTS b, ADD CONSTRAINT c CHECK (a <> '''",
        f"{_ADD} a int, -- b\n  DROP COLUMN IF EXISTS b", f"{_ADD} a int /* DROP COLUMN IF EXISTS b */",
        f"{_ADD} a text DEFAULT $$,$$", f"{_ADD} a int CHECK (a > 0)", f"{_ADD} a bigint GENERATED ALWAYS AS IDENTITY",
        f"{_ADD} a serial", f"{_ADD} a uuid DEFAULT pulse.uuid7()",
        "CREATE TABLE pulse.x (a int)", "CREATE UNLOGGED TABLE IF NOT EXISTS pulse.x (a int)",
        "CREATE TABLE IF NOT EXISTS pulse.x (a bigserial)", "CREATE TABLE IF NOT EXISTS pulse.x AS SELECT 1",
        "DROP TABLE IF EXISTS pulse.x CASCADE", "DROP TABLE IF EXISTS pulse.x, pulse.y",
        "ALTER INDEX pulse.idx_jobs_held RENAME TO x", "CREATE INDEX IF NOT EXISTS x ON ONLY pulse.jobs (a)",
        "CREATE INDEX CONCURRENTLY IF NOT EXISTS x ON pulse.jobs (a)", "DROP INDEX CONCURRENTLY IF EXISTS pulse.x",
        "ALTER DOMAIN pulse.colour DROP CONSTRAINT a", "ALTER TYPE pulse.way RENAME TO x",
        "COMMENT ON TABLE pulse.jobs IS 'x'", "COMMENT ON COLUMN pulse.jobs.id IS 'x'", "CREATE SEQUENCE pulse.x",
        "GRANT SELECT ON pulse.jobs TO x", "DO $$BEGIN END$$", "TRUNCATE pulse.jobs", "LOCK TABLE pulse.jobs",
        f"{_TRIGGER} ON pulse.jobs WHEN (NEW.a = 'ON pulse.jobs') EXECUTE FUNCTION pulse.x()",
        f"{_TRIGGER} ON pulse.jobs FROM pulse.topics EXECUTE FUNCTION pulse.x()",
        f'{_TRIGGER} ON pulse."jobs" EXECUTE FUNCTION pulse.x()', "DROP TRIGGER IF EXISTS a ON jobs",
        "CREATE OR REPLACE FUNCTION pulse.jittered(a uuid) RETURNS text AS ''",
        "DROP FUNCTION IF EXISTS pulse.jittered(uuid)",
        "CREATE FUNCTION pulse.x() RETURNS int AS $F$SELECT 1; SELECT 2$F$",
        "CREATE FUNCTION pulse.x() RETURNS int BEGIN ATOMIC SELECT 1; SELECT 2; END",
        "CREATE FUNCTION pulse.x() RETURNS int\n  BEGIN ATOMIC SELECT CASE 1 WHEN 1 THEN 1\nEND; SELECT 2; \nEND",
        f"{_FENCE}  BEGIN\nBEGIN\nEND;\nEND$$", _FENCE.replace("\nBEGIN\n", " BEGIN END$$"),
        "UPDATE ONLY pulse.jobs SET a = 1", "DELETE FROM pulse.jobs WHERE ctid = '(0,1)'", "SELECT 1 /* ; */",
    )),
    ("ALTER TABLE pulse.jobs DROP COLUMN IF EXISTS a, DROP COLUMN IF EXISTS b", "concurrent"),
    ("SELECT FROM pulse.jobs TABLESAMPLE SYSTEM (1)", "batches"), ("DROP INDEX IF EXISTS pulse.x", "batches"),
    ("CREATE FUNCTION pulse.x() RETURNS int AS 'SELECT 1'", "batches"),
])  # fmt: skip
def test_what_is_refused(sql: str, kind: str) -> None:
    with pytest.raises(SchemaError, match=rf"step made-up of version 2: .* in a step that is {kind}: "):
        refuse_other_forms(_step(sql, kind))


def test_the_error_names_the_command() -> None:
    with pytest.raises(SchemaError, match=r"brief: DROP VIEW pulse\.x$"):
        refuse_other_forms(_step("SELECT 1;\nDROP VIEW\n  pulse.x"))
