"""Before the first claim: what was RUNNING when everything was killed, or when the machine was restarted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime
from typing import Final

import pytest

from pulse.common.ids import uuid7
from pulse.system import processes
from pulse_actors.shared.identity import Host, Peer, compose, this_host
from tests.support.servers.postgres import Postgres
from tests.support.systems.system import System, running

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system]

HERE: Final = this_host("here")
MY_PID: Final = os.getpid()
GONE_PID: Final = 2**22 + 1  # above the largest pid_max


def held_by(host: Host, pid: int = GONE_PID, start_time: int = 7, pidns: int | None = None) -> str:
    """The identity of a worker of *host*."""
    return compose(host, Peer(pid, 0, 0, start_time, HERE.pidns if pidns is None else pidns), "w")


@pytest.fixture
def started(newest_server: Postgres) -> Iterator[tuple[System, dict[str, bytes]]]:
    """A system that was started on RUNNING rows of all sorts of workers, with the rows by what they are."""
    boot = "0123456789abcdef"
    workers = {
        "dead here": held_by(HERE),
        "pid used again": held_by(HERE, MY_PID, 7),
        "alive here": held_by(HERE, MY_PID, processes.start_time(MY_PID)),
        "before the restart": held_by(Host("here", boot, 1), 1),
        "twin": held_by(Host("here", "t" * 16, 1), 1),
        "never seen": held_by(Host("here", "n" * 16, 1), 1),
        "other host": held_by(Host("there", boot, 1), 1),
        "other namespace": held_by(HERE, pidns=1),
        "other form": "somebody",
    }
    rows = {what: uuid7().bytes for what in workers}
    with newest_server.database() as dsn, running(dsn, {"PULSE_HOST_ID": "here"}) as system:
        system.kill()
        for what, worker in workers.items():
            system.rows(
                "INSERT INTO pulse.jobs (id, name, topic, max_attempts, status, attempts, started_at, lease_until,"
                " locked_by) VALUES ($1, 'n', 't', 3, 'RUNNING', 1, now(), now() + interval '60 s', $2)",
                rows[what].hex(),
                worker,
            )
        for host, one, ago in (("here", boot, "100 years"), ("here", "t" * 16, "3 s"), ("there", boot, "100 years")):
            system.rows(
                "INSERT INTO pulse.hosts (host, boot, pidns, seen_at) VALUES ($1, $2, 1, now() - $3::text::interval)",
                host,
                one,
                ago,
            )
        system.start()
        yield system, rows


def test_what_cannot_be_running_is_given_back(started: tuple[System, dict[str, bytes]]) -> None:
    """Of this host's dead and ended boots, uncharged, before the system is ready; of all others nothing is touched."""
    system, rows = started
    given_back = {"dead here", "pid used again", "before the restart"}
    for what, identity in rows.items():
        row = system.row(identity)
        assert (row["status"], row["uncharged"]) == (("PENDING", 1) if what in given_back else ("RUNNING", 0)), what
    ready_at = datetime.fromisoformat(system.log("supervisor_ready")[-1]["timestamp"])
    assert [row["ended_at"] < ready_at for row in system.rows("SELECT ended_at FROM pulse.attempts")] == [True] * 3
    errors = "SELECT DISTINCT error FROM pulse.attempts ORDER BY error"
    assert [row["error"] for row in system.rows(errors)] == [
        "worker process died: its machine was restarted",
        "worker process died: nobody saw how",
    ]
