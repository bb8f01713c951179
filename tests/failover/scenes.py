"""What happens to the cluster, one scene after the other, while a system works on it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from tests.chaos.load.load import Load, Shape
from tests.chaos.site import SETTINGS, Site
from tests.failover.cluster import Cluster, Node, cluster
from tests.support.systems.system_kit import place
from tests.support.waiting import until

RATE: Final = 30.0
POOL: Final = ("--processes", "2", "--concurrency", "8")
SETTLE_S: Final = 30.0
AWAY_S: Final = 6.0  # two leases


@dataclass(frozen=True, slots=True)
class Stage:
    cluster: Cluster
    site: Site
    load: Load

    def promoted(self, after: Node) -> float:
        """When another node takes writes, monotonic."""
        until(lambda: any(node is not after and node.is_primary() for node in self.cluster.nodes), "a promotion", SETTLE_S)
        return time.monotonic()

    def more(self, count: int = 30) -> None:
        target = len(self.site.lines("end")) + count
        until(lambda: len(self.site.lines("end")) >= target, f"{count} jobs end", SETTLE_S)


def kill_node(stage: Stage) -> float:
    """SIGKILL of the primary and of its Patroni: the machine is gone, and comes back as a standby."""
    primary = stage.cluster.primary()
    primary.kill()
    since = stage.promoted(primary)
    stage.more()
    primary.start()
    return since


def kill_postgres(stage: Stage) -> float:
    """SIGKILL of the postmaster: Patroni starts it again, or hands over."""
    primary = stage.cluster.primary()
    primary.kill_postgres()
    until(lambda: any(node.is_primary() and node.postmaster() for node in stage.cluster.nodes), "a primary", SETTLE_S)
    return time.monotonic()


def switchover(stage: Stage) -> float:
    """An operator's order: the primary hands over, and follows the new one."""
    primary = stage.cluster.primary()
    primary.switch(stage.cluster.synchronous()[0])
    return stage.promoted(primary)


def lose_quorum(stage: Stage) -> float:
    """Two of three etcd are gone: no node may be the primary, and the last one runs on, read-only."""
    primary = stage.cluster.primary()
    for etcd in stage.cluster.etcds[1:]:
        etcd.end(signal.SIGKILL)
    until(lambda: primary.said().get("role") == "replica", "the primary is read-only", SETTLE_S)
    over_s = time.monotonic() + AWAY_S
    until(lambda: time.monotonic() > over_s, "two leases", SETTLE_S)
    for etcd in stage.cluster.etcds:
        etcd.start()
    until(lambda: any(node.is_primary() for node in stage.cluster.nodes), "a primary", SETTLE_S)
    return time.monotonic()


def freeze_node(stage: Stage) -> float:
    """SIGSTOP of all of the primary: it takes connections, and never answers. Then it goes on, as if nothing were."""
    primary = stage.cluster.primary()
    with primary.frozen():
        since = stage.promoted(primary)
        stage.more()
    return since


SCENES: Final[Mapping[str, Callable[[Stage], float]]] = {
    "kill-node": kill_node,
    "kill-postgres": kill_postgres,
    "switchover": switchover,
    "lose-quorum": lose_quorum,
    "freeze-node": freeze_node,
}
