"""What handlers can do and ask for, through the whole system, from the client's submit to the row in the database."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from uuid import UUID

import pytest

from pulse.job import Job, Status
from tests.process.system_kit import Jobs, Whole, measured, place, since
from tests.support.postgres import Postgres
from tests.support.system import until

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system]

BUSY_S = 1.0  # what a step may take longer because others use the processors
both_backends = pytest.mark.parametrize("topic", ["default", "trio"])  # a pool of each serves one of them


@pytest.fixture(scope="module")
def whole(server: Postgres) -> Iterator[Whole]:
    """A system with three pools: asyncio, trio, and one that runs one job at a time; none may lose a process."""
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
    """A client."""
    return whole.jobs()


class TestResults:
    """Handlers that end well."""

    @both_backends
    @pytest.mark.parametrize("name", ["mark", "mark-plain"])
    def test_args_and_results(self, jobs: Jobs, name: str, topic: str) -> None:
        """Async and plain handlers get the args as keywords; what they return is the result, by the letter."""
        given = {"text": "ä\n\U0001f600", "number": 1.5, "deep": [{"a": None}, True], "empty": {}}
        ended = jobs.wait(jobs.submit(name, given, topic=topic))
        assert (ended.args, ended.result, ended.attempts) == (given, given, 1)
        assert (ended.last_error, ended.history) == (None, ())

    def test_the_trio_pool_runs_on_trio(self, jobs: Jobs) -> None:
        """With --backend trio handlers run on no asyncio loop; a handler's own topic is where its jobs go."""
        ended = jobs.wait(jobs.submit("mark-trio"))
        assert (ended.topic, ended.result) == ("trio", "no asyncio")

    def test_a_result_of_two_megabytes(self, jobs: Jobs) -> None:
        """It is stored and comes back whole."""
        ended = jobs.wait(jobs.submit("return-text", {"size": 2_000_000}))
        assert ended.result == "x" * 2_000_000

    @both_backends
    def test_progress_is_visible_while_it_runs(self, whole: Whole, jobs: Jobs, topic: str) -> None:
        """What a handler tells of its progress is in the job before it ends, and what the context knows is right."""
        gate = whole.gate(f"tell-{topic}")
        job = jobs.submit("tell", {"gate": str(gate)}, topic=topic, timeout_s=60)
        running = until(lambda: (seen := jobs.get(job)).progress and seen, "progress")
        assert isinstance(running, Job)
        assert running.status is Status.RUNNING
        assert running.progress == {"value": 0.5, "text": "half way"}
        gate.touch()
        assert jobs.wait(job).result == {"name": "tell", "topic": topic, "has_deadline": True}


class TestOtherEndings:
    """Handlers that want something else, or fail."""

    @both_backends
    def test_snooze(self, whole: Whole, jobs: Jobs, topic: str) -> None:
        """It is called again after that time; nobody is charged for it."""
        job = jobs.submit("snooze-once", {"seconds": 0.4}, topic=topic)
        ended = jobs.wait(job)
        assert (ended.result, ended.attempts, ended.uncharged) == ("awake", 2, 1)
        assert [(entry.attempt, entry.outcome) for entry in ended.history] == [(1, "snoozed")]
        assert 0.4 <= whole.wait_entry(job, attempt=2).at_s - whole.wait_entry(job, "end").at_s <= 0.4 + BUSY_S

    def test_retry_after(self, whole: Whole, jobs: Jobs) -> None:
        """It is tried again after the time that it asked for, and charged."""
        job = jobs.submit("retry-once", {"seconds": 0.3})
        ended = jobs.wait(job)
        assert (ended.result, ended.attempts, ended.uncharged) == ("served", 2, 0)
        assert [(entry.outcome, entry.error) for entry in ended.history] == [("retry", "rate limited")]
        assert 0.3 <= whole.wait_entry(job, attempt=2).at_s - whole.wait_entry(job, "broken").at_s <= 0.3 + BUSY_S

    def test_discard(self, jobs: Jobs) -> None:
        """It goes to the dead letters at once, with its reason, whatever is left of the budget."""
        ended = jobs.wait(jobs.submit("discard", max_attempts=9), "DEAD_LETTERED")
        assert (ended.attempts, ended.last_error) == (1, "no such customer")
        assert [entry.outcome for entry in ended.history] == ["discarded"]

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

    @both_backends
    def test_timeout(self, whole: Whole, jobs: Jobs, topic: str) -> None:
        """An async handler is interrupted after timeout_s, and the attempt failed for that reason."""
        gate = str(whole.gate("never"))
        job = jobs.submit("hold", {"gate": gate}, timeout_s=0.3, max_attempts=1, topic=topic)
        dead = jobs.wait(job, "DEAD_LETTERED")
        assert dead.last_error is not None
        assert dead.last_error.startswith("timed out after 0.3 s")
        assert [entry.outcome for entry in dead.history] == ["timeout"]
        assert 0.3 <= whole.wait_entry(job, "broken").at_s - whole.wait_entry(job).at_s <= 0.3 + BUSY_S

    @both_backends
    @pytest.mark.parametrize(
        ("name", "args", "error"),
        [
            ("exit", {}, "SystemExit: the handler called sys.exit(3)"),
            ("exit-plain", {}, "SystemExit: the handler called sys.exit(3)"),
            ("unprintable", {}, "UnprintableError: <unprintable: its str() raises RuntimeError>"),
            ("return-set", {}, "result is not JSON: Object of type set is not JSON serializable"),
            ("return-nan", {}, "result is not JSON: Out of range float values are not JSON compliant"),
            ("return-text", {"size": 1, "code_point": 0}, "result is not storable: it contains a NUL character"),
            ("return-text", {"size": 1, "code_point": 0xD800}, "result is not storable: it contains a lone surrogate"),
            ("return-text", {"size": 9_000_000}, "too large: result of about 90"),
            ("fail", {"text": "a\x01b"}, "ValueError: a\x01b"),
            ("hold", {}, "TypeError: hold() missing 1 required positional argument: 'gate'"),
        ],
    )
    def test_one_clear_reason(self, jobs: Jobs, name: str, args: dict[str, object], error: str, topic: str) -> None:
        """Whatever a handler does wrong is the end of that attempt alone, and last_error begins with what it was."""
        dead = jobs.wait(jobs.submit(name, args, max_attempts=1, topic=topic), "DEAD_LETTERED")
        assert dead.last_error is not None
        assert dead.last_error.partition("\n")[0].startswith(error)
        assert [(entry.attempt, entry.outcome) for entry in dead.history] == [(1, "error")]

    def test_an_error_with_what_cannot_be_stored(self, jobs: Jobs) -> None:
        """NUL and lone surrogates in an error's text are replaced, so that the report itself does not fail."""
        dead = jobs.wait(jobs.submit("fail-unstorable", max_attempts=1), "DEAD_LETTERED")
        assert dead.last_error is not None
        assert dead.last_error.startswith("ValueError: a\N{REPLACEMENT CHARACTER}b")
        assert "\0" not in dead.last_error


class TestRouting:
    """Which job runs where and when."""

    def test_a_name_that_nobody_serves(self, whole: Whole, jobs: Jobs) -> None:
        """It waits, says so in last_error, charges nobody, and runs once a worker comes that names it."""
        job = jobs.submit("nothing")
        waiting = until(lambda: (seen := jobs.get(job)).last_error and seen, "it says so")
        assert isinstance(waiting, Job)
        assert waiting.last_error == 'no handler named "nothing" on topic "default"'
        assert (waiting.status, waiting.attempts - waiting.uncharged) == (Status.PENDING, 0)
        started_s = time.monotonic()
        pool = whole.pool("--topic", "default", app="tests.support.worker_app:app")
        ended = jobs.wait(job)
        measured("a worker that serves the name to its job completed", since(started_s))
        assert (ended.result, ended.attempts - ended.uncharged) == (None, 1)
        assert pool.stop() == 0

    def test_priorities_then_first_in_first_out(self, whole: Whole, jobs: Jobs) -> None:
        """A pool of one takes the highest priority first, and within one the order of submission."""
        jobs.client.pause("solo")
        order = [(0, "a"), (5, "b"), (-5, "c"), (5, "d"), (0, "e"), (100, "f"), (-100, "g"), (0, "h")]
        ids = {text: jobs.submit("mark", {"text": text}, topic="solo", priority=priority) for priority, text in order}
        jobs.client.resume("solo")
        for job in ids.values():
            jobs.wait(job)
        started = [entry.job for entry in whole.entries(event="start") if entry.job in ids.values()]
        assert started == [ids[text] for text in "fbdaehcg"]

    def test_many_of_one_submit_keep_their_order(self, whole: Whole, jobs: Jobs) -> None:
        """A bulk submit runs in the order of its list."""
        ids = jobs.client.submit_many([{"name": "mark", "args": {"n": n}, "topic": "solo"} for n in range(50)])
        jobs.wait(ids[-1])
        assert [entry.job for entry in whole.entries(event="start") if entry.job in ids] == ids

    def test_delay(self, whole: Whole, jobs: Jobs) -> None:
        """A delayed job starts at its time, neither before nor much later."""
        job = jobs.submit("mark", delay_s=0.7)
        assert jobs.get(job).status is Status.PENDING
        ended = jobs.wait(job)
        assert ended.started_at is not None
        assert ended.next_run_at is not None
        late_s = measured("start behind its delay", (ended.started_at - ended.next_run_at).total_seconds())
        assert 0 <= late_s <= BUSY_S

    def test_pause_and_resume(self, whole: Whole, jobs: Jobs) -> None:
        """A paused topic starts nothing, what runs in it goes on, other topics too; resumed, it starts at once."""
        gate = whole.gate("paused")
        running = jobs.submit("hold", {"gate": str(gate)}, topic="solo")
        whole.wait_entry(running)
        gate_state = jobs.client.pause("solo", "maintenance")
        assert gate_state["topics"]
        job = jobs.submit("mark", topic="solo")
        gate.touch()
        assert jobs.wait(running).attempts == 1
        jobs.wait(jobs.submit("mark", delay_s=1.2))  # as long as two polls of a worker with room
        assert jobs.get(job).status is Status.PENDING
        resumed_s = time.monotonic()
        jobs.client.resume("solo")
        started_s = whole.wait_entry(job).at_s
        assert measured("resume to the start", started_s - resumed_s) <= BUSY_S
        assert jobs.wait(job).attempts == 1

    def test_pause_of_everything(self, whole: Whole, jobs: Jobs) -> None:
        """The global gate holds every topic; submits and results go on meanwhile."""
        gate = whole.gate("all-paused")
        running = jobs.submit("hold", {"gate": str(gate)})
        whole.wait_entry(running)
        jobs.client.pause()
        try:
            held = [jobs.submit("mark"), jobs.submit("mark-trio"), jobs.submit("mark", topic="solo")]
            gate.touch()
            assert jobs.wait(running).attempts == 1
            assert [jobs.get(job).status for job in held] == [Status.PENDING] * 3
        finally:
            jobs.client.resume()
        for job in held:
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
    """What the connected workers hold."""
    return {
        UUID(bytes=bytes(job)) if isinstance(job, bytes) else UUID(str(job))
        for row in whole.connected()
        for job in row["running"]
    }


class TestSchedules:
    """Schedules, from their creation to the handler that is told its occurrence."""

    @pytest.mark.parametrize("options", [{"every_s": 1.0}, {"cron": "* * * * * *"}])
    def test_recurring(self, jobs: Jobs, options: dict[str, object]) -> None:
        """Every second fires once, and the handler's context has the occurrence; deleted, it fires no more."""
        schedule = jobs.client.schedules_create("occur", **options)  # type: ignore[arg-type]
        fired = until(lambda: len(found := fired_by(jobs, schedule.id)) >= 2 and found, "two occurrences")
        jobs.client.schedules_delete(schedule.id)
        assert isinstance(fired, list)
        ended = [jobs.wait(job.id) for job in fired]
        for job in ended:
            assert job.occurrence is not None
            assert job.started_at is not None
            assert job.result == job.occurrence.isoformat()
            assert timedelta(0) <= job.started_at - job.occurrence <= timedelta(seconds=BUSY_S)
            measured(
                f"start behind the occurrence ({schedule.kind})", (job.started_at - job.occurrence).total_seconds()
            )
        gaps = [
            later.occurrence - earlier.occurrence
            for earlier, later in pairwise(ended)
            if later.occurrence and earlier.occurrence
        ]
        assert gaps == [timedelta(seconds=1)] * (len(ended) - 1)

    def test_once(self, jobs: Jobs) -> None:
        """A schedule for one moment fires then, once, and has no next occurrence."""
        moment = datetime.now(UTC) + timedelta(seconds=0.8)
        schedule = jobs.client.schedules_create("occur", run_at=moment)
        (fired,) = until(lambda: fired_by(jobs, schedule.id), "it fires")
        ended = jobs.wait(fired.id)
        assert ended.result == moment.isoformat()
        after = jobs.client.schedules_get(schedule.id)
        assert (after.next_run_at, after.last_run_at) == (None, moment)
        assert len(fired_by(jobs, schedule.id)) == 1


def fired_by(jobs: Jobs, schedule: UUID) -> list[Job]:
    """The jobs of a schedule, oldest first."""
    found = jobs.client.jobs(schedule=schedule).jobs
    return sorted(found, key=lambda job: job.occurrence or datetime.max.replace(tzinfo=UTC))
