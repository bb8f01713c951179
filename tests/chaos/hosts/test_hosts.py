"""
Two hosts, and one with remote workers: a host is cut off, and the database is restored to an earlier moment.

Nothing is lost but what the restore leaves out, and nothing starts without a lease. ``make hosts`` has all faults, on
five hosts.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.hosts.cluster import cluster
from tests.chaos.hosts.faults import CutOff
from tests.chaos.hosts.machine import why_not
from tests.chaos.hosts.ordeal import Ordeal, standing
from tests.chaos.hosts.restore import restore
from tests.support.systems.system_kit import measured

pytestmark = [
    pytest.mark.chaos, pytest.mark.process, pytest.mark.postgres, pytest.mark.patient, pytest.mark.rest,
]  # fmt: skip
SEED = 1


@pytest.fixture(scope="module")
def ordeal() -> Iterator[Ordeal]:
    if why := why_not():
        pytest.skip(why)
    with cluster(hosts=2, remotes=1) as site:
        site.start()
        with standing(site, SEED) as made:
            yield made


@pytest.mark.timeout(180)
def test_a_host_is_cut_off(ordeal: Ordeal) -> None:
    done = ordeal.suffer(CutOff, print)
    measured(f"the cut to the end of {done.held} attempts of {done.fault.victim.name}", done.ended_s)
    assert (done.wrong, done.report.wrong) == ([], [])
    assert done.held > 0


@pytest.mark.timeout(180)
def test_the_database_is_restored_to_an_earlier_moment(ordeal: Ordeal) -> None:
    """The last: what the ledger has of the time that is lost, no other rule holds for."""
    done = restore(ordeal, print, jobs=15)
    measured("the start of the restored database to a completed job", done.whole_s)
    assert done.wrong == []
    assert done.counts["  named: workers had them"] > 0
