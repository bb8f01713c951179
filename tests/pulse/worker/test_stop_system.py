"""Stopping: one attempt by the server's order or its timeout, one process, the whole pool."""

from __future__ import annotations

import json
import signal
import uuid
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.servers.fake_server import FakeServer, Peer, job, pair
from tests.support.systems.worker_kit import at_work, worker
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.timed]

both_backends = pytest.mark.parametrize("backend", ["asyncio", "trio"])


def waiting(directory: Path, name: str = "wait", **options: Any) -> tuple[list[Any], Path, Path]:
    """A job that runs until its gate is there; the job, its gate, and the file that tells that it runs."""
    number = uuid.uuid4()
    gate, started = directory / f"gate-{number}", directory / f"started-{number}"
    return job(name, json.dumps({"gate": str(gate), "started": str(started)}), **options), gate, started


@both_backends
def test_stop_canceled(backend: str, tmp_path: Path) -> None:
    with at_work("--backend", backend, "--concurrency", "1") as (child, _):
        running, _, started = waiting(tmp_path)
        queued, _, never = waiting(tmp_path)
        child.assign([running, queued])
        until(started.exists, "the handler")
        child.send("stop", None, {"jobs": [[*pair(queued), "canceled"], [*pair(running), "canceled"]]})
        results = {one[0]: one[2:] for one in child.take_results(2)}
        assert results == {running[0]: ["release", None, {"stopped": "canceled"}], queued[0]: ["release", None]}
        assert not never.exists()


def test_stop_recall(tmp_path: Path) -> None:
    with at_work("--concurrency", "1") as (child, _):
        running, gate, started = waiting(tmp_path)
        queued, _, _ = waiting(tmp_path)
        child.assign([running, queued])
        until(started.exists, "the handler")
        child.send("stop", None, {"jobs": [[*pair(running), "recall"], [*pair(queued), "recall"]]})
        assert child.take_results(1) == [[*pair(queued), "release", None]]
        gate.touch()
        assert child.take_results(1) == [[*pair(running), "ok", '"through"']]


def test_timeout_asks_a_plain_handler(tmp_path: Path) -> None:
    with at_work() as (child, _):
        asked, _, _ = waiting(tmp_path, "wait-plain", timeout_s=0.2)
        child.assign([asked])
        (result,) = child.take_results(1)
        assert result[:4] == [*pair(asked), "ok", '"asked to end, lease lost: False"']
        assert result[4]["stopped"] == "timeout"


@both_backends
def test_a_handler_that_survives_its_cancellation_reports_what_it_did(backend: str, tmp_path: Path) -> None:
    with at_work("--backend", backend) as (child, _):
        stubborn, gate, started = waiting(tmp_path, "stubborn")
        child.assign([stubborn])
        until(started.exists, "the handler")
        child.send("stop", None, {"jobs": [[*pair(stubborn), "canceled"]]})
        child.send("drain", None, {"reconnect": True})
        assert child.count("report") == 0
        gate.touch()
        (result,) = child.take_results(1)
        assert result[2:4] == ["ok", '"finished all the same"']


def test_drain_without_reconnect_ends_the_pool(tmp_path: Path) -> None:
    with at_work("--concurrency", "1") as (child, pool):
        running, gate, started = waiting(tmp_path)
        queued, _, _ = waiting(tmp_path)
        child.assign([running, queued])
        until(started.exists, "the handler")
        child.send("drain", None, {"reconnect": False})
        assert child.take("capacity").body == {"capacity": 0}
        assert child.take_results(1) == [[*pair(queued), "release", None]]
        gate.touch()
        assert child.take_results(1) == [[*pair(running), "ok", '"through"']]
        assert pool.wait() == 0


def test_a_drained_process_that_does_not_obey_is_not_started_again(tmp_path: Path) -> None:
    """One whose handler outlasts the drain ends by itself, and no other takes its place to be given its jobs again."""
    started = tmp_path / "started"
    with at_work(env={"PULSE_DRAIN_S": "0.2"}) as (child, pool):
        child.assign([job("deaf", json.dumps({"started": str(started)}))])
        until(started.exists, "the handler")
        child.send("drain", None, {"reconnect": False})
        assert pool.wait() == 0
        assert "worker_left_behind" in pool.stderr
        assert "handler_process_died" not in pool.stderr


@both_backends
def test_sigterm_lets_running_handlers_finish(backend: str, tmp_path: Path) -> None:
    with at_work("--concurrency", "2", "--backend", backend) as (child, pool):
        running, gate, started = waiting(tmp_path)
        plain, plain_gate, plain_started = waiting(tmp_path, "wait-plain")
        queued, _, _ = waiting(tmp_path)
        child.assign([running, plain, queued])
        until(lambda: started.exists() and plain_started.exists(), "the handlers")
        pool.terminate()
        assert child.take("capacity").body == {"capacity": 0}
        assert child.take_results(1) == [[*pair(queued), "release", None]]
        late = job("nothing")
        child.assign([late])  # it was on its way
        assert child.take_results(1) == [[*pair(late), "release", None]]
        gate.touch()
        plain_gate.touch()
        assert sorted(one[3] for one in child.take_results(2)) == ['"through"', '"through"']
        assert pool.wait() == 0


@both_backends
def test_sigterm_gives_back_what_does_not_finish(backend: str, tmp_path: Path) -> None:
    with at_work("--backend", backend, env={"PULSE_DRAIN_S": "0.3"}) as (child, pool):
        running, _, started = waiting(tmp_path)
        plain, _, plain_started = waiting(tmp_path, "wait-plain")
        child.assign([running, plain])
        until(lambda: started.exists() and plain_started.exists(), "the handlers")
        pool.terminate()
        results = {one[0]: one[2:] for one in child.take_results(2)}
        assert results[running[0]] == ["release", None, {"stopped": "drain"}]
        assert results[plain[0]][0] == "ok"  # it did what it was asked, and came to a result
        assert pool.wait() == 0


def test_sigterm_ends_a_process_that_does_not_obey(tmp_path: Path) -> None:
    """A handler that hears nothing is not reported at all: its process ends, and the kernel tells the server."""
    started = tmp_path / "started"
    with at_work(env={"PULSE_DRAIN_S": "0.2"}) as (child, pool):
        child.assign([job("deaf", json.dumps({"started": str(started)}))])
        until(started.exists, "the handler")
        (process,) = pool.children()
        pool.terminate()
        assert pool.wait() == 0
        assert not psutil.pid_exists(process.pid)
        assert child.count("report") == 0
        assert "worker_left_behind" in pool.stderr


def notices(parent: Peer) -> list[dict[str, Any]]:
    return [heard.body for heard in list(parent.log) if heard.kind == "capacity" and heard.request is None]


def test_sigterm_gives_notice_of_every_child(tmp_path: Path) -> None:
    """The parent tells at once that its children leave, since who holds the interpreter cannot; it stays till then."""
    started = tmp_path / "started"
    given = {"seconds": 60, "started": str(started)}
    with FakeServer() as server, worker(server, "--processes", "2", env={"PULSE_DRAIN_S": "0.2"}) as pool:
        parent, holding, idle = server.wait_parent(), server.wait_child(), server.wait_child()
        holding.assign([job("hold-interpreter", json.dumps(given))])
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
    given = {"seconds": 60, "started": str(started)}
    with FakeServer() as server, worker(server, env={"PULSE_DRAIN_S": "3"}) as pool:
        parent, child = server.wait_parent(), server.wait_child()
        child.assign([job("hold-interpreter", json.dumps(given))])
        until(started.exists, "the handler")
        pool.terminate()
        first = parent.take("capacity").body
        parent.close()
        assert server.wait_parent().take("capacity").body == first == {"capacity": 0, "session": child.session}


def test_one_process_can_be_drained(tmp_path: Path) -> None:
    with FakeServer() as server, worker(server) as pool:
        child = server.wait_child()
        running, gate, started = waiting(tmp_path)
        child.assign([running])
        until(started.exists, "the handler")
        (process,) = pool.children()
        process.send_signal(signal.SIGTERM)
        child.take("capacity")
        gate.touch()
        assert child.take_results(1) == [[*pair(running), "ok", '"through"']]
        again = server.wait_child()
        assert again.hello["running"] == []
        assert until(pool.children, "a child")[0].pid != process.pid
