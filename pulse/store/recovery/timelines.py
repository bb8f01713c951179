"""
Remembers PostgreSQL's newest timeline of each cluster, so that an outdated server is noticed.

A standby that is promoted begins a new timeline. An old primary that comes back without being fenced takes writes again
on the old one: what it stores will be lost, and it hands out jobs a second time. All processes of a host that use the
same database (its name, and one of the hosts) share what they have seen through the files that dispatchers keep in the
state directory. A promoted copy of the cluster (a drill, staging) has the same identifier and a newer timeline, but
another name or host: it says nothing about the original.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from pulse.common.dsn import may_be_same
from pulse.errors import UnavailableError
from pulse.store.statements import STATEMENTS

if TYPE_CHECKING:
    from asyncpg import Connection, Record

REMEMBERED: Final = "database-*.json"  # one for each database, in the state directory


class ServerTimeline(NamedTuple):
    """
    The cluster and timeline of a server.

    Attributes:
        system_id: Identifier of the cluster; a standby has its primary's.
        timeline: None: it is a standby, and takes no writes.
    """

    system_id: str
    timeline: int | None


class Timelines:
    """
    The newest timeline of each cluster that was seen.

    Args:
        database: The database in use, from ``database_of``; "": unknown, the files of other processes are not read.

    Attributes:
        database: As above.
        directory: Where other processes of this host keep theirs; None: nowhere.
        refused: Why a server was refused last, and when; monotonic clock.
        moved_s: When a server last refused a write: Citus may have moved the queue to another node; monotonic clock.
    """

    def __init__(self, database: str = "") -> None:
        self.database = database
        self._newest: dict[str, int] = {}
        self.directory: Path | None = None
        self.refused: tuple[str, float] | None = None
        self.moved_s = float("-inf")

    def moved(self) -> None:
        """A server refuses to write: where Citus keeps the queue, older connections lead to a node that it has left."""
        self.moved_s = time.monotonic()

    def learn(self, standing: ServerTimeline) -> None:
        """Record the timeline of a server that is used."""
        if standing.timeline is not None:
            self._newest[standing.system_id] = max(standing.timeline, self._newest.get(standing.system_id, 0))

    def is_old(self, standing: ServerTimeline) -> bool:
        """Whether a newer timeline of that cluster was seen."""
        return standing.timeline is not None and standing.timeline < self._newest.get(standing.system_id, 0)

    async def admit(self, connection: Connection[Record], shown: str, *, writable: bool = False) -> ServerTimeline:
        """
        Check the server that a new connection leads to.

        Args:
            connection: The connection.
            shown: The database's name in messages.
            writable: Refuse a standby.

        Raises:
            UnavailableError: The server is on an older timeline, or a standby.
        """
        row = await connection.fetchrow(STATEMENTS["server_standing"].sql)
        standing = ServerTimeline(*row) if row is not None else ServerTimeline("", None)
        if writable and standing.timeline is None:
            raise UnavailableError(f"the database {shown} is a standby: it takes no writes")
        for one in remembered(self.directory, self.database):
            self.learn(one)
        if self.is_old(standing):
            newest = self._newest[standing.system_id]
            message = (
                f"the database {shown} is on timeline {standing.timeline}, and this host has seen timeline {newest}"
                " of it: an old primary that came back, or an old copy; it is not used"
            )
            self.refused = message, time.monotonic()
            raise UnavailableError(message)
        self.learn(standing)
        return standing


def newest_of(directory: Path | None, database: str) -> dict[str, int]:
    """Cluster -> the newest timeline that is kept in *directory* of *database*."""
    newest: dict[str, int] = {}
    for system_id, timeline in remembered(directory, database):
        newest[system_id] = max(timeline or 0, newest.get(system_id, 0))
    return newest


def remembered(directory: Path | None, database: str) -> list[ServerTimeline]:
    """What dispatchers of this host have kept in *directory* about *database*; unreadable files are skipped."""
    found: list[ServerTimeline] = []
    for path in () if directory is None else directory.glob(REMEMBERED):
        try:
            kept = json.loads(path.read_bytes())
            if may_be_same(database, str(kept["database"])):
                found.append(ServerTimeline(str(kept["system_id"]), int(kept["timeline"])))
        except (OSError, ValueError, TypeError, KeyError):
            continue
    return found
