"""Locks that last longer than a lease, on two hosts: workers whose heartbeats wait live on, and no job runs twice."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final
from uuid import UUID

import pytest

from tests.support.servers.postgres import Postgres
from tests.support.systems.system_kit import END_S, SHORT_LEASE, Whole, place, since
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.heavy, pytest.mark.patient, pytest.mark.rest]

JOBS: Final = 12
LEASE_S: Final = float(SHORT_LEASE["PULSE_LEASE_S"])
LOCKED_S: Final = 0.4 * LEASE_S  # a gap is half a lease here
SOME_LAPSED: Final = "SELECT count(*) FROM pulse.jobs WHERE lease_until < clock_timestamp() - interval '3 s'"
ALL_RUN: Final = "SELECT count(*) FROM pulse.jobs WHERE status = 'RUNNING' AND attempts = 1"
SWEPT: Final = "SELECT swept_at > wait_until FROM pulse.sweep_mark"
RENEWED: Final = "SELECT bool_and(lease_until > clock_timestamp()) FROM pulse.jobs WHERE status = 'RUNNING'"
HELD: Final = {
    "share": ("LOCK TABLE pulse.jobs IN SHARE MODE",),
    "exclusive": ("LOCK TABLE pulse.jobs IN ACCESS EXCLUSIVE MODE",),
    "rows": ("SELECT FROM pulse.jobs WHERE status = 'RUNNING' ORDER BY id LIMIT 3 FOR UPDATE",),
}


@pytest.fixture(scope="module")
def hosts(newest_server: Postgres) -> Iterator[tuple[Whole, Whole]]:
    with (
        newest_server.database() as dsn,
        place(dsn, **SHORT_LEASE, PULSE_HOST_ID="a") as home,
        place(dsn, **SHORT_LEASE, PULSE_HOST_ID="b") as away,
    ):
        home.start()
        away.start()
        home.pool("--processes", "2", "--concurrency", str(JOBS // 2))
        yield home, away


@contextlib.contextmanager
def held(whole: Whole, *statements: str) -> Iterator[None]:
    whole.rows("BEGIN")
    for sql in statements:
        whole.rows(sql)
    yield
    whole.rows("COMMIT")


@pytest.fixture
def gate(hosts: tuple[Whole, Whole], topic: str) -> Path:
    return hosts[0].gate(topic)


def begun(home: Whole, gate: Path) -> list[UUID]:
    """Jobs that run until the gate opens, in all slots of the pool; no lease is in doubt from the lock before."""
    until(lambda: home.rows(SWEPT)[0][0], "leases are believed", END_S)
    made: list[UUID] = [home.jobs().submit("hold", {"gate": str(gate)}) for _ in range(JOBS)]
    for job in made:
        home.wait_entry(job)
    return made


def ran_once(hosts: tuple[Whole, Whole], made: Sequence[UUID]) -> None:
    """All of them complete at their first attempt, and no worker was declared dead."""
    home, _ = hosts
    jobs = home.jobs()
    for job in made:
        assert jobs.wait(job).attempts == 1
        assert len(home.entries(job, "start")) == 1
    for host in hosts:
        assert host.log("leases_expired") == host.log("worker_silent_too_long") == []


@pytest.mark.parametrize("kind", HELD)
def test_a_lock_longer_than_a_lease(hosts: tuple[Whole, Whole], gate: Path, kind: str) -> None:
    """No lease counts that nobody could extend: nothing is reaped, nothing runs twice."""
    home, away = hosts
    made = begun(home, gate)
    with held(away, *HELD[kind]):
        until(lambda: away.rows(SOME_LAPSED)[0][0] >= 3, "leases lapse", END_S)
    until(lambda: away.rows(SWEPT)[0][0] and away.rows(RENEWED)[0][0], "leases are believed again", END_S)
    assert away.rows(ALL_RUN)[0][0] == JOBS
    gate.touch()
    ran_once(hosts, made)


def test_one_lock_after_the_other(hosts: tuple[Whole, Whole], gate: Path) -> None:
    """Each too short for a gap between two sweeps, which come through in between; heartbeats may not."""
    home, away = hosts
    made = begun(home, gate)
    began_s = time.monotonic()
    while since(began_s) < 2 * LEASE_S:
        with held(away, *HELD["share"]):
            locked_s = time.monotonic()
            until(lambda locked_s=locked_s: since(locked_s) > LOCKED_S, "its time")  # type: ignore[misc]
    until(lambda: away.rows(SWEPT)[0][0] and away.rows(RENEWED)[0][0], "leases are believed again", END_S)
    gate.touch()
    ran_once(hosts, made)


@pytest.mark.parametrize("kind", ["share", "rows"])
def test_reports_that_wait_longer_than_a_lease(hosts: tuple[Whole, Whole], gate: Path, kind: str) -> None:
    """No beat covers an attempt that has ended; it still does not run again."""
    home, away = hosts
    made = begun(home, gate)
    with held(away, *HELD[kind]):
        gate.touch()
        until(lambda: away.rows(SOME_LAPSED)[0][0] >= 3, "leases lapse", END_S)
    ran_once(hosts, made)
