"""Sessions, backends and the postmaster are ended, under load, with the supervisor's own database."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.chaos.database import postmaster
from tests.chaos.faults.database_faults import (
    ExhaustConnections,
    KillBackend,
    KillPostmaster,
    QuitPostmaster,
    TerminateBackends,
)
from tests.chaos.faults.fault import Fault
from tests.chaos.faults.trial import Trial, standing
from tests.chaos.site import site
from tests.support.systems.system_kit import measured, since
from tests.support.waiting import until

pytestmark = [pytest.mark.chaos, pytest.mark.process, pytest.mark.postgres, pytest.mark.system, pytest.mark.rest]

POOL = ("--processes", "1", "--concurrency", "8")
TERMINATED_S = 5.0


@pytest.fixture(scope="module")
def trial() -> Iterator[Trial]:
    with site(pool=POOL) as made:
        made.start()
        made.pool(*POOL)
        with standing(made) as trial:
            yield trial


@pytest.mark.spare
def test_row_10_sessions_are_terminated_again_and_again(trial: Trial) -> None:
    """Twice a second, all of them: jobs are submitted and completed meanwhile, and handlers go on."""
    with trial.under_load() as site:
        held = trial.hold(6)
        acked, over_s = trial.load.acked, time.monotonic() + TERMINATED_S
        with trial.suffering(TerminateBackends) as fault:
            until(lambda: time.monotonic() > over_s, "the time is over", TERMINATED_S * 2)
            probed_s = measured("a job while sessions are terminated", site.probe())
        assert fault.rounds >= TERMINATED_S  # twice a second on a quiet machine
        assert trial.load.acked - acked > TERMINATED_S
        assert probed_s < TERMINATED_S
        measured("a job after it", site.probe())
        assert held.interrupted() == []


@pytest.mark.parametrize("kind", [KillBackend, KillPostmaster, QuitPostmaster], ids=lambda kind: f"row_{kind.row}")
def test_rows_11_to_13_the_database_ends(trial: Trial, kind: type[Fault]) -> None:
    """It is back within moments; handlers go on, their results are kept, and no try is charged."""
    with trial.under_load() as site:
        held = trial.hold(6)
        before, started_s = postmaster(site.database), time.monotonic()
        with trial.suffering(kind):
            pass
        held.open()
        if kind is not KillBackend:
            until(lambda: postmaster(site.database) != before, "another postmaster", kind.bar_s)
        measured(f"{kind.name} to the database", since(started_s))
        site.settle()
        site.probe()
        measured(f"{kind.name} to a job completed", since(started_s))
        assert held.interrupted() == []


def test_row_17_no_connection_is_left(trial: Trial) -> None:
    with trial.under_load() as site:
        held = trial.hold(6)
        with trial.suffering(ExhaustConnections) as fault:
            assert len(fault.held) > 50
            for _ in range(10):
                measured("a job while no connection is free", site.probe())
        assert held.interrupted() == []
