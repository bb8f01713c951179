"""Batches through the whole system: what becomes of a hundred jobs of which one is bad, or kills the process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from pulse.job import Status
from tests.support.servers.postgres import Postgres
from tests.support.systems.system_kit import Jobs, Whole, place
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system]

APP = "tests.support.apps.batch_app:app"


@pytest.fixture(scope="module")
def whole(newest_server: Postgres) -> Iterator[Whole]:
    with newest_server.database() as dsn, place(dsn) as whole:
        whole.start()
        whole.pool("--topic", "hundred", "--concurrency", "2", app=APP)
        whole.pool("--topic", "poisonous", "--concurrency", "1", app=APP)  # else a neighbour would die with it
        yield whole


@pytest.fixture
def jobs(whole: Whole) -> Jobs:
    return whole.jobs()


def submit(jobs: Jobs, name: str, directory: Path, numbers: range, *, bad: int, **more: object) -> list[UUID]:
    return jobs.client.submit_many(
        [
            {
                "name": name,
                "topic": name,
                "args": {"number": one, "directory": str(directory), "fails": one == bad, **more},
            }
            for one in numbers
        ]
    )


def calls(directory: Path) -> list[list[str]]:
    """The jobs of each call, as number/attempt, the oldest call first."""
    return [one.read_text().split() for one in sorted(directory.glob("call-*")) if one.suffix != ".part"]


@pytest.mark.rest
def test_one_bad_job_among_a_hundred(whole: Whole, jobs: Jobs, tmp_path: Path) -> None:
    """A process that runs two handlers at once holds them all; the bad one is tried again, alone."""
    ids = submit(jobs, "hundred", tmp_path, range(100), bad=57, then="go")
    until(lambda: len(calls(tmp_path)) == 1, "the call")
    assert calls(tmp_path) == [[f"{number}/1" for number in range(100)]]
    assert Counter(jobs.get(one).status for one in ids) == {Status.RUNNING: 100}
    (worker,) = [one for one in whole.connected() if one["topics"] == ["hundred"]]
    assert (worker["started"], worker["taken"], worker["capacity"]) == (100, 1, 101)
    (tmp_path / "go").touch()
    for number, one in enumerate(ids):
        if number != 57:
            ended = jobs.wait(one)
            assert (ended.result, ended.attempts) == (number, 1)
    failed = jobs.wait(ids[57], "RETRYING", "RUNNING", "DEAD_LETTERED")
    assert (failed.last_error or "").startswith("ValueError: order 57")
    until(lambda: len(calls(tmp_path)) > 1, "the next try")
    assert calls(tmp_path)[1] == ["57/2"]
    jobs.client.cancel(ids[57])


@pytest.mark.rest
def test_a_job_that_kills_its_process_is_found_by_itself(jobs: Jobs, tmp_path: Path) -> None:
    """All that ran with it are charged a crash, once; then each runs alone, and only the culprit dies again."""
    ids = submit(jobs, "poisonous", tmp_path, range(4), bad=2)
    for number, one in enumerate(ids):
        ended = jobs.wait(one, "COMPLETED", "DEAD_LETTERED")
        assert ended.status == ("DEAD_LETTERED" if number == 2 else "COMPLETED")
        assert ended.crashes == (3 if number == 2 else 1)
        outcomes = [entry.outcome for entry in ended.history]
        assert outcomes == ["crashed"] * (3 if number == 2 else 1)
    first, *later = calls(tmp_path)
    assert first == ["0/1", "1/1", "2/1", "3/1"]
    assert sorted(later) == [["0/2"], ["1/2"], ["2/2"], ["2/3"], ["3/2"]]


def test_one_of_a_running_batch_is_canceled(jobs: Jobs, tmp_path: Path) -> None:
    """Its row is canceled at once, and what its handler still reports changes nothing."""
    ids = submit(jobs, "hundred", tmp_path, range(100), bad=-1, then="go")
    until(lambda: len(calls(tmp_path)) == 1, "the call")
    jobs.client.cancel(ids[0])
    assert jobs.get(ids[0]).status is Status.CANCELED
    (tmp_path / "go").touch()
    assert [jobs.wait(one).result for one in ids[1:]] == list(range(1, 100))
    canceled = jobs.get(ids[0])
    assert (canceled.status, canceled.result, canceled.attempts) == (Status.CANCELED, None, 1)
