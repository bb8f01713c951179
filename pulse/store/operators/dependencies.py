"""Dependencies between jobs: who waits for whom, and what no statement has settled that ended a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from pulse.store.arguments import uuids
from pulse.store.statements import STATEMENTS

if TYPE_CHECKING:
    from pulse.store.connections.pool import Pool

FIRST: Final = bytes(16), bytes(16)
_SHOWN: Final = ("id", "name", "status", "on_failure", "is_over")


class Settled(NamedTuple):
    """A step through all dependencies: where the next one begins, and how many jobs nobody had settled."""

    after: tuple[bytes, bytes]
    settled: int


class DependencyStore:
    """
    The table of dependencies.

    Args:
        pool: Its connections.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def settle_forgotten(self, after: tuple[bytes, bytes], limit: int) -> Settled:
        """Settle what has ended of the next *limit* dependencies behind *after*; behind the last one, begin again."""
        async with self._pool.connection() as connection, connection.transaction():
            [row] = await connection.fetch(STATEMENTS["settle_forgotten"].sql, *uuids(after), limit)
        is_end = row["walked"] < limit
        return Settled(FIRST if is_end else (row["parent"], row["child"]), row["settled"])

    async def graph(self, identity: bytes, nodes: int, edges: int) -> tuple[list[dict[str, object]], list[list[int]]]:
        """Up to *nodes* jobs of the graph that a job belongs to, and up to *edges* pairs of them, parent and child."""
        async with self._pool.connection() as connection:
            [row] = await connection.fetch(STATEMENTS["job_graph"].sql, *uuids([identity]), nodes, edges)
        found = zip(row["ids"], row["names"], row["statuses"], strict=True)
        return [{"id": one, "name": name, "status": status} for one, name, status in found], row["edges"]

    async def of_job(self, identity: bytes, limit: int) -> dict[str, object]:
        """Up to *limit* jobs that one waits for, and as many that wait for it, as ``jobs.get`` shows them."""
        async with self._pool.connection() as connection:
            rows = await connection.fetch(STATEMENTS["related_jobs"].sql, *uuids([identity]), limit)
        found: dict[str, object] = {}
        for name, is_parent in (("parents", True), ("children", False)):
            some = [dict(row) for row in rows if row["is_parent"] is is_parent]
            found |= {name: [{key: row[key] for key in _SHOWN} for row in some]}
            found |= {f"{name}_total": some[0]["total"] if some else 0}
        return found
