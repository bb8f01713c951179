"""``pulse ctl jobs why`` on a real supervisor: what people read of jobs that do not run, and of those that do."""

from __future__ import annotations

import json
import os
from typing import Any, Final

import pytest

from tests.support.systems.site_kit import Site

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system]

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
