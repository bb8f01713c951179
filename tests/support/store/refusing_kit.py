"""A database that refuses jobs as a test wants: by a user's trigger, with any SQLSTATE, for one job or for all."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Final

import asyncpg
import asyncpg.exceptions

from tests.support.store.helpers import Sql

UNKNOWN: Final = ("ZZ999", "0Q0Q0", "99XYZ")  # no PostgreSQL says that yet
_REFUSE: Final = """
    CREATE SCHEMA IF NOT EXISTS mine;
    CREATE TABLE IF NOT EXISTS mine.refused (job uuid, sqlstate text);
    TRUNCATE mine.refused;
    CREATE OR REPLACE FUNCTION mine.refuse() RETURNS trigger LANGUAGE plpgsql AS $body$
    DECLARE
        code text := (SELECT r.sqlstate FROM mine.refused r WHERE coalesce(r.job, new.id) = new.id LIMIT 1);
    BEGIN
        IF code IS NOT NULL AND new.status::text = ANY (string_to_array(TG_ARGV[0], ' ')) THEN
            RAISE EXCEPTION 'not with me' USING ERRCODE = code;
        END IF;
        RETURN new;
    END
    $body$;"""


def sqlstates() -> list[str]:
    known = sorted(
        {
            error.sqlstate
            for error in vars(asyncpg.exceptions).values()
            if isinstance(error, type) and issubclass(error, asyncpg.PostgresError) and error.sqlstate
        }
    )
    by_class = {state[:2]: state for state in known if state[:2] not in {"00", "01", "02"}}  # those are no errors
    # Those that pulse tells from others of their class.
    told_apart = {
        "57014", "57P01", "57P03", "55P03", "53300", "25006", "40001", "40P01", "42501", "54000", "54001", "23505",
    }  # fmt: skip
    return sorted({*by_class.values(), *told_apart, *UNKNOWN})


@contextlib.asynccontextmanager
async def refusing(connection: Sql, refused: Mapping[bytes, str] | str, *statuses: str) -> AsyncIterator[None]:
    """Meanwhile no job, or none of *refused* (job -> what is raised), may be written in one of *statuses*."""
    await connection.execute(_REFUSE)
    rows = [(None, refused)] if isinstance(refused, str) else [(job.hex(), state) for job, state in refused.items()]
    await connection.executemany("INSERT INTO mine.refused (job, sqlstate) VALUES ($1, $2)", rows)
    await connection.execute(
        "CREATE TRIGGER mine BEFORE INSERT OR UPDATE ON pulse.jobs FOR EACH ROW "
        f"EXECUTE FUNCTION mine.refuse('{' '.join(statuses)}')"
    )
    try:
        yield
    finally:
        await connection.execute("DROP TRIGGER IF EXISTS mine ON pulse.jobs")


async def spoil(connection: Sql, identity: bytes) -> None:
    """Make the name of this job invalid text, as a bad disk does: PostgreSQL returns what it has stored."""
    async with connection.transaction():
        await connection.execute("CREATE CAST (bytea AS text) WITHOUT FUNCTION")
        await connection.execute(
            r"UPDATE pulse.jobs SET name = 'n' || ('\xff'::bytea)::text WHERE id = $1", identity.hex()
        )
        await connection.execute("DROP CAST (bytea AS text)")
