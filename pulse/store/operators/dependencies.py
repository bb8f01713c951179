"""Dependencies between jobs: which job waits for which, and those that nobody has settled when a job ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, cast
from uuid import UUID

from pulse.store.arguments import uuids
from pulse.store.reading.damaged_jobs import legible_jobs
from pulse.store.reading.jobs import no_cursor, wire_row
from pulse.store.reading.page_size import PageRows, Row
from pulse.store.statements import STATEMENTS

if TYPE_CHECKING:
    from pulse.store.connections.pool import Pool

PIECE: Final = 20  # jobs that are read at once: more than a page, if their results are large, would be read in vain
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

    async def parents(self, identity: bytes, limit: int, after: str | None) -> tuple[list[Row], str | None]:
        """
        A page of the jobs that one waits for, or has waited for, with all columns, in the order of their ids.

        Args:
            identity: Which.
            limit: Most jobs of the page; it ends early if their texts are long.
            after: ``next`` of the page before.

        Returns:
            The jobs, and ``next``: None on the last page.

        Raises:
            BadRequestError: *after* is no such text.
        """
        page = PageRows()
        async with self._pool.connection() as connection:
            found = await connection.fetch(
                STATEMENTS["parents_of_job"].sql, *uuids([identity, _cursor(after)]), limit + 1
            )
            ids = [row["id"] for row in found[:limit]]
            for at in range(0, len(ids), PIECE):
                piece = ids[at : at + PIECE]
                rows = {row["id"]: row for row in await legible_jobs(connection, piece, "jobs_by_ids")}
                page.take(wire_row(rows[one.bytes]) for one in piece if one.bytes in rows)
                if page.is_full:
                    return page.rows, UUID(bytes=cast("bytes", page.rows[-1]["id"])).hex
        return page.rows, ids[-1].hex if len(found) > limit else None


def _cursor(after: str | None) -> bytes:
    if after is None:
        return bytes(16)
    try:
        return UUID(after).bytes
    except ValueError:
        raise no_cursor(after) from None
