"""
Which timeline of PostgreSQL each cluster was seen on, to tell an older one from a newer.

A standby that is promoted begins a new timeline. An old primary that comes back, and takes writes again because nobody
fenced it, stays on the old one: what it is given is lost, and what it hands out is handed out twice. All processes of a
host that use the same database (its name, and one of the hosts) learn from each other through the files that
dispatchers keep in the state directory. A promoted copy of the cluster (a drill, staging) has its identifier and a
newer timeline: what is seen there says nothing of the original.
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
    Where a server stands.

    Attributes:
        system_id: The cluster's; a standby has its primary's.
        timeline: None: it is a standby, and takes no writes.
    """

    system_id: str
    timeline: int | None


class Timelines:
    """
    The newest timeline of each cluster that was seen.

    Args:
        database: Which one is used, as ``database_of`` has it; "": not known, nothing is learned from others.

    Attributes:
        database: As above.
        directory: Where other processes of this host tell theirs; None: nowhere.
        refused: Why a server was refused last, and when; monotonic clock.
    """

    def __init__(self, database: str = "") -> None:
        self.database = database
        self._newest: dict[str, int] = {}
        self.directory: Path | None = None
        self.refused: tuple[str, float] | None = None

    def learn(self, standing: ServerTimeline) -> None:
        """A server that is used has that timeline."""
        if standing.timeline is not None:
            self._newest[standing.system_id] = max(standing.timeline, self._newest.get(standing.system_id, 0))

    def is_old(self, standing: ServerTimeline) -> bool:
        """Whether a newer timeline of that cluster was seen."""
        return standing.timeline is not None and standing.timeline < self._newest.get(standing.system_id, 0)

    async def admit(self, connection: Connection[Record], shown: str, *, writable: bool = False) -> ServerTimeline:
        """
        Look where a new connection leads to.

        Args:
            connection: The connection.
            shown: What the database is called in a message.
            writable: A standby will not do.

        Raises:
            UnavailableError: To a server on an older timeline, or to a standby.
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
    """What dispatchers of this host have kept in *directory* of *database*; what cannot be read says nothing."""
    found: list[ServerTimeline] = []
    for path in () if directory is None else directory.glob(REMEMBERED):
        try:
            kept = json.loads(path.read_bytes())
            if may_be_same(database, str(kept["database"])):
                found.append(ServerTimeline(str(kept["system_id"]), int(kept["timeline"])))
        except (OSError, ValueError, TypeError, KeyError):
            continue
    return found
