"""What happens to the cluster, one scene after the other, while a system works on it."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tests.chaos.load.load import Load
from tests.chaos.site import Site
from tests.failover.cluster import QUICK, Cluster, Node
from tests.failover.gap import Gap
from tests.support.waiting import until

SETTLE_S: Final = 30.0
AWAY_S: Final = 6.0  # two leases
FREEZE_S: Final = 15
LOOP_S: Final = 1.0  # Patroni's
HELD: Final = 3
HANG_S: Final = 15.0  # longer than pulse waits for a statement
IN_FLIGHT_S: Final = 1.0  # for what was on its way when the standbys were stopped


@dataclass(frozen=True, slots=True)
class Stage:
    cluster: Cluster
    site: Site
    load: Load
    gaps: list[Gap] = field(default_factory=list[Gap])

    def promoted(self, after: Node) -> float:
        """When another node takes writes, monotonic."""
        until(
            lambda: any(node is not after and node.is_primary() for node in self.cluster.nodes), "a promotion", SETTLE_S
        )
        return time.monotonic()

    def rest(self, seconds: float) -> None:
        """Let what was done last for a while."""
        over_s = time.monotonic() + seconds
        until(lambda: time.monotonic() > over_s, "it is over", seconds * 2)

    def finds(self, check: str, state: str, words: str) -> None:
        """`pulse doctor` says so."""
        said = self.site.whole.command("doctor", "--json", "--dsn", self.cluster.dsn).stdout
        (found,) = [one for one in json.loads(said)["checks"] if one["name"] == check]
        assert found["state"] == state, found
        assert words in found["text"], found

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
    primary.switch(until(stage.cluster.synchronous, "a synchronous standby", SETTLE_S)[0])
    return stage.promoted(primary)


def lose_quorum(stage: Stage) -> float:
    """Two of three etcd are gone: no node may be the primary, and the last one runs on, read-only."""
    primary = stage.cluster.primary()
    for etcd in stage.cluster.etcds[1:]:
        etcd.end(signal.SIGKILL)
    until(lambda: primary.said().get("role") == "replica", "the primary is read-only", SETTLE_S)
    stage.rest(AWAY_S)
    for etcd in stage.cluster.etcds:
        etcd.start()
    until(lambda: any(node.is_primary() for node in stage.cluster.nodes), "a primary", SETTLE_S)
    return time.monotonic()


def freeze_node(stage: Stage) -> float:
    """SIGSTOP of all of the primary: it takes connections, and never answers. Then somebody pulls its plug."""
    primary = stage.cluster.primary()
    primary.configure({"ttl": FREEZE_S})  # longer than pulse waits for a statement
    stage.rest(3 * LOOP_S)
    with primary.frozen():
        since = stage.promoted(primary)
        stage.more()
        primary.kill()
    primary.start()
    stage.cluster.primary().configure(QUICK)
    return since


def lose_standbys(stage: Stage) -> float:
    """
    No standby answers, and the primary may not go on alone: commits hang, longer than pulse waits for a statement.

    Nothing is acknowledged meanwhile; and nobody cancels a commit that hangs: others would see what may still be lost.
    """
    primary = stage.cluster.primary()
    primary.configure({"synchronous_mode_strict": True})
    with contextlib.ExitStack() as stack:
        for node in stage.cluster.nodes:
            if node is not primary:
                stack.enter_context(node.frozen())
        stage.rest(IN_FLIGHT_S)
        acked = stage.load.acked
        stage.rest(HANG_S)
        stage.finds("commits", "wrong", "waited for a synchronous standby for")
        assert stage.load.acked == acked, f"{stage.load.acked - acked} submits were acknowledged by the primary alone"
    since = time.monotonic()
    assert "canceling wait for synchronous replication" not in primary.log()
    primary.configure({"synchronous_mode_strict": False})
    return since


def promote_with_gap(stage: Stage) -> float:
    """Asynchronous: the primary acknowledges what no standby gets, and is gone with its disk."""
    primary = stage.cluster.primary()
    primary.configure({"synchronous_mode": False, "maximum_lag_on_failover": 1 << 30})
    until(lambda: not stage.cluster.synchronous(), "the standbys are asynchronous", SETTLE_S)
    stage.finds("standbys", "warning", "replicate asynchronously")
    stage.more()
    with primary.deaf():
        cut_s = time.monotonic()
        gate = stage.site.gate()
        held = [stage.site.submit("hold", {"gate": str(gate)}, priority=100) for _ in range(HELD)]
        for job in held:
            stage.site.wait_started(job)
        stage.more(60)
        primary.kill()
    since = stage.promoted(primary)
    stage.gaps.append(Gap(cut_s, since))
    stage.more()
    gate.touch()
    primary.lose_disk()
    primary.start()
    return since


SCENES: Final[Mapping[str, Callable[[Stage], float]]] = {
    "kill-node": kill_node,
    "kill-postgres": kill_postgres,
    "switchover": switchover,
    "lose-quorum": lose_quorum,
    "freeze-node": freeze_node,
    "lose-standbys": lose_standbys,
    "promote-with-gap": promote_with_gap,  # the last: its ledger has a gap
}
