"""Before the first claim: what was RUNNING when everything was killed."""

from __future__ import annotations

import os
from datetime import datetime
from typing import Final

import pytest

from pulse.common.ids import uuid7
from pulse.system import processes
from pulse_actors.shared.identity import Peer, compose, this_host
from tests.support.servers.postgres import Postgres
from tests.support.systems.system import running

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system]

HERE: Final = this_host("here")
MY_PID: Final = os.getpid()
GONE_PID: Final = 2**22 + 1  # above the largest pid_max
RUNNING: Final = """
    INSERT INTO pulse.jobs (id, name, topic, max_attempts, status, attempts, started_at, lease_until, locked_by)
    VALUES ($1, 'n', 't', 3, 'RUNNING', 1, now(), now() + interval '60 s', $2)"""


def test_what_cannot_be_running_is_given_back(newest_server: Postgres) -> None:
    gone, alive = uuid7().bytes, uuid7().bytes
    with newest_server.database() as dsn, running(dsn, {"PULSE_HOST_ID": "here"}) as system:
        system.kill()
        for job, pid, start_time in ((gone, GONE_PID, 7), (alive, MY_PID, processes.start_time(MY_PID))):
            system.rows(RUNNING, job.hex(), compose(HERE, Peer(pid, 0, 0, start_time, HERE.pidns), "w"))
        system.start()
        for job, left in ((gone, ("PENDING", 1, 0)), (alive, ("RUNNING", 0, 0))):
            row = system.row(job)
            assert (row["status"], row["uncharged"], row["crashes"]) == left
        ready_at = datetime.fromisoformat(system.log("supervisor_ready")[-1]["timestamp"])
        (entry,) = system.rows("SELECT ended_at, error FROM pulse.attempts")
        assert entry["ended_at"] < ready_at
        assert entry["error"] == "worker process died: nobody saw how"
