"""Heartbeats: of a handler process, and of the parent for a child that cannot."""

from __future__ import annotations

import json
import os
import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
import structlog

from pulse.common.waiting import WakeupEvent
from pulse.worker.pool import proxy_heartbeat
from pulse.worker.session.reconnect import Dialer
from tests.support.servers.fake_server import FakeServer, Heard, Peer, job, pair
from tests.support.systems.worker_kit import worker
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.timed]


def beats_for(parent: Peer, session: bytes) -> list[Heard]:
    return [heard for heard in list(parent.log) if heard.kind == "heartbeat" and heard.body.get("session") == session]


def in_time(child: Peer, count: int, most_s: float) -> list[float]:
    """When each of its heartbeats came since it was late last, for which its parent may have beaten; [] of fewer."""
    beats_s = [0.0, *(heard.at_s for heard in list(child.log) if heard.kind == "heartbeat")]
    late = [number for number, (before, after) in enumerate(pairwise(beats_s[1:]), 2) if after - before > most_s]
    since = beats_s[late[-1] + 1 :] if late else beats_s
    return since if len(since) > count else []


def test_a_heartbeat_lists_all_that_is_held(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with FakeServer(heartbeat_s=0.2, lease_s=0.6, silent_on=["report"]) as server, worker(server, "--concurrency", "1"):
        child = server.wait_child()
        jobs = [job("wait", json.dumps({"gate": str(gate)})), job("nothing")]
        child.take("heartbeat", lambda heard: (heard.body["jobs"], heard.body["assigns"]) == ([], 0))
        child.assign(jobs)
        held = [[*pair(one), None] for one in jobs]
        child.take("heartbeat", lambda heard: (heard.body["jobs"], heard.body["assigns"]) == (held, 1))
        gate.touch()
        reports = [child.take("report"), child.take("report")]
        at_s = reports[-1].at_s
        child.take("heartbeat", lambda heard: heard.at_s > at_s and heard.body["jobs"] == held)
        for report in reports:
            child.send("reported", report.request, {"stale": []})
        child.take("heartbeat", lambda heard: heard.at_s > at_s and heard.body["jobs"] == [])


@pytest.mark.rest
@pytest.mark.parametrize("name", ["hold-interpreter", "block-loop"])
def test_the_parent_beats_for_a_child_that_cannot(name: str, tmp_path: Path) -> None:
    started, gate = tmp_path / "started", tmp_path / "gate"
    given = {"seconds": 4, "started": str(started)} if name == "hold-interpreter" else {"gate": str(gate)}
    with FakeServer(heartbeat_s=0.3, lease_s=0.9) as server, worker(server):
        parent, child = server.wait_parent(), server.wait_child()
        one = job(name, json.dumps({**given, "started": str(started)}), lease_s=0.9)
        child.assign([one])
        assigned_s = until(lambda: started.exists() and child.log[-1].at_s, "the handler")
        until(lambda: len(beats_for(parent, child.session)) >= 8, "heartbeats of the parent")
        gate.touch()
        (result,) = child.take_results(1)
        assert result[2:] == ["ok", '"held, lease lost: False"']
        ended_s = child.log[-1].at_s
        extended = [heard for heard in child.log if heard.kind == "heartbeat" and heard.body["jobs"]]
        extended += beats_for(parent, child.session)
        times_s = sorted([assigned_s, ended_s, *(heard.at_s for heard in extended if heard.at_s < ended_s)])
        assert max(later - earlier for earlier, later in pairwise(times_s)) < 0.9


def test_the_parent_does_not_beat_for_a_stopped_child() -> None:
    with FakeServer(heartbeat_s=0.2, lease_s=0.6) as server, worker(server) as pool:
        parent, child = server.wait_parent(), server.wait_child()
        child.take("heartbeat")
        (process,) = pool.children()
        os.kill(process.pid, signal.SIGSTOP)
        until(lambda: process.status() == "stopped", "a stopped child")
        before, pings = len(beats_for(parent, child.session)), parent.count("ping")
        until(lambda: parent.count("ping") >= pings + 8, "the parent's own pings")
        assert len(beats_for(parent, child.session)) == before
        os.kill(process.pid, signal.SIGCONT)
        at_s = parent.log[-1].at_s
        child.take("heartbeat", lambda heard: heard.at_s > at_s)


def test_the_parent_is_silent_while_children_beat() -> None:
    with FakeServer(heartbeat_s=0.2, lease_s=0.6) as server, worker(server):
        parent, child = server.wait_parent(), server.wait_child()
        beats_s = until(lambda: in_time(child, 10, 0.22), "heartbeats of the child, each in time")
        assert [heard for heard in beats_for(parent, child.session) if heard.at_s > beats_s[0]] == []


def test_an_attempt_that_a_beat_calls_lost_is_cancelled(tmp_path: Path) -> None:
    """A lost async handler is cancelled; a plain one sees the request and its reason; both still report, once."""
    gate, started = tmp_path / "gate", tmp_path / "started"
    with FakeServer(heartbeat_s=0.2, lease_s=60.0) as server, worker(server):
        child = server.wait_child()
        lost = job("wait", json.dumps({"gate": str(gate)}))
        asked = job("wait-plain", json.dumps({"gate": str(gate), "started": str(started)}))
        child.assign([lost, asked])
        until(started.exists, "the plain handler")
        server.lost_beats = [tuple(pair(lost)), tuple(pair(asked))]
        results = {one[0]: one[2:] for one in child.take_results(2)}
        assert results[lost[0]] == ["release", None, {"stopped": "lost"}]
        assert results[asked[0]] == ["ok", '"asked to end, lease lost: True"', {"stopped": "lost"}]
        beats = child.count("heartbeat")
        until(lambda: child.count("heartbeat") >= beats + 2, "more heartbeats")
        assert child.count("report") <= 2


def test_a_lease_that_passes_unanswered(tmp_path: Path) -> None:
    with FakeServer(heartbeat_s=0.2, lease_s=0.6) as server, worker(server):
        child = server.wait_child()
        child.assign([job("watch-lease", lease_s=0.6)])
        child.take("started")
        server.silent_on.add("heartbeat")
        assert child.take_results(1)[0][2:] == ["ok", '"lost, cancelled: False"']
        server.silent_on.clear()
        answered = child.count("heartbeat")
        until(lambda: child.count("heartbeat") > answered + 1, "an answered heartbeat")
        gate, started = tmp_path / "gate", tmp_path / "started"
        gate.touch()
        again = job("block-loop", json.dumps({"gate": str(gate), "started": str(started)}), lease_s=0.0)
        child.assign([again])
        assert child.take_results(1)[0][2:] == ["ok", '"held, lease lost: False"']


def test_nothing_starts_when_its_lease_has_passed(tmp_path: Path) -> None:
    """A process that could do nothing for a lease gives back what waited meanwhile: it may run elsewhere by now."""
    gate, started = tmp_path / "gate", tmp_path / "started"
    with (
        FakeServer(heartbeat_s=0.2, lease_s=0.6) as server,
        worker(server, "--concurrency", "1") as pool,
    ):
        parent, child = server.wait_parent(), server.wait_child()
        words = json.dumps({"gate": str(gate), "started": str(started)})
        blocks, waits = job("block-loop", words, lease_s=0.6), job("nothing", lease_s=0.6)
        child.assign([blocks, waits])
        until(started.exists, "the handler")
        server.silent_on.add("heartbeat")
        before = len(beats_for(parent, child.session))
        until(lambda: len(beats_for(parent, child.session)) >= before + 5, "more than a lease")
        gate.touch()
        results = {one[0]: one[2] for one in child.take_results(2)}
        assert (results[blocks[0]], results[waits[0]]) == ("ok", "release")
        (told,) = [line for line in map(json.loads, pool.stderr.splitlines()) if line["event"] == "leases_passed"]
        assert (told["given_back"], told["running"]) == (1, 0)


def test_a_batch_that_fills_for_longer_than_its_lease_is_given_back() -> None:
    """The process says so, and what runs goes on."""
    with (
        FakeServer(heartbeat_s=0.2, lease_s=0.6, silent_on=["heartbeat"]) as server,
        worker(server, app="tests.support.apps.batch_app:app") as pool,
    ):
        child = server.wait_child()
        child.assign([job("hundred", json.dumps({"number": 1, "directory": "/"}), lease_s=0.6)])
        assert child.take_results(1)[0][2] == "release"
        assert child.count("started") == 0
        assert '"leases_passed"' in pool.stderr


def test_a_process_says_that_its_leases_have_passed(tmp_path: Path) -> None:
    """Once, while its handlers run; again after an answer came."""

    def told() -> list[Any]:
        return [line for line in map(json.loads, pool.stderr.splitlines()) if line["event"] == "leases_passed"]

    with FakeServer(heartbeat_s=0.1, lease_s=0.3) as server, worker(server) as pool:
        child = server.wait_child()
        gate = tmp_path / "gate"
        child.assign([job("wait", json.dumps({"gate": str(gate)}), lease_s=0.3)])
        child.take("started")
        server.silent_on.add("heartbeat")
        until(told, "the line")
        beats = child.count("heartbeat")
        until(lambda: child.count("heartbeat") >= beats + 6, "two leases more")
        assert [(line["given_back"], line["running"]) for line in told()] == [(0, 1)]
        server.silent_on.clear()
        until(lambda: child.count("heartbeat") >= beats + 9, "an answered heartbeat")
        server.silent_on.add("heartbeat")
        until(lambda: len(told()) == 2, "the second line")
        gate.touch()
        assert child.take_results(1)[0][2] == "ok"


def test_a_server_that_falls_silent_is_left() -> None:
    with FakeServer(heartbeat_s=0.1, lease_s=0.3, silent_on=["heartbeat", "ping"]) as server, worker(server) as pool:
        child = server.wait_child()
        child.wait_closed()
        assert server.wait_child().hello["session"] == child.session
        assert "nothing was heard for 3 heartbeats" in pool.stderr


@pytest.mark.anyio
@pytest.mark.parametrize("stable_s", [0.0, 60.0])
async def test_a_parent_whose_connection_was_good_is_back_soon(
    stable_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pauses grow while connections break at once; after one that lasted, the next pause is short again."""
    monkeypatch.setattr(proxy_heartbeat, "STABLE_S", stable_s)
    made: list[Dialed] = []

    class Dialed(Dialer):
        good = 0

        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

        def proved_good(self) -> None:
            super().proved_good()
            self.good += 1

    monkeypatch.setattr(proxy_heartbeat, "Dialer", Dialed)
    with FakeServer() as server:
        async with anyio.create_task_group() as group:
            group.start_soon(
                proxy_heartbeat.mind, proxy_heartbeat.ProxyHeartbeats(), WakeupEvent(), str(server.path), "parent",
                structlog.get_logger(),
            )  # fmt: skip
            for _ in range(3):
                (await anyio.to_thread.run_sync(server.wait_parent)).close()
            await anyio.to_thread.run_sync(server.wait_parent)
            group.cancel_scope.cancel()
    assert [one.good for one in made] == [0 if stable_s else 3]


def test_a_server_without_its_database_is_not_left() -> None:
    """Unanswered heartbeats do not break a connection with answered pings."""
    with FakeServer(heartbeat_s=0.1, lease_s=0.3, silent_on=["heartbeat"]) as server, worker(server):
        child = server.wait_child()
        until(lambda: child.count("heartbeat") >= 12, "many unanswered heartbeats")
        assert not child.closed
