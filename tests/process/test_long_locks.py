"""Locks that last longer than a lease, on two hosts: whose heartbeat cannot be written lives, and nobody runs twice."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

import pytest

from tests.process.system_kit import END_S, SHORT_LEASE, Whole, place
from tests.support.system import until

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.heavy]

JOBS: Final = 12
LEASE_S: Final = float(SHORT_LEASE["PULSE_LEASE_S"])
SOME_LAPSED: Final = "SELECT count(*) FROM pulse.jobs WHERE lease_until < clock_timestamp() - interval '1 s'"
ALL_RUN: Final = "SELECT count(*) FROM pulse.jobs WHERE status = 'RUNNING' AND attempts = 1"
SWEPT: Final = "SELECT swept_at > wait_until FROM pulse.sweep_mark"
RENEWED: Final = "SELECT bool_and(lease_until > clock_timestamp()) FROM pulse.jobs WHERE status = 'RUNNING'"
HELD: Final = {
    "share": ("LOCK TABLE pulse.jobs IN SHARE MODE",),
    "exclusive": ("LOCK TABLE pulse.jobs IN ACCESS EXCLUSIVE MODE",),
    "rows": ("SELECT FROM pulse.jobs ORDER BY id LIMIT 3 FOR UPDATE",),
}


@pytest.fixture
def hosts(dsn: str) -> Iterator[tuple[Whole, Whole]]:
    """Two supervisors on one database; the pool is at the first."""
    with place(dsn, **SHORT_LEASE, PULSE_HOST_ID="a") as home, place(dsn, **SHORT_LEASE, PULSE_HOST_ID="b") as away:
        home.start()
        away.start()
        home.pool("--processes", "2", "--concurrency", str(JOBS // 2))
        yield home, away


@contextlib.contextmanager
def held(whole: Whole, *statements: str) -> Iterator[None]:
    """While this lasts, a session that is none of pulse's holds these locks."""
    whole.rows("BEGIN")
    for sql in statements:
        whole.rows(sql)
    yield
    whole.rows("COMMIT")


@pytest.mark.parametrize("kind", HELD)
def test_a_lock_longer_than_a_lease(hosts: tuple[Whole, Whole], kind: str) -> None:
    """No lease is believed that nobody could extend: nothing is reaped, nothing runs twice."""
    home, away = hosts
    jobs = home.jobs()
    made = [jobs.submit("hold", {"gate": str(home.gate("g"))}) for _ in range(JOBS)]
    for job in made:
        home.wait_entry(job)
    with held(away, *HELD[kind]):
        until(lambda: away.rows(SOME_LAPSED)[0][0] >= 3, "leases lapse", END_S)
    until(lambda: away.rows(SWEPT)[0][0] and away.rows(RENEWED)[0][0], "leases are believed again", END_S)
    assert away.rows(ALL_RUN)[0][0] == JOBS
    home.gate("g").touch()
    for job in made:
        assert jobs.wait(job).attempts == 1
    assert len(home.entries(event="start")) == JOBS
    for host in hosts:
        assert host.log("leases_expired") == host.log("worker_silent_too_long") == []
