"""Batches in real handler processes: one call for several jobs, each with its own start, result and end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.servers.fake_server import FakeServer, Peer, job, pair
from tests.support.systems.worker_kit import args, at_work, worker
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.timed]

APP = "tests.support.apps.batch_app:app"
both_backends = pytest.mark.parametrize("backend", ["asyncio", "trio"])
both_kinds = pytest.mark.parametrize("name", ["orders", "plain-orders"])


def order(directory: Path, number: int, name: str = "orders", **more: Any) -> list[Any]:
    options = {key: more.pop(key) for key in ("then", "fails") if key in more}
    return job(name, args(number=number, directory=directory, **options), **more)


def calls(directory: Path) -> list[str]:
    """The jobs of each call, the oldest first."""
    return [one.read_text() for one in sorted(directory.glob("call-*")) if one.suffix != ".part"]


def in_progress(directory: Path, count: int = 1) -> None:
    until(lambda: len(calls(directory)) == count, "the calls")


@both_backends
@both_kinds
def test_one_call_for_all_and_a_result_for_each(tmp_path: Path, backend: str, name: str) -> None:
    with at_work("--backend", backend, app=APP) as (child, _):
        jobs = [order(tmp_path, number, name, fails=number == 2) for number in (1, 2, 3, 4)]
        child.assign(jobs)
        assert child.take("started").body["jobs"] == [pair(one) for one in jobs]
        results = {tuple(one[:2]): one[2:4] for one in child.take_results(4)}
        assert [results[tuple(pair(one))] for one in jobs if one is not jobs[1]] == [
            ["ok", "1"],
            ["ok", "3"],
            ["ok", "4"],
        ]
        assert results[tuple(pair(jobs[1]))][0] == "error"
        assert results[tuple(pair(jobs[1]))][1].startswith("ValueError: order 2")
        assert calls(tmp_path) == ["1/1 2/1 3/1 4/1"]


def test_jobs_that_come_one_by_one_are_called_together(tmp_path: Path) -> None:
    """A batch that never fills starts when its first job has waited; what was tried before does not wait."""
    with at_work(app=APP) as (child, _):
        child.assign([order(tmp_path, 1)])
        child.assign([order(tmp_path, 2, attempt=2)])
        child.take_results(1)
        assert calls(tmp_path) == ["2/2"]
        child.assign([order(tmp_path, 3)])
        child.take_results(2)
        assert calls(tmp_path) == ["2/2", "1/1 3/1"]


def test_a_worker_asks_for_as_many_jobs_as_its_batches_hold(tmp_path: Path) -> None:
    """One place is enough for a batch, and another job still finds the other one."""
    with at_work("--concurrency", "2", app=APP) as (child, _):
        assert child.hello["capacity"] == 2
        child.assign([order(tmp_path, 1, then="go")])
        assert child.take("capacity").body == {"capacity": 5}
        child.assign([order(tmp_path, number, then="go") for number in (2, 3, 4)])
        in_progress(tmp_path)
        child.assign([single := job("single", args(directory=tmp_path, then="single"))])
        child.take("started", lambda heard: heard.body["jobs"] == [pair(single)])
        (tmp_path / "single").touch()
        assert child.take_results(1)[0][:3] == [*pair(single), "ok"]
        (tmp_path / "go").touch()
        child.take_results(4)
        assert child.take("capacity").body == {"capacity": 2}


@both_backends
def test_one_that_is_canceled_does_not_stop_the_others(tmp_path: Path, backend: str) -> None:
    with at_work("--backend", backend, app=APP) as (child, _):
        jobs = [order(tmp_path, number, then="go") for number in (1, 2, 3, 4)]
        child.assign(jobs)
        in_progress(tmp_path)
        child.send("stop", None, {"jobs": [[*pair(jobs[0]), "canceled"]]})
        child.assign([order(tmp_path, 5, attempt=2)])
        child.take_results(1)  # the order to stop came before it
        (tmp_path / "go").touch()
        results = {one[0]: one[2:] for one in child.take_results(4)}
        assert results[jobs[0][0]] == ["ok", "1", {"stopped": "canceled"}]
        assert results[jobs[1][0]] == ["ok", "2"]


@both_backends
def test_a_batch_in_which_all_are_canceled_is_interrupted(tmp_path: Path, backend: str) -> None:
    with at_work("--backend", backend, app=APP) as (child, _):
        jobs = [order(tmp_path, number, then="never") for number in (1, 2)]
        child.assign(jobs)
        in_progress(tmp_path)
        child.send("stop", None, {"jobs": [[*pair(one), "canceled"] for one in jobs]})
        assert [one[2:] for one in child.take_results(2)] == [["release", None, {"stopped": "canceled"}]] * 2


def test_a_time_limit_is_that_of_the_call(tmp_path: Path) -> None:
    with at_work(app=APP) as (child, _):
        child.assign([order(tmp_path, number, then="never", timeout_s=0.3) for number in (1, 2)])
        for result in child.take_results(2):
            assert result[2:4] == ["error", "timed out after 0.3 s"]
            assert result[4]["stopped"] == "timeout"
            assert "in gate" in result[4]["stack"]


def test_a_drain_gives_back_what_waits_and_lets_the_batch_end(tmp_path: Path) -> None:
    with at_work(app=APP) as (child, pool):
        jobs = [order(tmp_path, number, then="go") for number in (1, 2, 3, 4)]
        child.assign([*jobs, waiting := order(tmp_path, 5)])
        in_progress(tmp_path)
        pool.terminate()
        assert child.take_results(1) == [[*pair(waiting), "release", None]]
        (tmp_path / "go").touch()
        assert {one[2] for one in child.take_results(4)} == {"ok"}
        assert pool.wait() == 0


def test_what_outlasts_the_drain_is_given_back(tmp_path: Path) -> None:
    with at_work("--drain-s", "0.1", app=APP) as (child, pool):
        child.assign([order(tmp_path, number, then="never") for number in (1, 2)])
        in_progress(tmp_path)
        pool.terminate()
        assert [one[2:4] for one in child.take_results(2)] == [["release", None]] * 2


@both_kinds
def test_an_isolated_job_of_such_a_handler_is_a_batch_of_its_own(tmp_path: Path, name: str) -> None:
    with at_work(app=APP) as (child, _):
        jobs = [order(tmp_path, number, name, extra={"isolate": True}, fails=number == 2) for number in (1, 2)]
        child.assign(jobs)
        results = {one[0]: one[2:4] for one in child.take_results(2)}
        assert results[jobs[0][0]] == ["ok", "1"]
        assert results[jobs[1][0]][1].startswith("ValueError: order 2")
        assert sorted(calls(tmp_path)) == ["1/1", "2/1"]


def test_a_batch_survives_its_connection(tmp_path: Path) -> None:
    """The jobs that run and those that wait are listed in the next hello, and reported there."""
    with FakeServer() as server, worker(server, app=APP):
        child: Peer = server.wait_child()
        jobs = [order(tmp_path, number, then="go") for number in (1, 2, 3, 4)]
        child.assign([*jobs, waiting := order(tmp_path, 5)])
        in_progress(tmp_path)
        child.close()
        again = server.wait_child()
        assert sorted(again.hello["running"]) == sorted(pair(one) for one in [*jobs, waiting])
        (tmp_path / "go").touch()
        assert {one[2] for one in again.take_results(5)} == {"ok"}
        assert calls(tmp_path) == ["1/1 2/1 3/1 4/1", "5/1"]
