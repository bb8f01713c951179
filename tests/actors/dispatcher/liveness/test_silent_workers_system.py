"""Kill, then requeue: jobs of a silent process of this host are handed out again only when that process is dead."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from typing import Final

import psutil
import pytest

from tests.support.systems.lone_worker import Manner, lone_worker
from tests.support.systems.peers import Peer, new_job
from tests.support.systems.system import System
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system]

LEASE_S: Final = 2.5
_HELD: Final = """
    SELECT *, coalesce(status = 'RUNNING' AND lease_until > clock_timestamp(), false) AS is_held
    FROM pulse.jobs WHERE id = $1"""
SETTINGS: Final[Mapping[str, str]] = {"PULSE_LEASE_S": str(LEASE_S), "PULSE_HEARTBEAT_S": "0.5", "PULSE_SWEEP_S": "0.2"}


@pytest.mark.rest
def test_a_stopped_worker(system: System, client: Peer, topic: str) -> None:
    """It is killed after a silent lease; only then its attempts end, as lapsed leases."""
    client.submit(new_job(topic=topic), new_job(topic=topic, priority=-1))
    with lone_worker(system.path, "stopped", Manner(topic, take=2)) as (process, (started, queued)):
        (told,) = [one for one in client.call("workers.list")["workers"] if one["name"] == "stopped"]
        assert (told["recovery"], told["silent"]) == ("kernel", False)

        def is_over() -> bool:
            (row,) = system.rows(_HELD, started[0].hex())
            over = psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE  # looked at after the row
            assert over or row["is_held"], row
            return over

        began_s = time.monotonic()
        os.kill(process.pid, signal.SIGSTOP)
        until(is_over, "the silent process is killed")
        assert time.monotonic() - began_s > LEASE_S - 0.5  # the last word came a little before
    row = system.wait_row(started[0], status="RETRYING")
    assert (row["last_error"], row["attempts"], row["uncharged"], row["crashes"]) == ("worker lease expired", 1, 0, 0)
    row = system.wait_row(queued[0], status="PENDING")
    assert (row["attempts"], row["uncharged"]) == (1, 1)
    history = "SELECT outcome, error, exit_code FROM pulse.attempts WHERE job_id = $1"
    assert [tuple(one) for one in system.rows(history, started[0].hex())] == [
        ("lease_expired", "worker lease expired", -signal.SIGKILL)
    ]
