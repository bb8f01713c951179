"""``pulse ctl jobs why`` on a real supervisor: what people read of jobs that do not run, and of those that do."""

from __future__ import annotations

import json
import os
import signal
import uuid
from typing import Any, Final

import pytest

import pulse
from tests.process.site_kit import Site
from tests.process.system_kit import place
from tests.support.postgres import Postgres
from tests.support.system import until

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system]

ALLOW: Final = "UPDATE pg_database SET datallowconn = $1 WHERE datname = current_database()"
CUT: Final = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)
ME: Final = f"uid {os.getuid()} ("


def test_no_such_job(site: Site) -> None:
    """It is refused with one line, and so is what is no id."""
    absent = uuid.uuid4()
    done = site.whole.command("ctl", "jobs", "why", str(absent))
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        done.stderr
        == f"pulse: there is no job {absent}: it was never submitted here, or has ended and was deleted since\n"
    )
    done = site.whole.command("ctl", "jobs", "why", "seven")
    assert (done.returncode, done.stdout) == (2, "")
    assert "'seven': a UUID is allowed" in done.stderr


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


def test_no_worker(site: Site) -> None:
    """What is served instead is told."""
    job = site.job()
    assert site.said(job) == [
        f'No worker that is connected to this server serves topic "{site.topic}". No worker is connected at all.',
        f"  Start one: pulse worker MODULE:APP --topic {site.topic}",
    ]
    with site.whole.worker("w", topics=["elsewhere"]):
        assert "Served here: elsewhere." in site.said(job)[0]


def test_no_handler(site: Site) -> None:
    """It is told before what follows from it: the job is given back, and looked at again later."""
    with site.whole.worker("w", topics=[site.topic], names=["resize"]):
        job = site.job(name="rezise")
        site.until_codes(job, "no_handler", "given_back")
        first, _, then = site.said(job)
    assert first == f'1 worker serves topic "{site.topic}", but none has a handler named "rezise". Alike: resize.'
    assert then.startswith("It was claimed, and given back since nobody could take it just then;")


def test_full(site: Site) -> None:
    """All places, and what they are taken by; who waits in line knows how many come first."""
    with site.whole.worker("w", topics=[site.topic], names=["n", "crunch"], capacity=2) as worker:
        held = [site.job(), site.job(name="crunch")]
        pairs = [job[:2] for job in worker.jobs(2)]
        assert {pair[0] for pair in pairs} == {one.bytes for one in held}
        site.job()
        job = site.job()
        reasons = site.why(job)
        assert [reason["code"] for reason in reasons] == ["full", "behind"]
        assert reasons[0]["text"] == ("The only worker that could run it is full: 2 places, taken by 1 n, 1 crunch.")
        assert reasons[1]["details"] == {"before": 1}
        worker.send("drain")
        worker.done(*pairs)


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


def test_not_due_held_and_expiring(site: Site) -> None:
    """Times are told, and behind which job another one of its schedule is held."""
    with site.whole.worker("w", topics=[site.topic]) as worker:
        assert site.codes(site.job(delay_s=60.0)) == ["not_due"]
        assert site.codes(site.job(delay_s=60.0, expires_in_s=90.0)) == ["not_due", "expires"]
        made = site.client.call("schedules.create", name="n", topic=site.topic, every=0.1, overlap="queue")
        schedule = made["schedule"]["id"]
        last, _ = worker.job()

        def held() -> list[Any]:
            return site.whole.rows(
                "SELECT id FROM pulse.jobs WHERE schedule_id = $1 AND status = 'PENDING' ORDER BY occurrence LIMIT 1",
                schedule.hex(),
            )

        (row,) = until(held, "a job that is held")
        site.client.call("schedules.pause", id=schedule)
        first, advice = site.said(uuid.UUID(bytes=row["id"].bytes))
        assert "(overlap queue)" in first
        assert advice == f"  pulse ctl jobs why {uuid.UUID(bytes=last)}"
        site.client.call("schedules.delete", id=schedule)


def test_the_database_is_away(newest_server: Postgres) -> None:
    """It is said so in one line, and without waiting for the end of the command's time."""
    with newest_server.database() as dsn, place(dsn) as whole:
        whole.start()
        whole.rows(ALLOW, False)
        whole.rows(CUT)
        done = whole.command("ctl", "--timeout", "20", "jobs", "why", str(uuid.uuid4()))
        whole.rows(ALLOW, True)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("pulse: the database ")
        assert done.stderr.count("\n") == 1
