"""What handlers can do, through the whole system, from the client's submit to the row in the database."""

from __future__ import annotations

import time
from collections.abc import Iterator
from uuid import UUID

import pytest

from pulse.job import Job, Status
from tests.support.servers.postgres import Postgres
from tests.support.systems.system_kit import END_S, Jobs, Whole, measured, place
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system]

BUSY_S = 1.0  # what a step may take longer because others use the processors
both_backends = pytest.mark.parametrize("topic", ["default", "trio"])  # a pool of each serves one of them


@pytest.fixture(scope="module")
def whole(server: Postgres) -> Iterator[Whole]:
    with server.database() as dsn, place(dsn) as whole:
        whole.start()
        pools = [
            whole.pool("--topic", "default", "--concurrency", "20", wait=False),
            whole.pool("--backend", "trio", "--topic", "trio", wait=False),
            whole.pool("--topic", "solo", "--concurrency", "1", wait=False),
        ]
        until(lambda: all(map(whole.is_connected, pools)), "the pools connect")
        workers = [pool.workers() for pool in pools]
        yield whole
        assert [pool.workers() for pool in pools] == workers


@pytest.fixture
def jobs(whole: Whole) -> Jobs:
    return whole.jobs()


class TestResults:
    @pytest.mark.rest
    @both_backends
    @pytest.mark.parametrize("name", ["mark", "mark-plain"])
    def test_args_and_results(self, jobs: Jobs, name: str, topic: str) -> None:
        given = {"text": "ä\n\U0001f600", "number": 1.5, "deep": [{"a": None}, True], "empty": {}}
        ended = jobs.wait(jobs.submit(name, given, topic=topic))
        assert (ended.args, ended.result, ended.attempts) == (given, given, 1)
        assert (ended.last_error, ended.history) == (None, ())

    def test_each_run_says_where_it_ran(self, whole: Whole, jobs: Jobs) -> None:
        """A completed job, and after a retry its history: worker, process, start and duration."""
        job = jobs.submit("mark")
        first = jobs.wait(job)
        assert first.process is not None
        assert first.process.pid == whole.wait_entry(job).pid
        assert first.took_s is not None
        assert 0 <= first.took_s < END_S
        jobs.client.retry(job)
        second = until(
            lambda: (one := jobs.get(job)).attempts == 2 and one.status is Status.COMPLETED and one, "it again"
        )
        assert isinstance(second, Job)
        (run,) = second.history
        assert (run.outcome, run.attempt, run.worker, run.started_at, run.ended_at) == (
            "completed", 1, first.ran_by, first.started_at, first.completed_at
        )  # fmt: skip

    def test_the_trio_pool_runs_on_trio(self, jobs: Jobs) -> None:
        """With --backend trio handlers run on no asyncio loop; a handler's own topic gets its jobs."""
        ended = jobs.wait(jobs.submit("mark-trio"))
        assert (ended.topic, ended.result) == ("trio", "no asyncio")

    def test_a_result_of_two_megabytes(self, jobs: Jobs) -> None:
        assert jobs.wait(jobs.submit("return-text", {"size": 2_000_000})).result == "x" * 2_000_000

    @both_backends
    def test_progress_is_visible_while_it_runs(self, whole: Whole, jobs: Jobs, topic: str) -> None:
        """The job shows its progress before it ends, and the context is right."""
        gate = whole.gate(f"tell-{topic}")
        job = jobs.submit("tell", {"gate": str(gate)}, topic=topic, timeout_s=60)
        running = until(lambda: (seen := jobs.get(job)).progress and seen, "progress")
        assert isinstance(running, Job)
        assert running.status is Status.RUNNING
        assert running.progress == {"value": 0.5, "text": "half way"}
        gate.touch()
        assert jobs.wait(job).result == {"name": "tell", "topic": topic, "has_deadline": True}


class TestOtherEndings:
    def test_back_off_and_dead_letter(self, whole: Whole, jobs: Jobs) -> None:
        """It is tried again after 1 s; with the budget spent the last error is kept, and an operator can revive it."""
        job = jobs.submit("fail", {"text": "always"}, max_attempts=2)
        dead = jobs.wait(job, "DEAD_LETTERED")
        assert (dead.attempts, [entry.outcome for entry in dead.history]) == (2, ["error", "error"])
        assert dead.last_error is not None
        assert dead.last_error.startswith("ValueError: always\n")
        assert "raise ValueError(text)" in dead.last_error
        assert 1.0 <= whole.wait_entry(job, attempt=2).at_s - whole.wait_entry(job, "broken").at_s <= 1.0 + BUSY_S
        assert jobs.client.retry(job).done == (job,)
        whole.wait_entry(job, attempt=3)
        assert jobs.wait(job, "RETRYING").uncharged == 2


class TestRouting:
    def test_pause_and_resume(self, whole: Whole, jobs: Jobs) -> None:
        """A paused topic starts nothing, running jobs and other topics go on; resumed, it starts at once."""
        gate = whole.gate("paused")
        running = jobs.submit("hold", {"gate": str(gate)}, topic="solo")
        whole.wait_entry(running)
        assert jobs.client.pause("solo", "maintenance")["topics"]
        job = jobs.submit("mark", topic="solo")
        gate.touch()
        assert jobs.wait(running).attempts == 1
        jobs.wait(jobs.submit("mark", delay_s=1.2))  # as long as two polls of a worker with room
        assert jobs.get(job).status is Status.PENDING
        resumed_s = time.monotonic()
        jobs.client.resume("solo")
        assert measured("resume to the start", whole.wait_entry(job).at_s - resumed_s) <= BUSY_S
        assert jobs.wait(job).attempts == 1

    @both_backends
    def test_cancel(self, whole: Whole, jobs: Jobs, topic: str) -> None:
        """A running job is CANCELED at once and its async handler stopped; one that waits never starts."""
        gate = str(whole.gate("never"))
        running = jobs.submit("hold", {"gate": gate}, topic=topic)
        waiting = jobs.submit("hold", {"gate": gate}, topic=topic, delay_s=60)
        whole.wait_entry(running)
        canceled_s = time.monotonic()
        assert set(jobs.client.cancel(running, waiting).done) == {running, waiting}
        assert [jobs.get(job).status for job in (running, waiting)] == [Status.CANCELED] * 2
        broken = whole.wait_entry(running, "broken")
        assert broken.more["cancelled"]
        assert measured("cancel to the handler's end", broken.at_s - canceled_s) <= BUSY_S
        until(lambda: running not in held_by_workers(whole), "its place is free")
        assert whole.entries(waiting) == []


def held_by_workers(whole: Whole) -> set[UUID]:
    return {
        UUID(bytes=bytes(job)) if isinstance(job, bytes) else UUID(str(job))
        for row in whole.connected()
        for job in row["running"]
    }
