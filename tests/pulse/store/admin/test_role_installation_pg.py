"""How the database roles are made: with which rights, and with earlier roles and later changes."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import asyncpg
import pytest

from pulse.errors import ConfigError, SchemaError
from pulse.store.admin import roles
from pulse.store.admin.roles import checked_prefix, make_roles, names_of, roles_script, standing
from pulse.store.admin.schema import SCHEMA_VERSION, ensure_schema
from tests.support.admin.roles_kit import Place, forget
from tests.support.admin.upgrade_kit import make_upgrades, upgraded
from tests.support.servers.postgres import Postgres
from tests.support.store.helpers import Patch, Sql

_numbers = itertools.count()
STEP: Final = """
    CREATE TABLE IF NOT EXISTS pulse.later (id int);
    CREATE FUNCTION pulse.later_too() RETURNS int LANGUAGE sql AS 'SELECT 1';
"""
# Where the search_path leads to it, it fits better than PostgreSQL's own.
_TRAP: Final = """
    CREATE FUNCTION public.has_schema_privilege(text, text, text) RETURNS boolean LANGUAGE plpgsql
    AS $$ BEGIN RAISE 'caught'; END $$;
"""


@pytest.fixture
async def place(server: Postgres, empty_dsn: str) -> AsyncIterator[Place]:
    prefix = f"m{os.getpid()}_{server.major}_{next(_numbers)}_"
    connection = await asyncpg.connect(empty_dsn)
    try:
        yield Place(empty_dsn, prefix, connection)
    finally:
        await forget(connection, prefix)
        await connection.close(timeout=5)


async def _login(place: Place, name: str, *options: str, create: bool = True) -> Sql:
    role = place.prefix + name
    await place.sql.execute(f"CREATE ROLE {role} LOGIN {' '.join(options)}")
    if create:
        database = await place.sql.fetchval("SELECT quote_ident(current_database())")
        await place.sql.execute(f"GRANT CREATE ON DATABASE {database} TO {role}")
    return await asyncpg.connect(place.dsn_of(role))


async def _installed_by(place: Place, name: str, *options: str) -> Sql:
    session = await _login(place, name, *options)
    assert await ensure_schema(session) == 0
    return session


async def test_one_who_may_make_roles(place: Place) -> None:
    """An ordinary role with CREATEROLE installs, makes the roles, twice, and may upgrade as a member of the owner."""
    mine = await _installed_by(place, "app", "CREATEROLE")
    made = await make_roles(mine, place.prefix)
    assert made.roles == tuple(names_of(place.prefix))
    assert made.members == (f"{place.prefix}app",)
    assert (await make_roles(mine, place.prefix)).roles == ()
    me = await standing(mine)
    assert (me.owner, me.prefix, me.is_super) == (f"{place.prefix}owner", place.prefix, False)
    assert await mine.fetchval("SELECT pulse.submit('n')")
    await mine.close(timeout=5)


async def test_who_owned_it_goes_on(place: Place) -> None:
    """A super-user makes the roles of a schema that another role owns, whose programs go on."""
    former = await _installed_by(place, "app")
    await former.execute("CREATE VIEW pulse.mine AS SELECT 1 AS one; CREATE TYPE pulse.mood AS ENUM ('good')")
    assert (await make_roles(place.sql, place.prefix)).members == (f"{place.prefix}app",)
    assert await former.fetchval("SELECT pulse.submit('n')")
    assert await ensure_schema(former) == SCHEMA_VERSION
    await former.execute("UPDATE pulse.jobs SET priority = 1; TRUNCATE pulse.jobs; SELECT * FROM pulse.mine")
    owners = await place.sql.fetch(
        "SELECT DISTINCT relowner::regrole::text FROM pg_class WHERE relnamespace = 'pulse'::regnamespace"
    )
    assert [row[0] for row in owners] == [f"{place.prefix}owner"]
    await former.close(timeout=5)


async def test_one_who_may_not_make_roles(place: Place) -> None:
    """The error names the missing right, and the SQL for a superuser; nothing was done. That SQL does it."""
    mine = await _installed_by(place, "app")
    said = (
        f'role "{place.prefix}app" may not make roles, since it lacks CREATEROLE; '
        "let a superuser run what this prints: "
        f"pulse migrate --roles --roles-prefix {place.prefix} --print"
    )
    with pytest.raises(SchemaError, match=f"^{re.escape(said)}$"):
        await make_roles(mine, place.prefix)
    assert (await standing(mine)).prefix is None
    guest = f"{place.prefix}guest"
    await place.sql.execute(_TRAP + f"CREATE ROLE {guest}; GRANT SELECT ON pulse.jobs TO {guest}")
    await place.sql.execute(roles_script(place.prefix))
    assert (await make_roles(mine, place.prefix)).members == (f"{place.prefix}app",)
    await mine.close(timeout=5)


async def test_one_who_does_not_own_the_schema(place: Place) -> None:
    """May make roles, but not give them another's objects: PostgreSQL's own error, and nothing is left behind."""
    owner = await _installed_by(place, "app")
    mine = await _login(place, "other", "CREATEROLE")
    with pytest.raises(SchemaError, match=rf'role "{place.prefix}other" may not do that: .*; let a superuser run'):
        await make_roles(mine, place.prefix)
    found = await place.sql.fetchval("SELECT count(*) FROM pg_roles WHERE rolname = $1", f"{place.prefix}owner")
    assert found == 0
    for session in (owner, mine):
        await session.close(timeout=5)


async def test_what_is_refused(place: Place) -> None:
    """No schema, a role of that name that may do everything, another prefix than before."""
    with pytest.raises(SchemaError, match=r"^the schema pulse is not there: pulse migrate$"):
        await make_roles(place.sql, place.prefix)
    await ensure_schema(place.sql)
    await place.sql.execute(f"CREATE ROLE {place.prefix}submit CREATEDB")
    with pytest.raises(SchemaError, match=rf'^role "{place.prefix}submit" is there already, and may do more than'):
        await make_roles(place.sql, place.prefix)
    await place.sql.execute(f"ALTER ROLE {place.prefix}submit NOCREATEDB")
    await make_roles(place.sql, place.prefix)
    with pytest.raises(
        SchemaError, match=rf"^the schema has roles already, and their prefix is '{place.prefix}', not 'x_'$"
    ):
        await make_roles(place.sql, "x_")


@pytest.mark.parametrize("prefix", ["", "Pulse_", "1_", "pg_pulse_", "a-b", 'a"', "x" * 51, "a b"])
def test_prefixes_that_are_refused(prefix: str) -> None:
    with pytest.raises(ConfigError, match="1 to 50 of a-z, 0-9 and _ are allowed"):
        checked_prefix(prefix)


async def test_whom_somebody_let_in_by_name_stays(place: Place) -> None:
    """Roles with rights of their own submit as before, and get new rights; others lose theirs."""
    await ensure_schema(place.sql)
    names = [place.prefix + name for name in ("shop", "till", "guest")]
    for name in names:
        await place.sql.execute(f"CREATE ROLE {name}")
    await place.sql.execute(
        f"GRANT USAGE ON SCHEMA pulse TO {names[0]};"
        f"GRANT SELECT ON pulse.handlers, pulse.topics TO {names[0]}, {names[1]};"
        f"GRANT SELECT, INSERT ON pulse.jobs TO {names[0]}, {names[1]}; GRANT USAGE ON SCHEMA pulse TO PUBLIC"
    )
    for _ in range(2):
        await make_roles(place.sql, place.prefix)
        for name in names[:2]:
            await place.sql.execute(f"SET ROLE {name}")
            made = await place.sql.fetchval("SELECT pulse.submit('n')")
            assert await place.sql.fetchval("SELECT pulse.submit('n', id => $1)", made) == made
        await place.sql.execute(f"SET ROLE {names[2]}")
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="permission denied for schema pulse"):
            await place.sql.execute("SELECT pulse.submit('n')")
        await place.sql.execute("RESET ROLE")


@pytest.mark.parametrize("by", ["superuser", "member"])
async def test_what_comes_later(place: Place, by: str, monkeypatch: Patch, tmp_path: Path) -> None:
    """New objects are the owner's after an upgrade by any role, nobody else may use them, and grants come back."""
    await ensure_schema(place.sql)
    await make_roles(place.sql, place.prefix)
    await place.sql.execute(f"CREATE ROLE {place.prefix}op LOGIN IN ROLE {place.prefix}owner")
    session = await asyncpg.connect(place.dsn if by == "superuser" else place.dsn_of(f"{place.prefix}op"))
    newest = make_upgrades(monkeypatch, tmp_path, STEP)
    given = roles._PARTS["grants"] + '\nGRANT SELECT ON pulse.later TO :"server";\n'
    monkeypatch.setitem(roles._PARTS, "grants", given)
    server = await _login(place, "server_login", "IN ROLE", f"{place.prefix}server", create=False)
    with pytest.raises(SchemaError) as refused:
        await upgraded(server)
    assert refused.value.message.startswith(
        f"the schema pulse is at version {SCHEMA_VERSION}, this pulse needs {newest}, and role "
        f'"{place.prefix}server_login" may not upgrade it: permission denied to set role'
    )
    assert refused.value.message.endswith(f'; run pulse migrate as "{place.prefix}owner" or a member of it')
    assert await ensure_schema(server) == await upgraded(session) == SCHEMA_VERSION
    for what, catalog in (("later", "pg_class"), ("later_too", "pg_proc")):
        column = catalog.removeprefix("pg_")[:3].replace("cla", "rel")
        owner = await place.sql.fetchval(
            f"SELECT {column}owner::regrole::text FROM {catalog} WHERE {column}name = $1", what
        )
        assert owner == f"{place.prefix}owner"
    assert await server.fetch("SELECT * FROM pulse.later") == []
    for refused_now in ("SELECT pulse.later_too()", "DELETE FROM pulse.later"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match=r"permission denied for (table|function) later"):
            await server.execute(refused_now)
    for one in (session, server):
        await one.close(timeout=5)


async def test_who_may_not_even_look(place: Place) -> None:
    """A role that may not use the schema, or not install it, gets an error that says what to do; no traceback."""
    stranger = await _login(place, "stranger", create=False)
    with pytest.raises(SchemaError, match=r"may not install the schema pulse: .*; it takes CREATE on the database$"):
        await ensure_schema(stranger)
    await ensure_schema(place.sql)
    with pytest.raises(
        SchemaError, match=r"may not use the schema pulse: .* let \"\w+\" grant it: as pulse migrate --roles"
    ):
        await ensure_schema(stranger)
    await make_roles(place.sql, place.prefix)
    with pytest.raises(SchemaError) as told:
        await ensure_schema(stranger)
    assert told.value.message.endswith(f': GRANT {place.prefix}server TO "{place.prefix}stranger"')
    await stranger.close(timeout=5)


async def test_who_may_read_reads_himself(place: Place) -> None:
    """Without roles a reader compares under its own rights; nobody else can guess at a job's args."""
    await ensure_schema(place.sql)
    name = f"{place.prefix}shop"
    await place.sql.execute(
        f"CREATE ROLE {name}; GRANT USAGE ON SCHEMA pulse TO {name}; GRANT SELECT, INSERT ON pulse.jobs TO {name};"
        f"GRANT SELECT ON pulse.handlers, pulse.topics TO {name}"
    )
    made = await place.sql.fetchval("SELECT pulse.submit('n')")
    await place.sql.execute(f"SET ROLE {name}")
    assert await place.sql.fetchval("SELECT pulse.submit('n', id => $1)", made) == made
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="permission denied for function is_stored_unseen"):
        await place.sql.execute(f"SELECT pulse.is_stored_unseen('{made}', 'n', 'default', '{{}}')")
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="permission denied for function unique_holder"):
        await place.sql.execute("SELECT pulse.unique_holder(NULL, 'n', 't', '{}', now(), NULL, 'k', 'replace')")
    await place.sql.execute("RESET ROLE")
