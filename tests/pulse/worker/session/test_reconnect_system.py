"""A worker that loses the server: its handlers go on, and it comes back with all its jobs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.servers.fake_server import FakeServer, job, pair
from tests.support.systems.worker_kit import args, hold, worker
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.timed]


def test_a_report_without_answer_is_sent_again() -> None:
    with FakeServer(silent_on=["report"]) as server, worker(server):
        child = server.wait_child()
        jobs = [job("nothing"), job("echo", '{"a": 1}')]
        child.assign(jobs)
        before = {one[0]: one for one in child.take_results(2)}
        server.stop()
        server.silent_on.clear()
        server.listen()
        again = server.wait_child()
        assert again.hello["session"] == child.session
        assert sorted(again.hello["running"]) == sorted(pair(one) for one in jobs)
        assert sorted(again.take("started").body["jobs"]) == sorted(pair(one) for one in jobs)
        assert {one[0]: one for one in again.take_results(2)} == before


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_handlers_go_on_without_the_server(backend: str, tmp_path: Path) -> None:
    late = tmp_path / "late"
    late.touch()
    with FakeServer() as server, worker(server, "--concurrency", "1", "--backend", backend) as pool:
        child = server.wait_child()
        waiting = job("append", args(path=late, line="called"))
        running, gate = hold(child, tmp_path, waiting)
        server.stop()
        until(lambda: "waiting_for_server" in pool.stderr, "the loss")
        gate.touch()
        server.listen()
        again = server.wait_child()
        assert sorted(again.hello["running"]) == sorted([pair(running), pair(waiting)])
        assert again.take("started").body["jobs"] == [pair(running)]
        assert again.take("started").body["jobs"] == [pair(waiting)]
        results = {one[0]: one[2:4] for one in again.take_results(2)}
        assert results == {running[0]: ["ok", '"through"'], waiting[0]: ["ok", None]}
    assert late.read_text() == "called\n"


def test_nothing_is_started_that_the_server_does_not_know_of(tmp_path: Path) -> None:
    late = tmp_path / "late"
    late.touch()
    env = {"PULSE_DRAIN_S": "0.3"}
    with FakeServer() as server, worker(server, "--concurrency", "1", env=env) as pool:
        _, gate = hold(server.wait_child(), tmp_path, job("append", args(path=late, line="called")))
        server.stop()
        until(lambda: "waiting_for_server" in pool.stderr, "the loss")
        gate.touch()
        pool.terminate()
        assert pool.wait() == 0
        assert '"unreported": 2' in pool.stderr
    assert late.read_text() == ""


def test_what_the_welcome_calls_lost_is_stopped(tmp_path: Path) -> None:
    with FakeServer() as server, worker(server):
        child = server.wait_child()
        lost, _ = hold(child, tmp_path)
        kept, gate = hold(child, tmp_path)
        server.lost = [tuple(pair(lost))]
        server.stop()
        server.listen()
        again = server.wait_child()
        assert again.take_results(1) == [[*pair(lost), "release", None, {"stopped": "lost"}]]
        gate.touch()
        assert again.take_results(1) == [[*pair(kept), "ok", '"through"']]


def test_a_welcome_that_does_not_know_what_is_lost(tmp_path: Path) -> None:
    """`lost` nil, the database being away, stops nothing; the next beat has them."""
    with FakeServer(heartbeat_s=0.2, lease_s=60.0) as server, worker(server):
        one, _ = hold(server.wait_child(), tmp_path)
        server.stop()
        server.lost = None
        server.listen()
        again = server.wait_child()
        again.take("heartbeat")
        server.lost_beats = [tuple(pair(one))]
        assert again.take_results(1) == [[*pair(one), "release", None, {"stopped": "lost"}]]


def test_drain_with_reconnect_comes_back(tmp_path: Path) -> None:
    with FakeServer() as server, worker(server) as pool:
        child = server.wait_child()
        one, gate = hold(child, tmp_path)
        child.send("drain", None, {"reconnect": True})
        until(lambda: "worker_told_to_drain" in pool.stderr, "the drain")
        child.close()
        again = server.wait_child()
        assert again.hello["running"] == [pair(one)]
        assert again.hello["capacity"] == 10
        (lost,) = [line for line in map(json.loads, pool.stderr.splitlines()) if line["event"] == "connection_lost"]
        assert lost["level"] == "info"  # the server had sent a drain
        gate.touch()
        assert again.take_results(1)[0][2:4] == ["ok", '"through"']


def test_waits_for_a_server_that_is_not_there_yet() -> None:
    with FakeServer() as server:
        server.stop()
        with worker(server) as pool:
            until(lambda: pool.stderr.count("waiting_for_server") == 2, "a log line of child and parent each")
            server.listen()
            child = server.wait_child()
            child.assign([job("nothing")])
            child.take_results(1)
            lines = [json.loads(line) for line in pool.stderr.splitlines()]
            waits = [line for line in lines if line["event"] == "waiting_for_server"]
            causes = [line["cause"] for line in waits]
            assert {line["level"] for line in waits} == {"info"}
            looked = f"nobody answers; looked at {server.path} (no such file or directory)"
            assert causes == [f"{looked}; pulse-supervisor starts a server"] * 2


def test_schedules_and_limits_are_declared_on_each_connection() -> None:
    with FakeServer() as server, worker(server) as pool:
        child = server.wait_child()
        heard = child.take("schedules.declare")
        assert heard.body["by"] == "tests.support.apps.worker_app:app"
        [declared] = heard.body["schedules"]
        assert (declared["key"], declared["name"], declared["every"]) == ("hourly", "nothing", 3600)
        child.send("error", heard.request, {"code": "unavailable", "message": "away"})
        heard = child.take("limits.declare")
        limit = {"name": "of the app", "policy": {"concurrency": 50, "rate": 100.5}}
        assert heard.body == {"by": "tests.support.apps.worker_app:app", "limits": [limit]}
        child.assign([job("nothing")])
        assert len(child.take_results(1)) == 1
        server.stop()
        server.listen()
        again = server.wait_child()
        heard = again.take("schedules.declare")
        again.send("error", heard.request, {"code": "bad_request", "message": "no such zone"})
        again.send("error", again.take("limits.declare").request, {"code": "forbidden", "message": "not you"})
        until(lambda: pool.stderr.count("declaration_refused") == 2, "both are logged")
        refused = [line for line in map(json.loads, pool.stderr.splitlines()) if line["event"] == "declaration_refused"]
        assert [(line["kind"], line["cause"]) for line in refused] == [
            ("schedules.declare", "no such zone"), ("limits.declare", "not you")
        ]  # fmt: skip
        again.assign([job("nothing")])
        assert len(again.take_results(1)) == 1
