"""Stopping: one attempt by the server's order or its timeout, one process, the whole pool."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.servers.fake_server import FakeServer, Peer, job, pair
from tests.support.systems.worker_kit import WorkerProcess, args, at_work, hold, worker
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.timed]

both_backends = pytest.mark.parametrize("backend", ["asyncio", "trio"])


@both_backends
def test_stop_canceled(backend: str, tmp_path: Path) -> None:
    never = tmp_path / "never"
    with at_work("--backend", backend, "--concurrency", "1") as (child, _):
        queued = job("wait", args(gate=never, started=never))
        running, _ = hold(child, tmp_path, queued)
        child.send("stop", None, {"jobs": [[*pair(queued), "canceled"], [*pair(running), "canceled"]]})
        results = {one[0]: one[2:] for one in child.take_results(2)}
        assert results == {running[0]: ["release", None, {"stopped": "canceled"}], queued[0]: ["release", None]}
        assert not never.exists()


def test_stop_recall(tmp_path: Path) -> None:
    with at_work("--concurrency", "1") as (child, _):
        queued = job("nothing")
        running, gate = hold(child, tmp_path, queued)
        child.send("stop", None, {"jobs": [[*pair(running), "recall"], [*pair(queued), "recall"]]})
        assert child.take_results(1) == [[*pair(queued), "release", None]]
        gate.touch()
        assert child.take_results(1) == [[*pair(running), "ok", '"through"']]


def test_timeout_asks_a_plain_handler(tmp_path: Path) -> None:
    with at_work() as (child, _):
        asked, _ = hold(child, tmp_path, name="wait-plain", timeout_s=0.2)
        (result,) = child.take_results(1)
        assert result[:4] == [*pair(asked), "ok", '"asked to end, lease lost: False"']
        assert result[4]["stopped"] == "timeout"


@both_backends
def test_a_handler_that_survives_its_cancellation_reports_what_it_did(backend: str, tmp_path: Path) -> None:
    with at_work("--backend", backend) as (child, _):
        stubborn, gate = hold(child, tmp_path, name="stubborn")
        child.send("stop", None, {"jobs": [[*pair(stubborn), "canceled"]]})
        child.send("drain", None, {"reconnect": True})
        assert child.count("report") == 0
        gate.touch()
        (result,) = child.take_results(1)
        assert result[2:4] == ["ok", '"finished all the same"']


def end(child: Peer, pool: WorkerProcess, by: str) -> None:
    if by == "drain":
        child.send("drain", None, {"reconnect": False})
    else:
        pool.terminate()


@pytest.mark.parametrize(("by", "backend"), [("drain", "asyncio"), ("SIGTERM", "asyncio"), ("SIGTERM", "trio")])
def test_what_runs_at_the_end_is_finished(by: str, backend: str, tmp_path: Path) -> None:
    with at_work("--concurrency", "2", "--backend", backend) as (child, pool):
        _, gate = hold(child, tmp_path)
        queued, late = job("nothing"), job("nothing")
        _, plain_gate = hold(child, tmp_path, queued, name="wait-plain")
        end(child, pool, by)
        assert child.take("capacity").body == {"capacity": 0}
        assert child.take_results(1) == [[*pair(queued), "release", None]]
        child.assign([late])
        assert child.take_results(1) == [[*pair(late), "release", None]]
        gate.touch()
        plain_gate.touch()
        assert sorted(one[3] for one in child.take_results(2)) == ['"through"', '"through"']
        assert pool.wait() == 0


@both_backends
def test_sigterm_gives_back_what_does_not_finish(backend: str, tmp_path: Path) -> None:
    with at_work("--backend", backend, env={"PULSE_DRAIN_S": "0.3"}) as (child, pool):
        running, _ = hold(child, tmp_path)
        plain, _ = hold(child, tmp_path, name="wait-plain")
        pool.terminate()
        results = {one[0]: one[2:] for one in child.take_results(2)}
        assert results[running[0]] == ["release", None, {"stopped": "drain"}]
        assert results[plain[0]][0] == "ok"  # it did what it was asked, and came to a result
        assert pool.wait() == 0


@pytest.mark.rest
@pytest.mark.parametrize("by", ["drain", "SIGTERM"])
def test_a_process_that_does_not_obey_ends_without_a_report(by: str, tmp_path: Path) -> None:
    """The kernel tells the server; no other process takes its place, and gets its jobs again."""
    started = tmp_path / "started"
    with at_work(env={"PULSE_DRAIN_S": "0.2"}) as (child, pool):
        child.assign([job("deaf", args(started=started))])
        until(started.exists, "the handler")
        (process,) = pool.children()
        end(child, pool, by)
        assert pool.wait() == 0
        assert not psutil.pid_exists(process.pid)
        assert child.count("report") == 0
        assert "worker_left_behind" in pool.stderr
        assert "handler_process_died" not in pool.stderr


def notices(parent: Peer) -> list[dict[str, Any]]:
    return [heard.body for heard in list(parent.log) if heard.kind == "capacity" and heard.request is None]


@pytest.mark.rest
def test_sigterm_gives_notice_of_every_child(tmp_path: Path) -> None:
    """The parent announces at once that its children leave, since a busy interpreter cannot; it stays till then."""
    started = tmp_path / "started"
    with FakeServer() as server, worker(server, "--processes", "2", env={"PULSE_DRAIN_S": "0.2"}) as pool:
        parent, holding, idle = server.wait_parent(), server.wait_child(), server.wait_child()
        holding.assign([job("hold-interpreter", args(seconds=60, started=started))])
        until(started.exists, "the handler")
        assert notices(parent) == []
        pool.terminate()
        told = [parent.take("capacity").body, parent.take("capacity").body]
        assert not holding.closed
        sessions = sorted([holding.session, idle.session])
        assert sorted(told, key=lambda body: bytes(body["session"])) == [
            {"capacity": 0, "session": session} for session in sessions
        ]
        holding.wait_closed()
        assert pool.wait() == 0
        assert notices(parent) == told
        assert not psutil.pid_exists(holding.pid)
        assert "pool_killed_rest" in pool.stderr
        assert holding.count("capacity") == 0


def test_a_new_server_is_given_notice_too(tmp_path: Path) -> None:
    started = tmp_path / "started"
    with FakeServer() as server, worker(server, env={"PULSE_DRAIN_S": "3"}) as pool:
        parent, child = server.wait_parent(), server.wait_child()
        child.assign([job("hold-interpreter", args(seconds=60, started=started))])
        until(started.exists, "the handler")
        pool.terminate()
        first = parent.take("capacity").body
        parent.close()
        assert server.wait_parent().take("capacity").body == first == {"capacity": 0, "session": child.session}


def test_a_process_that_the_server_drains_is_replaced(tmp_path: Path) -> None:
    """It finishes its job and ends; its pool starts a new one, which is no death. A drain of all ends the pool."""
    with FakeServer() as server, worker(server) as pool:
        child = server.wait_child()
        running, gate = hold(child, tmp_path)
        child.send("drain", None, {"reconnect": False, "replace": True})
        child.take("capacity")
        gate.touch()
        assert child.take_results(1) == [[*pair(running), "ok", '"through"']]
        after = server.wait_child()
        assert (after.hello["worker"], after.hello["running"], after.pid == child.pid) == (
            child.hello["worker"],
            [],
            False,
        )
        assert '"event": "handler_process_replaced"' in pool.stderr
        assert "handler_process_died" not in pool.stderr
        _, gate = hold(after, tmp_path)
        after.send("drain", None, {"reconnect": False, "replace": True})
        after.send("drain", None, {"reconnect": False, "replace": False})
        until(lambda: pool.stderr.count('"event": "worker_told_to_drain"') == 3, "it has read both")
        gate.touch()
        assert pool.wait() == 0


def test_one_process_can_be_drained(tmp_path: Path) -> None:
    with FakeServer() as server, worker(server) as pool:
        child = server.wait_child()
        running, gate = hold(child, tmp_path)
        (process,) = pool.children()
        process.send_signal(signal.SIGTERM)
        child.take("capacity")
        gate.touch()
        assert child.take_results(1) == [[*pair(running), "ok", '"through"']]
        assert server.wait_child().hello["running"] == []
        assert until(pool.children, "a child")[0].pid != process.pid
