"""The steps of an upgrade, where the catalogue of Citus says that it keeps the queue; tests/citus has a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pulse.errors import UnavailableError
from pulse.store.admin.schema import SCHEMA_VERSION
from pulse.store.admin.upgrade.citus_steps import CitusSteps, steps_on_citus
from pulse.store.admin.upgrade.runner import Upgrade
from pulse.store.admin.upgrade.steps import parse_steps
from pulse.store.connections.pool import Target, connect
from tests.support.admin.citus_catalogue import with_queue
from tests.support.admin.upgrade_kit import make_upgrades, step
from tests.support.store.helpers import Patch, Sql

if TYPE_CHECKING:
    from pulse.store.connections.session import Session

pytestmark = pytest.mark.postgres


@dataclass(frozen=True, slots=True)
class Node:
    """A session of the node that has the rows and their views; and the way to the coordinator."""

    home: Session
    target: Target

    async def take(self, steps: CitusSteps, sql: str) -> None:
        (made,) = parse_steps(2, step("made-up", sql))
        await steps.take(made)


@pytest.fixture
async def node(empty_dsn: str) -> AsyncIterator[Node]:
    target = await with_queue(empty_dsn)
    made = Node(await connect(target, {}), target)
    yield made
    made.home.terminate()


async def test_tables_are_changed_through_the_coordinator(node: Node, monkeypatch: Patch, tmp_path: Path) -> None:
    add = "ALTER TABLE pulse.jobs ADD COLUMN IF NOT EXISTS region text"
    make_upgrades(monkeypatch, tmp_path, step("add", add, table="pulse.jobs", lock="ACCESS EXCLUSIVE"))
    assert await Upgrade(node.home, lambda _: None, target=node.target).run() == SCHEMA_VERSION
    assert await node.home.fetch("SELECT region FROM pulse_rows.jobs") == []


async def test_what_is_no_table_is_for_the_node_that_has_the_rows(node: Node) -> None:
    """A type is made once: a move begins an upgrade anew."""
    async with steps_on_citus(node.home, node.target) as steps:
        assert steps is not None
        for _ in range(2):
            await node.take(steps, "CREATE DOMAIN pulse.colour AS text")
            await node.take(steps, "CREATE OR REPLACE FUNCTION pulse.one() RETURNS int RETURN 1")
    assert await node.home.fetchval("SELECT pulse.one()") == 1


@pytest.mark.parametrize("change", [
    "UPDATE pg_dist_local_group SET groupid = 1", "DELETE FROM pg_dist_placement", "DROP VIEW pulse.jobs CASCADE",
])  # fmt: skip
async def test_rows_that_have_moved_end_the_upgrade(node: Node, change: str) -> None:
    async with steps_on_citus(node.home, node.target) as steps:
        assert steps is not None
        await node.home.execute(change)
        with pytest.raises(UnavailableError, match="Citus has moved the queue pulse to another node"):
            await node.take(steps, "CREATE DOMAIN pulse.colour AS text")


async def test_a_queue_that_citus_does_not_keep(connection: Sql, dsn: str) -> None:
    async with steps_on_citus(connection, Target(dsn, "tests")) as steps:
        assert steps is None
