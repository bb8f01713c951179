"""``pulse ctl jobs why`` on a real supervisor: what people read of jobs that do not run, and of those that do."""

from __future__ import annotations

import json
import os
from typing import Any, Final

import pytest

from tests.support.systems.site_kit import Site

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system, pytest.mark.rest]

# Long enough for the commands of a test, whose worker does not beat meanwhile: a silent lease kills it.
SETTINGS: Final = {"PULSE_LEASE_S": "10", "PULSE_HEARTBEAT_S": "1"}
ME: Final = f"uid {os.getuid()} ("


@pytest.mark.parametrize("of_all", [False, True])
def test_paused(site: Site, of_all: bool) -> None:
    option = [] if of_all else ["--topic", site.topic]
    with site.whole.worker("w", topics=[site.topic]) as worker:
        assert site.whole.command("ctl", "dispatch", "pause", *option, "--reason", "disk full").returncode == 0
        job = site.job()
        paused, command = site.said(job)
        assert paused.startswith(("Everything" if of_all else f'Topic "{site.topic}"') + " has been paused since 20")
        assert f"by {ME}" in paused
        assert paused.endswith(", until somebody resumes it; reason: disk full.")
        assert site.whole.command(*command.split()[1:]).returncode == 0
        assert worker.job() == (job.bytes, 1)
        worker.done((job.bytes, 1))
    assert site.codes(job) == ["ended"]


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


def test_a_signal_that_is_sent_as_it_says(site: Site) -> None:
    """The advice is a command that makes the job run again; the job shows what it waited for, and what came."""
    with site.whole.worker("w", topics=[site.topic]) as worker:
        job = site.job()
        assert worker.report([*worker.job(), "wait", [3600.0, ["paid", 0]]]) == []
        waits, command = site.said(job)
        assert waits.startswith('Its handler has waited for the signal "paid" since 20')
        assert 'waits for    the signal "paid", until 20' in site.ctl("jobs", "get", str(job))
        words = command.removeprefix("  To send it: pulse ctl ").split()
        assert site.ctl(*words, '{"cents": 5}', "--key", "k") == f"sent paid to {job}\n"
        assert site.told(*words, "--key", "k") == {"new": False}
        assert worker.job() == (job.bytes, 2)
        worker.done((job.bytes, 2))
    assert f"job {job} is COMPLETED; one that has not ended, or is a dead letter, is allowed" in site.ctl(
        *words, code=1
    )
    shown = site.ctl("jobs", "get", str(job))
    assert 'Z  paid  {"cents": 5}\n' in shown
    assert "waits for" not in shown
