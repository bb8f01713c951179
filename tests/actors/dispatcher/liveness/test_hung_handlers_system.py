"""Handlers that outlast their time and ignore their cancel: their process is killed."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Final

import pytest

from tests.support.systems.lone_worker import Manner, lone_worker
from tests.support.systems.peers import Peer, new_job
from tests.support.systems.system import System

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.patient]

SETTINGS: Final[Mapping[str, str]] = {"PULSE_OBEY_S": "0.1", "PULSE_HEARTBEAT_S": "0.2", "PULSE_LEASE_S": "10"}
KILLED: Final = "it did not end when it was cancelled, so its process was killed"


def history(system: System, job: bytes) -> list[tuple[object, ...]]:
    sql = "SELECT outcome, error, exit_code FROM pulse.attempts WHERE job_id = $1 ORDER BY attempt"
    return [tuple(row) for row in system.rows(sql, job.hex())]


@pytest.mark.rest
def test_a_handler_that_hangs(system: System, client: Peer, topic: str) -> None:
    """It alone is charged, with its timeout; its siblings are given back, and waiting jobs go elsewhere."""
    client.submit(
        *(new_job(topic=topic, priority=-place, timeout_s=timeout_s) for place, timeout_s in enumerate((0.2, 60, 0.1)))
    )
    with lone_worker(system.path, "hung", Manner(topic, take=3, start=2, beat_s=0.1)) as (process, pairs):
        (hung, _), (sibling, _), (queued, _) = pairs
        assert system.wait_row(queued, status="PENDING")["uncharged"] == 1  # recalled, while the others still run
        assert process.poll() is None
        row = system.wait_row(hung, status="RETRYING")
        assert process.wait() == -signal.SIGKILL
    reason = f"timed out after 0.2 s; {KILLED}"
    assert (row["last_error"], row["attempts"], row["uncharged"], row["crashes"]) == (reason, 1, 0, 0)
    assert history(system, hung) == [("timeout", reason, -signal.SIGKILL)]
    row = system.wait_row(sibling, status="PENDING")
    assert (row["attempts"], row["uncharged"], row["crashes"]) == (1, 1, 0)
    assert history(system, sibling) == [("released", "worker process died: SIGKILL", None)]


@pytest.mark.rest
def test_a_handler_that_stalls(system: System, client: Peer, topic: str) -> None:
    client.submit(new_job(topic=topic))
    manner = Manner(topic, beat_s=0.1, handlers={"n": {"stall_s": 0.1}})
    with lone_worker(system.path, "stalled", manner) as (_, ((job, _),)):
        row = system.wait_row(job, status="RETRYING")
    assert row["last_error"] == f"stalled: no progress for 0.1 s; {KILLED}"
    assert [outcome for outcome, *_ in history(system, job)] == ["stalled"]


@pytest.mark.rest
def test_where_a_job_hangs(system: System, client: Peer, topic: str) -> None:
    client.submit(waiting := new_job(topic=topic + "-nobody"))
    assert client.refusal("jobs.stack", id=waiting["id"])[0] == "conflict"
    assert client.refusal("jobs.stack", id=bytes(16))[0] == "not_found"
    with system.worker("held", topics=[topic]) as worker:
        client.submit(job := new_job(topic=topic))
        worker.job()
        code, message = client.refusal("jobs.stack", id=job["id"])
        assert code == "unavailable"
        assert "no pool parent" in message
