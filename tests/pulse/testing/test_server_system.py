"""The fixture ``pulse_server``: a real server that is empty for each test, whose time passes when the test says so."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import psycopg
import pytest

import pulse
from pulse.testing import Inline, PulseServer, running_pulse
from tests.support.apps.kit_app import app, ends, hang, report, slow
from tests.support.checking.every import every
from tests.support.servers.embedded_kit import needs_postgres
from tests.support.servers.postgres import Postgres
from tests.support.waiting import is_alive, until

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system, needs_postgres]

WITHIN_S: Final = 60.0


@pytest.fixture(scope="session")
def pulse_app() -> str:
    return "tests.support.apps.kit_app:app"


def _started(server: PulseServer, job_id: UUID) -> None:
    """Wait until its handler, `hang`, runs: a job that is RUNNING may not have reached its process."""
    until(lambda: server.client.get(job_id).progress is not None, "it runs", WITHIN_S)


@pytest.mark.rest
def test_jobs_run_on_a_real_server(pulse_server: PulseServer) -> None:
    pulse_server.client.submit(pulse.call(ends, "nothing"))
    with pytest.warns(pulse.UnhandledNameWarning):
        pulse_server.client.submit("bill", {"order": 7})  # of another application: it waits
    pulse_server.run_until_idle()
    (job,) = pulse_server.submitted(ends, kind="nothing")
    assert (job.status, job.result) == ("COMPLETED", 1)
    assert pulse_server.told().splitlines()[0] == "ends(kind='nothing') COMPLETED"
    assert repr(pulse_server.submitted("resize")) == (
        "<no job resize(), but ends(kind='nothing') COMPLETED, bill(order=7) PENDING>"
    )


@pytest.mark.rest
def test_in_memory_jobs_end_as_on_the_server(pulse_server: PulseServer) -> None:
    def history(job: pulse.Job) -> object:
        return [(one.attempt, one.outcome, (one.error or "").partition("\n")[0], one.progress) for one in job.history]

    def facts(job: pulse.Job) -> dict[str, Any]:
        return {
            "status": job.status, "attempts": job.attempts, "uncharged": job.uncharged, "result": job.result,
            "error": (job.last_error or "").partition("\n")[0], "progress": job.progress, "topic": job.topic,
            "max_attempts": job.max_attempts, "history": history(job),
        }  # fmt: skip

    def check(call: pulse.Call[Any]) -> None:
        job_id = pulse_server.client.submit(call)
        pulse_server.run_until_idle()
        while not (there := pulse_server.client.get(job_id)).is_terminal:
            pulse_server.advance(60)
            pulse_server.run_until_idle()
        assert facts(there) == facts(Inline(app).run(call))

    calls: list[pulse.Call[Any]] = [
        pulse.call(ends, kind, times)
        for kind in ("nothing", "snooze", "retry", "error", "disk", "key", "discard", "exit")
        for times in (1, 3)
    ]
    every([*calls, pulse.call(slow), pulse.Call("ends", '{"kind": 1}'), pulse.Call("ends", "{}")], check)


def test_time_passes_for_delays_back_off_and_expiry(pulse_server: PulseServer) -> None:
    client = pulse_server.client
    delayed = client.submit(ends, {"kind": "nothing"}, delay_s=7200)
    failing = client.submit(ends, {"kind": "error"})
    late = client.submit(ends, {"kind": "nothing"}, delay_s=7240, expires_in_s=7250)
    pulse_server.run_until_idle()
    assert [client.get(one).status for one in (delayed, failing, late)] == ["PENDING", "RETRYING", "PENDING"]
    pulse_server.advance(7)
    pulse_server.run_until_idle()
    assert [client.get(one).status for one in (delayed, failing, late)] == ["PENDING", "COMPLETED", "PENDING"]
    client.pause("default")
    pulse_server.advance(hours=2)
    assert client.get(delayed).next_run_at < datetime.now(UTC)  # type: ignore[operator]  # it has one
    client.resume("default")
    pulse_server.run_until_idle()
    assert client.get(delayed).status == "COMPLETED"
    client.pause("default")
    pulse_server.advance(minutes=1)
    until(lambda: client.get(late).status == "DEAD_LETTERED", "the watchdog expires it", WITHIN_S)


def test_what_becomes_due_together_starts_in_the_order_of_its_times(pulse_server: PulseServer) -> None:
    client = pulse_server.client
    client.pause()
    ids = [client.submit(ends, {"kind": "nothing"}, delay_s=delay_s) for delay_s in (30, 10, 20)]
    pulse_server.advance(40)
    due = [client.get(one).next_run_at for one in ids]
    assert due[1] < due[2] < due[0]  # type: ignore[operator]  # all have one


def test_schedules_occur_at_their_times_and_only_when_the_time_passes(pulse_server: PulseServer) -> None:
    pulse_server.advance(0)
    assert not pulse_server.submitted()
    begin = datetime.now(UTC)
    own = pulse_server.client.schedules_create(ends, {"kind": "nothing"}, every_s=10_000)
    pulse_server.advance(hours=2)
    pulse_server.advance(hours=2)
    hours = [job.occurrence for job in pulse_server.submitted(report) if job.occurrence is not None]
    expected = begin.replace(minute=0, second=0, microsecond=0)
    hourly = [expected + timedelta(hours=hour) for hour in range(1, 5)]
    assert [hour for hour in hours if hour.minute == 0] == hourly
    assert all(
        job.status == "COMPLETED" and job.result == str(job.occurrence) for job in pulse_server.submitted(report)
    )
    assert [job.schedule_id for job in pulse_server.submitted(ends)] == [own.id]


def test_a_killed_worker_is_replaced_and_its_job_runs_again(pulse_server: PulseServer) -> None:
    job_id = pulse_server.client.submit(hang)
    _started(pulse_server, job_id)
    pid = pulse_server.kill_worker()
    pulse_server.run_until_idle()
    job = pulse_server.client.get(job_id)
    assert (job.status, job.attempts, [one.outcome for one in job.history]) == ("COMPLETED", 2, ["crashed"])
    assert not is_alive(pid)


@pytest.mark.rest
def test_a_frozen_worker_loses_its_jobs(pulse_server: PulseServer) -> None:
    job_id = pulse_server.client.submit(hang)
    _started(pulse_server, job_id)
    pulse_server.freeze_worker()
    pulse_server.run_until_idle()
    pulse_server.advance(1)
    pulse_server.run_until_idle()
    job = pulse_server.client.get(job_id)
    assert (job.attempts, [one.outcome for one in job.history]) == (2, ["lease_expired"])


def test_time_does_not_go_back(pulse_server: PulseServer) -> None:
    with pytest.raises(pulse.BadRequestError, match="advance: -60 s would be back"):
        pulse_server.advance(-60)


def test_the_app_of_a_server_is_one() -> None:
    wrong: Any = None
    with pytest.raises(pulse.HandlerError, match="pulse_server: app is None; MODULE:APP, or a"), running_pulse(wrong):
        pytest.fail("it has started")


@pytest.mark.rest
def test_it_outlives_the_thread_that_started_it() -> None:
    """As the thread of a fixture may end before the tests do."""
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(1) as thread:
        server = thread.submit(stack.enter_context, running_pulse("tests.support.apps.kit_app:app")).result()
        thread.shutdown()
        server.client.submit(ends, {"kind": "ok"})
        server.run_until_idle(WITHIN_S)
        assert [job.result for job in server.submitted(ends)] == [1]


def test_what_does_not_end_is_named(pulse_server: PulseServer) -> None:
    pulse_server.client.submit(hang, {"first": 5})
    with pytest.raises(TimeoutError, match=r"(?s)after 0\.05 s:\nhang\(first=5\) (RUNNING|PENDING)"):
        pulse_server.run_until_idle(0.05)


def test_the_next_test_finds_nothing_of_the_one_before(pulse_server: PulseServer) -> None:
    client = pulse_server.client
    client.schedules_create("ends", every_s=3600)
    client.topics_set("default", max_attempts=1)
    client.pause("default", "for the test")
    client.pause()
    client.submit("ends", {"kind": "nothing"})
    client.resume()
    client.submit("hang", {"first": 9}, topic="default")
    client.resume("default")
    until(lambda: any(job.status == "RUNNING" for job in pulse_server.submitted(hang)), "it runs", WITHIN_S)
    client.pause("default")
    pid = pulse_server.freeze_worker()
    pulse_server.reset()
    assert not pulse_server.submitted()
    assert not is_alive(pid)
    gate = client.dispatch_status()
    assert (gate["paused"], gate["topics"]) == (False, {})
    assert {one.key for one in client.schedules_list().schedules} == {"hourly", "daily"}
    client.submit("ends", {"kind": "nothing"})
    pulse_server.run_until_idle()
    assert pulse_server.submitted("ends")[0].max_attempts == 3


@pytest.mark.rest
def test_a_handler_that_does_not_obey_is_killed_after_the_test(pulse_server: PulseServer) -> None:
    _started(pulse_server, pulse_server.client.submit(hang, {"first": 9}))
    pulse_server.reset()
    pulse_server.client.submit(ends, {"kind": "nothing"})
    pulse_server.run_until_idle()
    assert [job.attempts for job in pulse_server.submitted()] == [1]


def test_other_clients_find_it(pulse_server: PulseServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with pulse.Client() as client:
        client.submit("parent", {"child": "nothing", "client": str(pulse_server.runtime_dir / "pulse.sock")})
    pulse_server.run_until_idle()
    assert [job.name for job in pulse_server.submitted()] == ["parent", "ends"]


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_async_tests_have_an_async_client(anyio_backend: str, pulse_server: PulseServer) -> None:
    async with pulse_server.connect() as client:
        job_id = await client.submit(ends, {"kind": "nothing"})
        assert await client.result(job_id, int, timeout_s=WITHIN_S) == 1
    pulse_server.advance(1)


def test_its_database_is_at_hand(pulse_server: PulseServer) -> None:
    with psycopg.connect(pulse_server.dsn) as connection:
        pulse.sql.submit(connection, pulse.call(ends, "nothing"))
    pulse_server.run_until_idle()
    assert pulse_server.submitted(ends)[0].status == "COMPLETED"


@pytest.mark.rest
def test_it_works_on_a_database_of_the_tests(newest_server: Postgres) -> None:
    """It installs the schema there."""
    with newest_server.database(installed=False) as dsn, running_pulse(app, dsn=dsn) as server:
        with psycopg.connect(dsn) as connection:
            pulse.sql.submit(connection, pulse.call(ends, "nothing"))
        server.run_until_idle()
        assert (server.dsn, [job.status for job in server.submitted()]) == (dsn, ["COMPLETED"])
