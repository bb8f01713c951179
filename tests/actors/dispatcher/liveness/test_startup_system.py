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
BOOT: Final = "0123456789abcdef"
GONE_PID: Final = 2**22 + 1  # above the largest pid_max


@pytest.fixture
def started(newest_server: Postgres) -> Iterator[tuple[System, dict[str, bytes]]]:
    """A system that was started on RUNNING rows of this host, with the rows by what they are."""
    workers = {
        "dead here": compose(HERE, Peer(GONE_PID, 0, 0, 7, HERE.pidns), "w"),
        "alive here": compose(HERE, Peer(MY_PID, 0, 0, processes.start_time(MY_PID), HERE.pidns), "w"),
        "before the restart": compose(Host("here", BOOT, 1), Peer(1, 0, 0, 7, HERE.pidns), "w"),
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
        system.rows("INSERT INTO pulse.hosts VALUES ('here', $1, 1, now() - interval '100 years')", BOOT)
        system.start()
        yield system, rows


def test_what_cannot_be_running_is_given_back(started: tuple[System, dict[str, bytes]]) -> None:
    """Of this host's dead and ended boots, uncharged, before the system is ready; of all others nothing is touched."""
    system, rows = started
    for what, identity in rows.items():
        row = system.row(identity)
        assert (row["status"], row["uncharged"]) == (("PENDING", 1) if what != "alive here" else ("RUNNING", 0)), what
    ready_at = datetime.fromisoformat(system.log("supervisor_ready")[-1]["timestamp"])
    assert [row["ended_at"] < ready_at for row in system.rows("SELECT ended_at FROM pulse.attempts")] == [True] * 2
    errors = "SELECT DISTINCT error FROM pulse.attempts ORDER BY error"
    assert [row["error"] for row in system.rows(errors)] == [
        "worker process died: its machine was restarted",
        "worker process died: nobody saw how",
    ]
