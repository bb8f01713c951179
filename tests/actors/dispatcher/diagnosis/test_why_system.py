"""``pulse ctl jobs why`` on a real supervisor: what people read of jobs that do not run, and of those that do."""

from __future__ import annotations

import json
import os
import signal
from typing import Any, Final

import pytest

import pulse
from tests.support.systems.site_kit import Site

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system]

# Long enough for the commands of a test, whose worker does not beat meanwhile: who is silent for a lease is killed.
SETTINGS: Final = {"PULSE_LEASE_S": "10", "PULSE_HEARTBEAT_S": "1", "PULSE_SWEEP_S": "0.5"}
ME: Final = f"uid {os.getuid()} ("


@pytest.mark.parametrize("of_all", [False, True])
def test_paused(site: Site, of_all: bool) -> None:
    """Who has paused it, since when and why, and the command that ends it; then it runs."""
    option = [] if of_all else ["--topic", site.topic]
    with site.whole.worker("w", topics=[site.topic]) as worker:
        assert site.whole.command("ctl", "dispatch", "pause", *option, "--reason", "disk full").returncode == 0
        job = site.job()
        paused, command = site.said(job)
        assert paused.startswith(("Everything" if of_all else f'Topic "{site.topic}"') + " is paused since 20")
        assert f"by {ME}" in paused
        assert paused.endswith(", until somebody resumes it; reason: disk full.")
        assert site.whole.command(*command.split()[1:]).returncode == 0
        assert worker.job() == (job.bytes, 1)
        worker.done((job.bytes, 1))
    assert site.codes(job) == ["ended"]


def test_back_off(site: Site) -> None:
    """The error of its last attempt, and when it is tried again; both clients are told."""
    with site.whole.worker("w", topics=[site.topic]) as worker:
        job = site.job()
        worker.job()
        worker.report([job.bytes, 1, "retry", [3600.0, "ValueError: cannot open"]])
        first, advice = site.said(job)
    assert first.startswith("Attempt 1 ended (retry) with: ValueError: cannot open. It is tried again 20")
    assert first.endswith("1 of 5 tries are used.")
    assert advice == f"  Its attempts: pulse ctl jobs get {job}"
    with pulse.Client(site.whole.path) as client:
        told = client.why(job)
    assert (told.id, told.topic, told.status) == (job, site.topic, pulse.Status.RETRYING)
    assert [reason.code for reason in told.reasons] == ["back_off", "no_worker"]
    assert told.reasons[0].details["error"] == "ValueError: cannot open"


def test_running(site: Site) -> None:
    """At its worker, which has not called its handler first; as a document, too."""
    with site.whole.worker("w", topics=[site.topic]) as worker:
        job = site.job()
        pair = worker.job()
        site.until_codes(job, "assigned")
        worker.send("started", jobs=[pair])
        site.until_codes(job, "running")
        assert f'It runs: attempt 1 is at worker "w", pid {os.getpid()}, claimed ' in site.said(job)[0]
        worker.beat(pair)
        done = site.whole.command("ctl", "jobs", "why", str(job), "--json")
        document: Any = json.loads(done.stdout)
        assert (document["id"], document["status"]) == (str(job), "RUNNING")
        assert document["reasons"][0]["details"]["started_at"].endswith("Z")
        worker.done(pair)


def test_a_silent_worker(site: Site) -> None:
    """Whose worker says nothing for a lease of the server is told so; a longer one of the topic lets it live."""
    site.client.call("topics.set", topic=site.topic, policy={"lease_s": 600.0})
    pool = site.whole.pool("--topic", site.topic, "--processes", "1", "--concurrency", "1")
    gate = site.whole.gate(site.topic)
    running = site.job(name="hold", args=json.dumps({"gate": str(gate)}))
    site.until_codes(running, "running")
    (pid,) = pool.workers()
    for each in (pool.pid, pid):
        os.kill(each, signal.SIGSTOP)
    try:
        site.until_codes(running, "silent")
    finally:
        pool.bury()
