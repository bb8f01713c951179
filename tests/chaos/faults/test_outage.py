"""The database is away for longer than a lease: nothing is lost, no worker counts as dead, and few lines are logged."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.chaos.faults.database_faults import StopDatabase
from tests.chaos.faults.trial import Trial, standing
from tests.chaos.site import LEASE_S, Site, site
from tests.support.servers import postgres
from tests.support.systems.system_kit import cpu_s, measured, since
from tests.support.waiting import until

pytestmark = [pytest.mark.chaos, pytest.mark.process, pytest.mark.postgres, pytest.mark.system, pytest.mark.rest]

POOL = ("--processes", "1", "--concurrency", "8")
AWAY_S = LEASE_S * 2
CPU_SHARE = 0.2  # of one core, for all actors together; on a quiet machine it is a hundredth
LINES_PER_S = 2.0  # of each process; one, and some slack for the first second


@pytest.fixture(scope="module")
def trial() -> Iterator[Trial]:
    with site(own=True, own_settings=postgres.SETTINGS, pool=POOL) as made:
        made.start()
        made.pool(*POOL)
        with standing(made) as trial:
            yield trial


def test_row_14_the_database_is_down(trial: Trial) -> None:
    """Handlers go on and their results are kept; when it is back all leases have lapsed, and none is reaped."""
    with trial.under_load() as site:
        held = trial.hold(8)
        finishing = trial.hold(2)
        actors = list(site.whole.pids().values())
        with trial.suffering(StopDatabase):
            away_s = time.monotonic()
            lines, used_s = log_lines(site), cpu_s(actors)
            until(lambda: time.monotonic() - away_s > AWAY_S / 2, "half of the time", AWAY_S * 2)
            finishing.open()
            until(lambda: time.monotonic() - away_s > AWAY_S, "the time", AWAY_S * 2)
            lasted_s = since(away_s)
            share = measured("processor of the actors meanwhile", (cpu_s(actors) - used_s) / lasted_s, "cores")
            rate = measured("lines in the log meanwhile", (log_lines(site) - lines) / lasted_s, "per second")
            assert list(site.whole.pids().values()) == actors
        started_s = time.monotonic()
        site.probe()
        measured("the database's return to a job completed", since(started_s))
        for jobs in (finishing, held):
            assert jobs.interrupted() == []
        assert site.sql.value("SELECT count(*) FROM pulse.attempts WHERE outcome = 'lease_expired'") == 0
    assert share < CPU_SHARE
    assert rate < LINES_PER_S * (len(actors) + 1)


def test_a_lost_job_is_found(trial: Trial) -> None:
    """Only the ledger knows of it: the check after each fault would fail."""
    site = trial.site
    job = site.submit("short")
    site.wait(job, "COMPLETED")
    site.drain()
    assert site.report().wrong == []
    site.sql.rows("DELETE FROM pulse.jobs WHERE id = $1", job)
    found = site.report().wrong
    assert [one.split()[0] for one in found] == ["I1", "I9", "I16"]
    assert str(job) in found[0]


def log_lines(site: Site) -> int:
    return site.whole.errors.read_bytes().count(b"\n")
