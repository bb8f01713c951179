"""
Installs the schema, and decides which versions of it this pulse works with: its own, the one before and the one after.

Several processes may install at once: one does it, the others wait. A schema that is too old or too new, or of a
development version, is refused and left as it is. ``upgrade`` brings an older one to this version.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import asyncpg

from pulse.errors import SchemaError, UnavailableError
from pulse.store.admin.roles import standing
from pulse.store.connections.citus import is_distributed
from pulse.store.connections.session import begin_migration, schema_in
from pulse.store.statements import STATEMENTS, schema_sql

if TYPE_CHECKING:
    from asyncpg import Connection, Record

# Each version of the schema, and the release of pulse that brought it. A change of schema.sql needs another version,
# named .dev1 of the next release, and each change before that release the next number: databases with another one are
# refused (docs/adr/0047-one-schema-version.md).
RELEASES: Final = {1: "0.2.0"}
SCHEMA_VERSION: Final = max(RELEASES)
MIN_SERVER: Final = 150000
LOCK_TIMEOUT_S: Final = 30  # how long to wait for another migration
VERSIONS: Final = Path(__file__).parent / "upgrade" / "versions"  # the steps to each version but the first
_NOT_INSTALLED: Final = (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError)


def works_with(version: int) -> bool:
    """Whether this pulse works with that version of the schema: an upgrade leaves what the release before needs."""
    return SCHEMA_VERSION - 1 <= version <= SCHEMA_VERSION + 1 and version > 0


async def ensure_schema(connection: Connection[Record], *, install: bool = True, any_older: bool = False) -> int:
    """
    Install the schema where there is none; look whether this pulse works with the one that is there.

    Args:
        connection: Of a role with the right to do so.
        install: False: only look. A process that restarts may meet a half-done restore, and must not spoil it.
        any_older: A version that is too old is no error: it will be upgraded.

    Returns:
        The version that was found; 0 when there was none.

    Raises:
        UnavailableError: The schema is missing or too old, and *install* is False.
        SchemaError: The schema is too new or too old for this pulse, or a development version made it; the server is
            older than PostgreSQL 15; or the role lacks the right.
    """
    server = connection.get_server_version()
    if server.major * 10000 < MIN_SERVER:
        message = f"the database is PostgreSQL {server.major}; 15 to 18 are supported"
        raise SchemaError(message)
    found: int | None = None
    try:
        found = await installed_version(connection)
        if found == 0 and install:
            async with connection.transaction():
                await _install(connection)
    except asyncpg.InsufficientPrivilegeError as error:
        raise SchemaError(await why_refused(connection, found, str(error.args[0]))) from error
    if not install and not works_with(found):
        there = f"is at version {found}" if found else "is not there"
        message = (
            f"the schema {schema_in(connection)} {there}; this pulse waits for version {SCHEMA_VERSION}: "
            "it is being restored, or pulse migrate has to be run"
        )
        raise UnavailableError(message)
    if found and not works_with(found) and not any_older:
        message = (
            f"the schema {schema_in(connection)} is at version {found}; this pulse works with {SCHEMA_VERSION - 1} to "
            f"{SCHEMA_VERSION + 1}: stop the servers of older releases, and run pulse migrate"
        )
        raise SchemaError(message)
    return found


async def _install(connection: Connection[Record]) -> None:
    await begin_migration(connection, f"{LOCK_TIMEOUT_S}s")
    if await installed_version(connection) == 0:  # else another process did it meanwhile
        await _refuse_foreign(connection)
        await _refuse_distributed(connection)
        await connection.execute(schema_sql())


async def _refuse_foreign(connection: Connection[Record]) -> None:
    """Refuse a schema with tables of somebody else: roles and upgrades take all that is in a schema for pulse's."""
    row = await connection.fetchrow(STATEMENTS["schema_foreign"].sql)
    if row is not None:
        raise SchemaError(
            f"the schema {schema_in(connection)} is not empty (it has {row['name']}), and not pulse's: a queue needs a "
            "schema of its own, which PULSE_SCHEMA names"
        )


async def _refuse_distributed(connection: Connection[Record]) -> None:
    """Refuse to install a queue that Citus keeps: with one host in its DSN, pulse does not look for the rows."""
    if await is_distributed(connection):
        raise SchemaError(
            f"Citus keeps the queue {schema_in(connection)}, and its views are not here: PULSE_DSN has to name the "
            "coordinator and all nodes, of which pulse uses the one that has the rows"
        )


async def why_refused(connection: Connection[Record], found: int | None, reason: str) -> str:
    """One line: which right the role lacks, and what to do."""
    me, name = await standing(connection), schema_in(connection)
    if found is None:
        grant = "as pulse migrate --roles would" if me.prefix is None else f'GRANT {me.prefix}server TO "{me.role}"'
        return f'role "{me.role}" may not use the schema {name}: {reason}; let "{me.owner}" grant it: {grant}'
    if found == 0:
        return f'role "{me.role}" may not install the schema {name}: {reason}; it takes CREATE on the database'
    return (
        f"the schema {name} is at version {found}, this pulse needs {SCHEMA_VERSION}, and "
        f'role "{me.role}" may not upgrade it: {reason}; run pulse migrate as "{me.owner}" or a member of it'
    )


def is_development(version: int, release: str | None) -> bool:
    """Whether this version of the schema, which *release* brought (None: it does not say), was never released."""
    return release is None or release != RELEASES.get(version, release)


async def installed_version(connection: Connection[Record]) -> int:
    """
    The version that is installed; 0: none.

    Raises:
        SchemaError: The schema is too new for this pulse, or a development version made it.
    """
    try:
        async with connection.transaction():  # a savepoint: a missing table would spoil the transaction around it
            row = await connection.fetchrow(STATEMENTS["schema_version"].sql)
    except _NOT_INSTALLED:
        return 0
    if row is None:
        return 0
    found = int(row["version"])
    if is_development(found, row["release"]):
        name = schema_in(connection)
        message = (
            f"a development version of pulse, which was never released, made the schema {name} (as version {found}), "
            f"and nothing upgrades it: dump what you need of it, then DROP SCHEMA {name} CASCADE and run "
            "pulse migrate; where PostgreSQL is embedded, move STATE_DIR/postgres away instead"
        )
        raise SchemaError(message)
    if found > SCHEMA_VERSION + 1:
        message = (
            f"the schema {schema_in(connection)} is at version {found}; this pulse works with "
            f"{max(1, SCHEMA_VERSION - 1)} to {SCHEMA_VERSION + 1}: upgrade pulse"
        )
        raise SchemaError(message)
    return found
