"""Zygotes that die with their cells, and how the job that kills them is found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil
import pytest

from tests.pulse.worker.isolation.test_ending_system import pid_in
from tests.pulse.worker.isolation.test_run_system import APP, run, zygote_of
from tests.support.servers.fake_server import Peer, job, pair
from tests.support.systems.worker_kit import WorkerProcess, args, at_work
from tests.support.waiting import is_alive, until

pytestmark = [pytest.mark.process, pytest.mark.timed]

WITH_ZYGOTE: Final = "worker process died: SIGKILL (with the process that had made it)"


@pytest.fixture
def careful(tmp_path: Path) -> Iterator[tuple[Peer, WorkerProcess]]:
    with at_work("--concurrency", "4", app=APP) as (child, pool):
        jobs = [job("wait", args(gate=tmp_path / "none", started=tmp_path / f"first-{n}")) for n in range(2)]
        child.assign(jobs)
        for n in range(2):
            pid_in(tmp_path / f"first-{n}")
        zygote_of(pool).kill()
        assert [one[2] for one in child.take_results(2)] == ["release"] * 2
        yield child, pool


def test_what_cells_had_started_ends_with_their_zygote(tmp_path: Path) -> None:
    """It must not write beside the next attempt; sessions of its own and forks do not help it, and all others live."""
    with at_work(app=APP) as (child, pool):
        (host,) = pool.children()
        started = tmp_path / "started"
        child.assign([job("spawn", args(started=started, end="wait"))])
        until(lambda: started.exists() and started.read_text(), "the process that it starts")
        left = psutil.Process(int(started.read_text()))
        (fork,) = until(left.children, "its fork")
        zygote_of(pool).kill()
        (result,) = child.take_results(1)
        assert result[2] == "crash"
        assert not is_alive(left.pid)
        assert not is_alive(fork.pid)
        until(lambda: pool.children() == [host], "the zygote leaves the table of processes")


def test_one_that_kills_its_group(tmp_path: Path) -> None:
    with at_work(app=APP) as (child, pool):
        (host,) = pool.children()
        gate = tmp_path / "gate"
        neighbour = job("wait", args(gate=gate, started=tmp_path / "started"))
        child.assign([neighbour])
        pid_in(tmp_path / "started")
        zygote = zygote_of(pool)
        assert run(child, job("kill-its-group"))[:2] == ["crash", ["worker process died: SIGKILL", -9]]
        gate.touch()
        assert child.take_results(1)[0][:4] == [*pair(neighbour), "ok", '"through"']
        assert pool.children() == [host]
        assert zygote_of(pool) == zygote


def test_orphans_that_end_by_themselves_are_buried(tmp_path: Path) -> None:
    """A job that runs for days may leave any number: none stays a zombie."""
    with at_work(app=APP) as (child, _):
        gate, started = tmp_path / "gate", tmp_path / "started"
        one = job("orphan", args(gate=gate, started=started))
        child.assign([one])
        until(started.exists, "its orphans")
        pids = [int(pid) for pid in started.read_text().split()]
        until(lambda: not any(map(psutil.pid_exists, pids)), "their burial")
        assert child.count("report") == 0
        gate.touch()
        assert child.take_results(1)[0][:3] == [*pair(one), "ok"]


def test_jobs_that_kill_their_zygote_together_are_charged(tmp_path: Path) -> None:
    """The first time the culprit is unknown; then each of them is alone, and others go on beside them."""
    with at_work(app=APP) as (child, pool):
        gate = tmp_path / "gate"
        open_ = [job("kill-its-parent-at", args(gate=gate, started=tmp_path / f"started-{n}")) for n in range(2)]
        child.assign(open_)
        for n in range(2):
            pid_in(tmp_path / f"started-{n}")
        gate.touch()
        assert [one[2] for one in child.take_results(2)] == ["release"] * 2
        charged: list[bytes] = []
        rounds = 0
        while len(charged) < 2:
            rounds += 1
            open_ = [[one[0], one[1] + 1, *one[2:]] for one in open_ if one[0] not in charged]
            child.assign(open_)
            crashed = [one for one in child.take_results(len(open_)) if one[2] == "crash"]
            assert all(one[3] == [WITH_ZYGOTE, -9] for one in crashed)
            charged += [one[0] for one in crashed]
        assert rounds <= 2
        assert '"given_back": 2' in pool.stderr
        assert pool.stderr.count('"event": "zygote_died"') == 3


def test_after_that_one_runs_at_a_time(careful: tuple[Peer, WorkerProcess], tmp_path: Path) -> None:
    """A job named with a running one is given back when its turn does not come; a later one is not named."""
    child, _ = careful
    gate = tmp_path / "gate"
    jobs = [job("wait", args(gate=gate, started=tmp_path / f"started-{n}")) for n in range(4)]
    child.assign(jobs[:3])
    pid_in(tmp_path / "started-0")
    child.send("stop", None, {"jobs": [[*pair(jobs[1]), "canceled"]]})
    results = {one[0]: one[2:] for one in child.take_results(2)}
    assert results == {jobs[1][0]: ["release", None, {"stopped": "canceled"}], jobs[2][0]: ["release", None]}
    assert not (tmp_path / "started-1").exists()
    assert not (tmp_path / "started-2").exists()
    child.assign([jobs[3]])
    assert run(child, job("here"))[0] == "ok"
    assert pair(jobs[3]) not in [one for heard in child.log if heard.kind == "started" for one in heard.body["jobs"]]
    gate.touch()
    assert {one[0] for one in child.take_results(2)} == {jobs[0][0], jobs[3][0]}


@pytest.mark.rest
def test_those_that_end_soon_follow_each_other(careful: tuple[Peer, WorkerProcess], tmp_path: Path) -> None:
    """Each gets its turn; and after twenty that ended well, several run at once as ever."""
    child, _ = careful
    child.assign([job("who") for _ in range(20)])
    assert [one[2] for one in child.take_results(20)] == ["ok"] * 20
    gate = tmp_path / "gate"
    jobs = [job("wait", args(gate=gate, started=tmp_path / f"started-{n}")) for n in range(2)]
    child.assign(jobs)
    for n in range(2):
        pid_in(tmp_path / f"started-{n}")
    gate.touch()
    assert [one[2] for one in child.take_results(2)] == ["ok"] * 2


@pytest.mark.rest
def test_a_drain_gives_back_what_waits_for_its_turn(careful: tuple[Peer, WorkerProcess], tmp_path: Path) -> None:
    child, pool = careful
    gate = tmp_path / "gate"
    jobs = [job("wait", args(gate=gate, started=tmp_path / f"started-{n}")) for n in range(3)]
    child.assign(jobs)
    pid_in(tmp_path / "started-0")
    pool.terminate()
    child.take("capacity")
    assert [one[2] for one in child.take_results(2)] == ["release"] * 2
    gate.touch()
    assert child.take_results(1)[0][:3] == [*pair(jobs[0]), "ok"]
    assert pool.wait() == 0
