"""Who owns what members of the owner's role, and superusers, make for a queue on Citus."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from pulse.store.admin.schema import SCHEMA_VERSION
from pulse.store.admin.upgrade.runner import upgrade
from pulse.store.connections import citus
from pulse.store.connections.citus import CITUS
from pulse.store.connections.pool import Target, connect
from pulse.store.connections.rendering import rendered
from pulse.store.statements import schema_sql
from tests.citus.cluster import Cluster, Node, cluster, queue, session, why_not
from tests.citus.made_up import ANEW, MADE_UP, MORE, NEXT, filled, works
from tests.support.admin.upgrade_kit import make_upgrades
from tests.support.store.helpers import Patch
from tests.support.systems.releases import STEPS, next_schema

pytestmark = [
    pytest.mark.process, pytest.mark.postgres, pytest.mark.rest, pytest.mark.patient,
    pytest.mark.skipif(why_not() is not None, reason=f"not packaged: Citus: {why_not()}"),
]  # fmt: skip


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with cluster() as made:
        yield made


@pytest.mark.parametrize("who", ["member", "postgres"])
async def test_all_belongs_to_the_owner_of_the_rows(
    nodes: Cluster, monkeypatch: Patch, tmp_path: Path, who: str
) -> None:
    """Also where a member of its role, or a superuser, connects first and upgrades, and where it did so with 0.2.0."""
    target = Target(nodes.dsn(), "tests", f"owned, {who}")
    other = Target(nodes.dsn().replace("pulse@", f"{who}@"), "tests", target.schema)
    async with queue(nodes, target.schema), session(nodes.coordinator) as admin:
        home, _ = await nodes.home(target.schema)
        if who == "member":
            await admin.execute("CREATE ROLE member LOGIN; GRANT pulse TO member")
    await _give(home, target.schema, who)
    for first in (other, target):
        await nodes.move(target.schema, "block_writes")
        (await connect(first, {})).terminate()
        await _is_owned(target)
    make_upgrades(monkeypatch, tmp_path, STEPS.read_text("utf-8") + MORE)
    assert await upgrade(other) == SCHEMA_VERSION
    await _is_owned(target)
    await nodes.move(target.schema, "block_writes")
    monkeypatch.setattr(citus, "schema_sql", lambda: next_schema(schema_sql(), MADE_UP) + ANEW)
    await _is_owned(target)


async def test_rights_that_outlive_a_move(nodes: Cluster) -> None:
    """Those that each node gives on whatever the owner makes there."""
    async with queue(nodes, "read"), session(nodes.coordinator) as admin:
        await admin.execute("CREATE ROLE reporting; GRANT USAGE ON SCHEMA read TO reporting")
    for node in nodes.nodes:
        async with session(node) as admin:
            await admin.execute(CITUS["stay_local"].sql)
            await admin.execute(_READS)
    await nodes.move("read", "block_writes")
    other = await connect(Target(nodes.dsn().replace("pulse@", "postgres@"), "tests", "read"), {})
    assert await other.fetchval("SELECT has_table_privilege('reporting', 'read.jobs', 'SELECT')")
    other.terminate()


_READS: Final = "ALTER DEFAULT PRIVILEGES FOR ROLE pulse IN SCHEMA read GRANT SELECT ON TABLES TO reporting"


async def test_an_upgrade_where_views_are_not_the_owners(nodes: Cluster, monkeypatch: Patch, tmp_path: Path) -> None:
    """In 0.2.0 they belong to the role that made them, which goes on to use them."""
    target = Target(nodes.dsn().replace("pulse@", "maker@"), "tests", "made by another")
    async with session(nodes.coordinator) as admin:
        await admin.execute("CREATE ROLE maker LOGIN; GRANT pulse TO maker")
    async with queue(nodes, target.schema):
        home, _ = await nodes.home(target.schema)
    await _give(home, target.schema, "maker")
    make_upgrades(monkeypatch, tmp_path, STEPS.read_text("utf-8") + MORE)
    assert await upgrade(target) == SCHEMA_VERSION
    connection = await connect(target, {}, statements=0)
    await filled(connection, 1)
    await works(connection)
    connection.terminate()


async def _give(home: Node, schema: str, who: str) -> None:
    """Let another role own views and functions, as 0.2.0 did."""
    async with session(home, statement_cache_size=0) as admin:
        await admin.execute(CITUS["stay_local"].sql)
        for row in await admin.fetch(rendered(_GIVE, schema), who):
            await admin.execute(row["statement"])


_OWN: Final = """
    FROM (
        SELECT 'FUNCTION' AS kind, oid::regprocedure::text AS name, proowner AS owner FROM pg_proc
        WHERE pronamespace = 'pulse'::regnamespace AND proname <> 'jittered'
        UNION ALL
        SELECT CASE relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'VIEW' END, oid::regclass::text, relowner FROM pg_class
        WHERE relnamespace = 'pulse'::regnamespace AND relkind IN ('S', 'v')
        UNION ALL
        SELECT 'TABLE', oid::regclass::text, relowner FROM pg_class
        WHERE relnamespace = 'pulse_rows'::regnamespace AND relkind = 'r'
    ) o
"""
_GIVE: Final = (
    f"SELECT format('ALTER %s %s OWNER TO %I', kind, name, $1::text) AS statement {_OWN} WHERE kind <> 'TABLE'"
)
_OWNERS: Final = f"SELECT kind, array_agg(DISTINCT owner::regrole::text) AS owners {_OWN} GROUP BY kind"


async def _is_owned(target: Target) -> None:
    """The server's role works with the queue."""
    connection = await connect(target, {}, statements=0)
    owners = {(row["kind"], *row["owners"]) for row in await connection.fetch(_OWNERS)}
    assert owners == {(kind, "pulse") for kind in ("FUNCTION", "SEQUENCE", "VIEW", "TABLE")}
    await filled(connection, 1)
    if await connection.fetchval("SELECT max(version) FROM pulse.schema_version") == NEXT:
        await works(connection)
    connection.terminate()
