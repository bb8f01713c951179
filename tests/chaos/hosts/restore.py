"""The database is restored to an earlier moment, from a base backup and archived WAL, while all hosts work."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from tests.chaos.database import Own
from tests.chaos.hosts.cluster import ARCHIVE, Cluster
from tests.chaos.hosts.ordeal import DRAIN_S, WHOLE_S, Ordeal
from tests.failover import gap
from tests.failover.gap import Gap
from tests.support.systems.epoch_kit import Backups
from tests.support.waiting import until

NAME: Final = "restore"
WORK_S: Final = 60.0
BAR_S: Final = (
    10.0  # until a job is completed: there is a start of every session, and a lease of grace for the other hosts
)
_SWITCH: Final = "SELECT pg_walfile_name(pg_switch_wal())"
_ARCHIVED: Final = "SELECT last_archived_wal >= $1 FROM pg_stat_archiver"


@dataclass(frozen=True, slots=True)
class Restored:
    """
    What became of it.

    Attributes:
        lost_s: How far the database went back.
        whole_s: How long it took from its start until all hosts worked, and a job was completed.
        counts: What is gone, by who names it.
    """

    lost_s: float
    whole_s: float
    counts: dict[str, int]
    wrong: list[str]


def restore(ordeal: Ordeal, tell: Callable[[str], None], jobs: int = 60) -> Restored:
    """
    Back up, work, remember the moment, work on, and go back to it; the last of a run, since its ledger has a gap.

    Args:
        jobs: How many end before the backup, up to the moment, and after it.
    """
    site = ordeal.site
    assert isinstance(site.database, Own)
    archive = site.database.data_dir.parent.parent / ARCHIVE
    backups = Backups(site.database, site.whole.directory, archive)
    site.fire_again()
    for load in ordeal.loads:
        load.go_on()
    _work(site, jobs)
    backups.take()
    gate = site.gate()
    _hold(site, gate)
    _work(site, jobs)
    moment, moment_s = _now(site), time.monotonic()
    _hold(site, gate)  # these are in no backup
    _work(site, jobs)
    _archive(site)
    lost_s = time.monotonic() - moment_s
    tell(f"{NAME}: the database goes back by {lost_s:.1f} s")
    backups.restore(moment)
    site.builder.plug(site.database)
    until(lambda: site.sql.value("SELECT NOT pg_is_in_recovery()"), "it takes writes", WHOLE_S)
    back_s = time.monotonic()
    site.settle(WHOLE_S)
    site.probe(WHOLE_S)
    whole_s = time.monotonic() - back_s
    gate.touch()
    for load in ordeal.loads:
        load.rest()
    site.drain(DRAIN_S)
    wrong, counts = gap.judged(site, Gap(moment_s, back_s))
    wrong += site.report(drained=False).wrong
    wrong += [f"{load.gave_up} submits were never acknowledged" for load in ordeal.loads if load.gave_up]
    wrong += [f"{host.name} did not notice" for host in site.hosts if not host.said("database_went_back")]
    if (epochs := site.sql.value("SELECT count(*) FROM pulse.epochs")) != 2:
        wrong.append(f"{epochs} epochs after one restore")
    if whole_s > BAR_S:
        wrong.append(f"whole again after {whole_s:.1f} s; the bar is {BAR_S:.0f} s")
    return Restored(lost_s, whole_s, counts, wrong)


def _work(site: Cluster, jobs: int) -> None:
    done = len(site.lines("end"))
    until(lambda: len(site.lines("end")) >= done + jobs, f"{jobs} jobs are done", WORK_S)


def _hold(site: Cluster, gate: Path) -> None:
    """As many jobs run as there are hosts, until *gate* is there."""
    for job in [site.submit("hold", {"gate": str(gate)}, priority=100) for _ in site.machines]:
        site.wait_started(job)


def _now(site: Cluster) -> datetime:
    now = site.sql.value("SELECT clock_timestamp()")
    assert isinstance(now, datetime)
    return now


def _archive(site: Cluster) -> None:
    """All WAL so far is in the archive."""
    segment = site.sql.value(_SWITCH)
    until(lambda: site.sql.value(_ARCHIVED, segment), "the WAL is archived", WORK_S)
