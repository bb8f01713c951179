"""What pulse does about what the catalogue of Citus says; tests/citus has a cluster."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from pulse.errors import ConfigError, SchemaError, UnavailableError
from pulse.store.admin.checks import TABLES, Examination
from pulse.store.admin.doctor import FindingStore
from pulse.store.admin.schema import ensure_schema
from pulse.store.connections.citus import KEPT_BY_CITUS, stay_with_rows
from pulse.store.connections.citus_installation import coordinator_of, distribute
from pulse.store.connections.pool import Pool, Target, connect
from tests.support.admin.citus_catalogue import with_catalogue, with_queue

if TYPE_CHECKING:
    from pulse.store.connections.session import Session

pytestmark = pytest.mark.postgres


@pytest.fixture
async def node(empty_dsn: str) -> AsyncIterator[Session]:
    """A session of the node that has the rows of a queue, before it has their views."""
    await with_queue(empty_dsn)
    made = await connect(Target(empty_dsn, "tests"), {})
    yield made
    made.terminate()


async def test_rows_that_are_here_get_their_views(empty_dsn: str) -> None:
    target = await with_queue(empty_dsn)
    for jobs in (1, 2):
        made = await connect(target, {})
        await made.execute("SELECT pulse.submit('a')")
        assert await made.fetchval("SELECT count(*) FROM pulse.jobs") == jobs
        assert made.home_since_s is not None
        assert made.home_since_s <= time.monotonic()
        made.terminate()


@pytest.mark.parametrize(("change", "told"), [
    ("UPDATE pg_dist_local_group SET groupid = 1", "is not on there: Citus has it on here:5432"),
    ("DELETE FROM pg_dist_placement", "is not on there: Citus has it on no node"),
    ("UPDATE pulse_rows.schema_version SET version = version + 1", r"the rows are of version \d+, this pulse .* makes"),
    ("DELETE FROM pulse_rows.schema_version", "the rows are of no version, this pulse .* makes"),
], ids=["elsewhere", "nowhere", "of another version", "of no version"])  # fmt: skip
async def test_rows_that_cannot_be_used_here(node: Session, change: str, told: str) -> None:
    await node.execute(change)
    with pytest.raises(UnavailableError, match=told):
        await stay_with_rows(node, "there")


async def test_who_may_not_use_the_rows(node: Session) -> None:
    await node.execute("SET ROLE pg_monitor")
    with pytest.raises(ConfigError, match=r'role "pg_monitor" may not use the rows of the queue pulse on there'):
        await stay_with_rows(node, "there")


async def test_nothing_is_installed_beside_the_rows(node: Session) -> None:
    with pytest.raises(SchemaError, match="Citus keeps the queue pulse, and its views are not here"):
        await ensure_schema(node)


async def test_what_is_not_asked_where_citus_keeps_the_tables(node: Session, empty_dsn: str) -> None:
    """Names of constraints and indexes are others there."""
    await stay_with_rows(node, "there")
    (guards,) = [one for one in TABLES if one.name == "guards"]
    examination = Examination(Target(empty_dsn, "tests"), audit=False, grace_s=60, timeout_s=5, examples=1)
    result = await examination.examine(node, guards)
    assert (result.state, result.reason) == ("skipped", KEPT_BY_CITUS)
    pool = Pool(Target(empty_dsn, "tests"), size=1)
    assert await FindingStore(pool).ask("indexes") is None
    pool.close()


async def test_a_queue_is_made_once(empty_dsn: str) -> None:
    target = await with_catalogue(empty_dsn)
    assert await distribute(target)
    assert not await distribute(target)


async def test_a_queue_of_this_node_alone_is_not_distributed(empty_dsn: str) -> None:
    target = await with_catalogue(empty_dsn)
    made = await connect(Target(empty_dsn, "tests"), {})
    await ensure_schema(made)
    made.terminate()
    with pytest.raises(ConfigError, match="the schema pulse is a queue of this node alone"):
        await distribute(target)


async def test_the_coordinator_is_one_of_several(node: Session, empty_dsn: str) -> None:
    with pytest.raises(ConfigError, match="names one host"):
        await coordinator_of(Target(empty_dsn, "tests"), {})


async def test_a_node_that_the_queue_has_left(dsn: str) -> None:
    """Connections that were led to it before that was noticed are not used again."""
    pool = Pool(Target(dsn, "tests"), size=1)
    pids = list[int]()
    for _ in range(2):
        async with pool.connection() as used:
            used.found_home(time.monotonic())  # type: ignore[attr-defined]
            pids.append(used.get_server_pid())
    pool._timelines.moved()
    async with pool.connection() as used:
        pids.append(used.get_server_pid())
    pool.close()
    assert pids[0] == pids[1] != pids[2]
