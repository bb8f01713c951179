"""The database roles: what each may do, and nothing else; by the catalogue, and by trying."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import AsyncIterator
from typing import Final
from uuid import UUID

import asyncpg
import pytest

from pulse.app.transactions.fence import AttemptFence
from pulse.app.transactions.transaction import Transaction
from pulse.store.admin.doctor import QUESTIONS
from pulse.store.admin.roles import KINDS, grants_sql, make_roles
from pulse.store.statements import STATEMENTS
from tests.support.admin.roles_kit import CALLS, FUNCTIONS, MAY, SECRET, SEQUENCES, SETS, TABLES, Place, forget
from tests.support.checking.planning import has_plan
from tests.support.servers.postgres import Postgres
from tests.support.store.helpers import WORKER, Sql, forge, read

# ruff: noqa: E501 - a right is a line


_PRIVILEGES: Final = ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER")
_OF_COLUMNS: Final = frozenset({"SELECT", "INSERT", "UPDATE", "REFERENCES"})
_OBJECTS: Final = "SELECT relname FROM pg_class WHERE relnamespace = 'pulse'::regnamespace AND relkind::text = ANY ($1)"
_DENIED: Final = asyncpg.InsufficientPrivilegeError
_NOT_THE_SERVERS: Final = {"become_role", "schema_limits", "schema_lock", "roles_lock"}  # of an upgrade


@pytest.fixture(scope="module")
async def place(server: Postgres, module_database: str) -> AsyncIterator[Place]:
    prefix = f"t{os.getpid()}_{server.major}_"
    connection = await asyncpg.connect(module_database)
    made = Place(module_database, prefix, connection)
    try:
        assert (await make_roles(connection, prefix)).roles == tuple(prefix + kind for kind in KINDS)
        for kind in KINDS:
            await connection.execute(f"CREATE ROLE {made.login(kind)} LOGIN IN ROLE {prefix}{kind}")
        yield made
    finally:
        await forget(connection, prefix)
        await connection.close(timeout=5)


@pytest.fixture
async def submitter(place: Place) -> AsyncIterator[Sql]:
    session = await place.session("submit")
    yield session
    await session.close(timeout=5)


async def test_every_object_is_in_the_table(place: Place) -> None:
    async def found(kinds: str) -> set[str]:
        return {row[0] for row in await place.sql.fetch(_OBJECTS, list(kinds))}

    assert await found("rpvmf") == TABLES
    assert await found("S") == SEQUENCES
    functions = await place.sql.fetch("SELECT proname FROM pg_proc WHERE pronamespace = 'pulse'::regnamespace")
    assert sorted(row[0] for row in functions) == sorted(FUNCTIONS)


@pytest.mark.parametrize("kind", ["server", "submit", "read", "public"])
async def test_tables(place: Place, kind: str) -> None:
    role = kind if kind == "public" else place.prefix + kind
    privileges = [*_PRIVILEGES, *(["MAINTAIN"] if place.sql.get_server_version().major >= 17 else [])]
    columns = {
        name: {row[0] for row in await place.sql.fetch(
            "SELECT attname FROM pg_attribute WHERE attrelid = $1::text::regclass AND attnum > 0 AND NOT attisdropped", f"pulse.{name}")}
        for name in TABLES
    }  # fmt: skip
    for name, privilege in itertools.product(sorted(TABLES), privileges):
        wanted = MAY[kind].get(name, {}).get(privilege)
        if kind == "read" and privilege == "SELECT" and name in SECRET:
            wanted = frozenset(columns[name] - SECRET[name])
        whole = await place.sql.fetchval("SELECT has_table_privilege($1, $2, $3)", role, f"pulse.{name}", privilege)
        assert whole == (wanted == frozenset()), (name, privilege)
        if privilege in _OF_COLUMNS and not whole:
            each = "SELECT attname FROM unnest($3::text[]) AS attname WHERE has_column_privilege($1, $2, attname, $4)"
            got = await place.sql.fetch(each, role, f"pulse.{name}", list(columns[name]), privilege)
            assert {row[0] for row in got} == (wanted or set()), (name, privilege)


@pytest.mark.parametrize("kind", ["server", "submit", "read", "public"])
async def test_schema_sequences_and_functions(place: Place, kind: str) -> None:
    """Which roles may use the schema, which functions they may call, and that none may create anything there."""
    role = kind if kind == "public" else place.prefix + kind
    ask = place.sql.fetchval
    assert await ask("SELECT has_schema_privilege($1, 'pulse', 'USAGE')", role) == (kind != "public")
    assert not await ask("SELECT has_schema_privilege($1, 'pulse', 'CREATE')", role)
    for name, privilege in itertools.product(sorted(SEQUENCES), ("SELECT", "UPDATE", "USAGE")):
        may = await ask("SELECT has_sequence_privilege($1, $2, $3)", role, f"pulse.{name}", privilege)
        assert may == (name in SETS[kind] and privilege != "USAGE"), (name, privilege)
    for name in sorted(FUNCTIONS):
        may = await ask("SELECT has_function_privilege($1, $2::text::regproc, 'EXECUTE')", role, f"pulse.{name}")
        assert may == (name in CALLS[kind]), name


async def test_the_owner_owns_everything_and_nobody_else_is_mighty(place: Place) -> None:
    """Schema, tables, functions and types are the owner's; no role can log in, make roles or be one of the others."""
    others = """
        SELECT c.relname::text FROM pg_class c
        WHERE c.relnamespace = 'pulse'::regnamespace AND c.relowner <> $1::text::regrole
        UNION ALL SELECT p.proname FROM pg_proc p WHERE p.pronamespace = 'pulse'::regnamespace AND p.proowner <> $1::text::regrole
        UNION ALL SELECT t.typname FROM pg_type t WHERE t.typnamespace = 'pulse'::regnamespace AND t.typowner <> $1::text::regrole
        UNION ALL SELECT n.nspname FROM pg_namespace n WHERE n.nspname = 'pulse' AND n.nspowner <> $1::text::regrole"""
    assert await place.sql.fetch(others, f"{place.prefix}owner") == []
    for kind in KINDS:
        row = await place.sql.fetchrow(
            "SELECT rolcanlogin OR rolsuper OR rolcreaterole OR rolcreatedb OR rolreplication OR rolbypassrls,"
            "(SELECT count(*) FROM pg_auth_members a WHERE a.member = r.oid) FROM pg_roles r WHERE rolname = $1",
            place.prefix + kind,
        )
        assert tuple(row or ()) == (False, 0), kind


_NOBODY_MAY: Final = (
    "TRUNCATE pulse.jobs", "ALTER TABLE pulse.jobs ADD COLUMN mine int", "DROP TABLE pulse.audit", "CREATE TABLE pulse.mine ()",
    "CREATE FUNCTION pulse.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'", "DROP SCHEMA pulse CASCADE", "CREATE SCHEMA mine",
    "CREATE TRIGGER mine BEFORE INSERT ON pulse.jobs FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "UPDATE pulse.audit SET action = 'nothing'", "INSERT INTO pulse.schema_version (version) VALUES (99)",
    "ALTER FUNCTION pulse.note SECURITY INVOKER", "COPY pulse.jobs TO PROGRAM 'cat'", "CREATE ROLE mine", "SET ROLE {0}owner",
    "CREATE INDEX ON pulse.jobs (name)", "SET pulse.operator = 'x'; TRUNCATE pulse.audit",
)  # fmt: skip
_MAY_NOT: Final = {
    "owner": ("CREATE ROLE mine", "COPY pulse.jobs TO PROGRAM 'cat'"),
    "server": (*_NOBODY_MAY, "DELETE FROM pulse.hosts", "DELETE FROM pulse.dispatch_control", "INSERT INTO pulse.sweep_mark DEFAULT VALUES"),
    "submit": (
        *_NOBODY_MAY, "SELECT id FROM pulse.jobs", "SELECT args FROM pulse.jobs", "SELECT count(*) FROM pulse.jobs",
        "UPDATE pulse.jobs SET priority = 1", "DELETE FROM pulse.jobs", "INSERT INTO pulse.jobs (status) VALUES ('RUNNING')",
        "INSERT INTO pulse.jobs (name, topic, max_attempts, id) VALUES ('n', 't', 1, gen_random_uuid()) RETURNING id",
        "SELECT pulse.note('jobs.delete')", "SELECT pulse.set_topic('t', '{}')", "SELECT pulse.create_schedule('n', every_s => 1)",
        "SELECT * FROM pulse.attempts", "SELECT * FROM pulse.audit", "UPDATE pulse.dispatch_control SET paused = false",
    ),
    "read": (
        *_NOBODY_MAY, "SELECT args FROM pulse.jobs", "SELECT * FROM pulse.jobs", "SELECT result FROM pulse.jobs",
        "SELECT args FROM pulse.schedules", "SELECT checkpoint FROM pulse.jobs", "SELECT progress FROM pulse.attempts",
        "SELECT pulse.submit('n')", "DELETE FROM pulse.jobs", "SELECT id FROM pulse.jobs FOR UPDATE",
        "SELECT id FROM pulse.jobs WHERE args ->> 'path' = 'a'", "SELECT pulse.is_stored_unseen(id, name, topic, '{}') FROM pulse.jobs",
        "SELECT jobs FROM pulse.jobs", "SELECT count(*) FROM pg_statistic",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_tried_and_refused(place: Place, kind: str) -> None:
    session = await place.session(kind)
    for tried in _MAY_NOT[kind]:
        transaction = session.transaction()
        await transaction.start()
        with pytest.raises(_DENIED, match=r"permission denied|must be (owner|superuser)"):
            await session.execute(tried.replace("{0}", place.prefix))
        await transaction.rollback()
    await session.close(timeout=5)


async def test_reading(place: Place) -> None:
    """A reader sees the state of every job, and why, but not its args."""
    session = await place.session("read")
    assert await session.fetch("SELECT id, name, topic, status, attempts, last_error, locked_by FROM pulse.jobs") == []
    assert await session.fetchval("SELECT count(*) FROM pulse.jobs") == 0
    for table in sorted(TABLES - set(SECRET)):
        await session.execute(f"SELECT * FROM pulse.{table}")
    await session.close(timeout=5)


async def _submits(session: Sql) -> None:
    kept = json.dumps({"path": "a"})
    made = await session.fetchval("SELECT pulse.submit('n', $1)", kept)
    assert await session.fetchval("SELECT pulse.submit('n', $1, id => $2)", kept, made) == made
    many = json.dumps([{"name": "n", "args": {"path": "a"}, "id": str(made)}, {"name": "n", "expires_in_s": 60}])
    assert len(await session.fetch("SELECT pulse.submit_many($1)", many)) == 2
    keyed = "SELECT pulse.submit('n', $1, unique_key => 'k', group_key => 'g', on_conflict => 'replace')"
    assert await session.fetchval(keyed, kept) == await session.fetchval(keyed, "{}")
    await session.execute("SELECT pulse.submit('n', after => $1)", [made])
    for again in (
        ("SELECT pulse.submit('n', '{}', id => $1)", made),
        (
            "SELECT pulse.submit('m', $2, id => $1, topic => (SELECT h.topic FROM pulse.handlers h WHERE h.name = 'n'))",
            made,
            kept,
        ),
        ("SELECT pulse.submit('n', $2, id => $1, topic => 'other')", made, kept),
        ("SELECT pulse.submit_many($1)", many.replace('"a"', '"b"')),
    ):
        with pytest.raises(asyncpg.UniqueViolationError, match=f"job {made} exists already"):
            async with session.transaction():
                await session.execute(*again)


async def test_submitting(place: Place, submitter: Sql) -> None:
    """A submitter submits in its own transaction, and again with the same id; a rollback takes it back."""
    await place.sql.execute(
        f"CREATE TABLE public.orders (id int); GRANT INSERT ON public.orders TO {place.login('submit')};"
        "INSERT INTO pulse.handlers (name, topic, max_attempts) VALUES ('n', 'orders', 7);"
        "INSERT INTO pulse.topics (topic, timeout_s) VALUES ('orders', 9)"
    )
    await _submits(submitter)
    rows = await place.sql.fetch("SELECT topic, max_attempts, timeout_s FROM pulse.jobs")
    assert {tuple(row) for row in rows} == {("orders", 7, 9.0)}
    transaction = submitter.transaction()
    await transaction.start()
    await submitter.execute("INSERT INTO public.orders VALUES (1)")
    gone = await submitter.fetchval("SELECT pulse.submit('n')")
    await transaction.rollback()
    async with submitter.transaction():
        await submitter.execute("INSERT INTO public.orders VALUES (2)")
        kept = await submitter.fetchval("SELECT pulse.submit('n')")
    there = await place.sql.fetch("SELECT id FROM pulse.jobs WHERE id = ANY ($1::uuid[])", [gone, kept])
    assert [row[0] for row in there] == [kept]


async def _uses_all(session: Sql, job: bytes) -> None:
    await _submits(session)
    await session.execute("SELECT pulse.signal($1, 'approval')", job.hex())
    for call in ("check_attempt", "complete_attempt"):
        await session.execute(f"SELECT pulse.{call}($1, 1, $2)", job.hex(), WORKER)


async def test_completing_an_attempt(place: Place, submitter: Sql) -> None:
    """A handler with no more than that role, and the rights on its own table, completes its job beside its effect."""
    await place.sql.execute(
        f"CREATE TABLE public.effects (id int); GRANT INSERT ON public.effects TO {place.login('submit')}"
    )
    job = await forge(place.sql, "RUNNING")
    async with Transaction((UUID(bytes=job), 1), AttemptFence(WORKER), submitter, completes=True):
        await submitter.execute("INSERT INTO public.effects VALUES (1)")
    assert (await read(place.sql, job))["status"] == "COMPLETED"
    assert await place.sql.fetchval("SELECT count(*) FROM public.effects") == 1


_ALL_THAT_A_SERVER_ASKS: Final = {
    **{name: one.sql for name, one in STATEMENTS.items() if name not in _NOT_THE_SERVERS},
    **{name: one.sql for name, one in QUESTIONS.items()},
}
# What EXPLAIN does not see: what functions do inside, and generated columns.
_SCHEDULE: Final = "0199a1b2-c3d4-7e5f-8a0b-1c2d3e4f5a6b"
_CALLS: Final = (
    f"INSERT INTO pulse.schedules (id, kind, name, every_s, next_run_at) VALUES ('{_SCHEDULE}', 'every', 'n', 5, now())",
    """SELECT pulse.set_topic('t', '{"timeout_s": 5, "backoff": "fixed:5"}')""",
    """SELECT pulse.set_topic('t', '{"timeout_s": null, "backoff": null}')""",
    f"SELECT pulse.trigger_schedule('{_SCHEDULE}')",
    """SELECT pulse.set_limit('l', 'g', '{"concurrency": 5}'), pulse.unset_limit('l', NULL)""",
    "SELECT pulse.backoff_s('fixed:5', 1)",
    """SELECT pulse.set_topic('t', '{"publish": true}'), pulse.settle(ARRAY[pulse.uuid7()])""",
    f"SELECT pulse.delete_schedule('{_SCHEDULE}')",
    "SELECT pulse.note('jobs.delete')",
    *(
        f"SELECT pulse.insert_unique(pulse.uuid7(), 'n', 't', '{{}}', 0, now(), 1, NULL, NULL, NULL, NULL, 'k', NULL, '{how}')"
        for how in ("skip", "replace")
    ),
)


async def _lacks(session: Sql, role: str, taken: str | None) -> str | None:
    """The first request of a server that *role* is refused, in the open transaction; what was *taken* is tried first."""
    named = re.search(r" pulse\.(\w+) FROM", taken or "")
    asked = list(_ALL_THAT_A_SERVER_ASKS.values())
    likely = [sql for sql in asked if named is not None and re.search(rf"\b{named[1]}\b", sql)]
    await session.execute(f"SET LOCAL ROLE {role}")
    for sql in (*likely, *_CALLS, *(one for one in asked if one not in likely)):
        given = ", ".join(["NULL"] * max(map(int, re.findall(r"\$(\d+)", sql)), default=0))
        explained = f"EXPLAIN EXECUTE asked{'(' + given + ')' if given else ''}"
        is_planned = sql not in _CALLS and has_plan(sql)
        script = f"PREPARE asked AS {sql}; {explained}; DEALLOCATE asked" if is_planned else sql
        try:
            async with session.transaction():
                await session.execute(script)
        except _DENIED as error:
            if await session.fetchval("SELECT count(*) FROM pg_prepared_statements WHERE name = 'asked'"):
                await session.execute("DEALLOCATE asked")
            return str(error)
    return None


def _each_right(prefix: str) -> list[str]:
    """Every privilege of the server, as it is granted."""
    role = f"{prefix}server"
    of_tables = [
        f"{privilege}{' (' + ', '.join(columns) + ')' if columns else ''} ON pulse.{table} FROM {role}"
        for table, privileges in MAY["server"].items()
        for privilege, columns in privileges.items()
        if (table, privilege) != ("audit", "INSERT")  # refuses nothing, but a name in the note: tried below
    ]
    of_functions = [f"EXECUTE ON FUNCTION pulse.{name} FROM {role}" for name in sorted(CALLS["server"])]
    of_sequences = [f"{privilege} ON SEQUENCE pulse.work_notified FROM {role}" for privilege in ("SELECT", "UPDATE")]
    return [f"USAGE ON SCHEMA pulse FROM {role}", *of_tables, *of_sequences, *of_functions]


@pytest.mark.rest
async def test_a_server_has_what_it_needs_and_nothing_else(place: Place) -> None:
    """No request of a server is refused; without any one of its rights one is, and the doctor names that right."""
    role = f"{place.prefix}server"

    async def tried(taken: str | None) -> tuple[str | None, list[str]]:
        await place.sql.execute("SELECT setval('pulse.work_notified', 1)")  # else who has just notified does not again
        transaction = place.sql.transaction()
        await transaction.start()
        try:
            if taken is not None:
                await place.sql.execute(f"REVOKE {taken}")
            refused = await _lacks(place.sql, role, taken)
            told = await place.sql.fetch(QUESTIONS["rights"].sql)
            return refused, [row["how"] for row in told if not row["is_granted"] and row["how"] is not None]
        finally:
            await transaction.rollback()

    assert await tried(None) == (None, [])
    for right in _each_right(place.prefix):
        refused, told = await tried(right)
        assert refused is not None, f"nothing needs {right}"
        wanted = re.sub(r" \([^)]*\)", "", right).replace(f" FROM {role}", f" TO {role}")
        assert f"GRANT {wanted}" in told, right
        assert len(told) == 1 or right.startswith("USAGE"), told


async def test_who_asked_is_believed_from_the_server_alone(place: Place) -> None:
    """A server names the user for whose request it acts; a role that only writes through functions cannot."""
    said = json.dumps({"user": "ann", "uid": 7})
    await place.sql.execute(f"GRANT EXECUTE ON FUNCTION pulse.note TO {place.prefix}read")
    for kind in ("server", "read"):
        session = await place.session(kind)
        async with session.transaction():
            await session.execute(STATEMENTS["set_operator"].sql, said)
            await session.execute("SELECT pulse.note($1)", f"by.{kind}")
        await session.close(timeout=5)
    await place.sql.execute(grants_sql(place.prefix))  # takes it back
    rows = await place.sql.fetch("SELECT action, user_name FROM pulse.audit WHERE action LIKE 'by.%' ORDER BY id")
    assert [tuple(row) for row in rows] == [("by.server", "ann"), ("by.read", place.login("read"))]
    may = "SELECT has_function_privilege($1, 'pulse.note'::regproc, 'EXECUTE')"
    assert not await place.sql.fetchval(may, f"{place.prefix}read")


async def test_a_submit_needs_each_of_its_rights(place: Place) -> None:
    """Without any one of its rights, a submit of some kind is refused."""
    role = f"{place.prefix}submit"
    rights = [
        f"{privilege} ({column}) ON pulse.{table}"
        for table, privileges in MAY["submit"].items()
        for privilege, columns in privileges.items()
        for column in sorted(columns)
    ]
    rights += [f"EXECUTE ON FUNCTION pulse.{name}" for name in sorted(CALLS["submit"])]
    rights += [f"{privilege} ON SEQUENCE pulse.work_notified" for privilege in ("SELECT", "UPDATE")]
    for right in rights:
        transaction = place.sql.transaction()
        await transaction.start()
        job = await forge(place.sql, "RUNNING")
        await place.sql.execute(
            f"REVOKE {right} FROM {role}; SELECT setval('pulse.work_notified', 1); SET LOCAL ROLE {role}"
        )
        with pytest.raises(_DENIED, match="permission denied"):
            await _uses_all(place.sql, job)
        await transaction.rollback()
