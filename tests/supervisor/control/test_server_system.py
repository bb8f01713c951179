"""supervisor.sock with real processes: its answers, its refusals, and that no peer can take it down."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pulse_supervisor.control.server import MAX_CONNECTIONS, MAX_FRAME_BYTES
from tests.support.systems.peers import Body, Peer, Refused
from tests.support.systems.supervisor_kit import Rig, four, script, supervisor
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.system]


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with supervisor(four()) as running:
        running.wait_ready()
        yield running


@pytest.fixture
def caller(rig: Rig) -> Iterator[Peer]:
    with rig.connect().hello() as connected:
        yield connected


def the_error(caller: Peer) -> tuple[int | None, str, str]:
    """Request, code and message of the error that comes, and the end of the connection after it."""
    (got,) = caller.expect_end()
    assert got.kind == "error"
    return got.request, got.body["code"], got.body["message"]


class TestAnswers:
    def test_welcome_tells_the_terms(self, rig: Rig) -> None:
        """The welcome has what the contract says, and the frame limit that holds here."""
        with rig.connect() as caller:
            welcome = caller.hello().welcome
        assert welcome["protocol"] == 1
        assert str(welcome["server"]).startswith("pulse ")
        assert (welcome["heartbeat_s"], welcome["lease_s"]) == (10.0, 30.0)
        assert welcome["max_frame_bytes"] == MAX_FRAME_BYTES

    def test_status_has_every_part(self, caller: Peer) -> None:
        status = caller.call("status")
        assert set(status) == {
            *("supervisor", "actors", "pools", "services", "database", "gate", "workers", "jobs", "jobs_exact")
        }
        rows = status["actors"]
        assert [row["name"] for row in rows] == ["watchdog", "pause", "scheduler", "dispatcher"]
        assert all(set(row) == {"name", "pid", "state", "restarts", "uptime_s"} for row in rows)
        assert set(status["supervisor"]) == {"pid", "uptime_s", "version"}
        assert status["gate"] == {"paused": False, "reason": None, "topics": []}
        assert status["jobs"] == {"PENDING": 3}
        assert status["database"]["ok"] is True

    def test_several_requests_share_a_connection(self, caller: Peer) -> None:
        numbers = [caller.ask(kind) for kind in ("ping", "status", "ping")]
        answers = [caller.take(lambda _: True, "an answer") for _ in numbers]
        assert [(one.request, one.kind) for one in answers] == [(number, "ok") for number in numbers]


class TestRefusals:
    """Every mistake is answered, and costs its own connection at most."""

    def test_an_unknown_request_is_refused_and_the_connection_lives(self, caller: Peer) -> None:
        code, message = caller.refusal("jobs.list")
        assert code == "bad_request"
        assert "known, with a number: actors.restart, drain, logs, ping, status" in message
        assert caller.call("ping") == {}

    def test_a_wrong_body_is_refused_and_the_connection_lives(self, caller: Peer) -> None:
        assert caller.refusal("actors.restart", name=7)[0] == "bad_request"
        assert caller.refusal("actors.restart")[0] == "bad_request"
        assert caller.call("ping") == {}

    def test_an_unknown_actor_is_not_found(self, caller: Peer) -> None:
        assert caller.refusal("actors.restart", name="nobody") == (
            "not_found",
            "there is no actor nobody; there are watchdog, pause, scheduler, dispatcher",
        )

    def test_a_request_before_hello_ends_the_connection(self, rig: Rig) -> None:
        with rig.connect() as caller:
            caller.send("status", 4)
            assert the_error(caller) == (4, "bad_request", "status before hello")

    def test_another_version_is_told_so(self, rig: Rig) -> None:
        with rig.connect() as caller:
            caller.send("hello", 0, protocol=2, role="client")
            assert the_error(caller)[1] == "unsupported_version"

    def test_a_worker_is_shown_the_other_door(self, rig: Rig) -> None:
        with rig.connect() as caller:
            caller.send("hello", 0, protocol=1, role="worker", worker="w")
            request, code, message = the_error(caller)
            assert (request, code) == (0, "bad_request")
            assert "pulse.sock" in message

    @pytest.mark.parametrize(("data", "code"), [
        (b"\xff\xff\xff\xff", "too_large"), ((MAX_FRAME_BYTES + 1).to_bytes(4, "big"), "too_large"),
        (b"\x00\x00\x00\x00", "bad_request"), (b"\x00\x00\x00\x02\xc1\xc1", "bad_request"),
        (b"GET / HTTP/1.1\r\n\r\n", "too_large"),
    ], ids=["longest length", "one too many", "empty", "no msgpack", "http"])  # fmt: skip
    def test_garbage_gets_an_error_with_nil(self, rig: Rig, data: bytes, code: str) -> None:
        """A broken frame gets nil and the end of the connection; the supervisor answers the next."""
        with rig.connect() as caller:
            caller.send_bytes(data)
            request, told, _ = the_error(caller)
            assert (request, told) == (None, code)
        assert rig.ask("ping") == {}

    @pytest.mark.rest
    def test_who_is_slow_is_sent_away_after_five_seconds(self, rig: Rig, caller: Peer) -> None:
        """Silence before hello, half a hello, and half a frame after it end the connection; an idle one may stay."""
        with contextlib.ExitStack() as stack:
            silent, slow, idle = (stack.enter_context(rig.connect()) for _ in range(3))
            idle.hello()
            begun_s = time.monotonic()
            slow.send_bytes(b"\x00\x00")
            caller.send_bytes(b"\x00")
            late = (None, "bad_request", "no whole frame within 5 s")
            assert [the_error(silent), the_error(slow), the_error(caller)] == [late] * 3
            assert 4.0 < time.monotonic() - begun_s < 10.0
            assert idle.call("ping") == {}

    def test_a_crowd_is_turned_away_and_then_let_in_again(self, rig: Rig) -> None:
        """Beyond the limit a connection gets unavailable at once; when others leave there is room."""
        with contextlib.ExitStack() as crowd:
            for _ in range(MAX_CONNECTIONS):
                crowd.enter_context(rig.connect()).hello()
            with rig.connect() as late:
                assert the_error(late)[1] == "unavailable"

        def has_room() -> bool:
            with rig.connect() as caller:
                caller.send("hello", 0, protocol=1, role="client")
                return caller.take(lambda _: True, "an answer").kind == "welcome"

        until(has_room, "there is room again")

    def test_no_free_descriptor_is_no_reason_to_spin(self) -> None:
        """With every descriptor in use a client waits, the supervisor sleeps, and goes on when one is free."""
        with supervisor(four()) as rig:
            rig.wait_ready()
            limits = resource.prlimit(rig.pid, resource.RLIMIT_NOFILE)
            highest = max(int(fd.name) for fd in Path(f"/proc/{rig.pid}/fd").iterdir())
            resource.prlimit(rig.pid, resource.RLIMIT_NOFILE, (highest + 1, limits[1]))
            crowd = [rig.connect() for _ in range(20)]  # fills the gaps below the highest
            rig.wait_log("accept_failed")
            process = psutil.Process(rig.pid)
            before, begun_s = process.cpu_times(), time.monotonic()
            until(lambda: time.monotonic() > begun_s + 1.0, "a second passes")
            after = process.cpu_times()
            assert after.user + after.system - before.user - before.system < 0.2
            resource.prlimit(rig.pid, resource.RLIMIT_NOFILE, limits)
            crowd[-1].hello()
            for caller in crowd:
                caller.close()


class TestControl:
    @pytest.mark.rest
    def test_a_restart_answers_with_the_new_process(self) -> None:
        """The actor stops in its own time, a new one is there, and it counts as no crash."""
        with supervisor(four()) as rig:
            rig.wait_ready()
            before = rig.pids()["pause"]
            for _ in range(7):
                told = rig.ask("actors.restart", name="pause")
                assert told["name"] == "pause"
                assert told["pid"] != before
                until(lambda: rig.actor("pause")["state"] == "running", "it runs again")
            assert rig.acts().count("pause stop grace=5") == 7
            assert rig.actor("pause")["restarts"] == 7

    @pytest.mark.rest
    def test_a_restart_that_a_stop_overtakes(self) -> None:
        """The answer says that there will be no new process."""
        with supervisor(four(dispatcher=["--stubborn"])) as rig:
            rig.wait_ready()
            with rig.connect().hello() as caller:
                asked = caller.ask("actors.restart", name="dispatcher")
                rig.wait_act("dispatcher stop grace=5")
                rig.process.terminate()
                rig.wait_log("supervisor_stopping")
                told = caller.refusal("actors.restart", name="watchdog")
                assert told == ("conflict", "watchdog is running, it cannot be restarted now")
                rig.process.terminate()
                with pytest.raises(Refused, match="conflict: dispatcher was stopped for good meanwhile"):
                    caller.answer(asked)
            assert rig.wait_exit() == 0

    def test_drain_stops_the_pools_and_nothing_else(self) -> None:
        """A drained pool finishes and stays away until it is started again by name."""
        with supervisor([*four(), script("pool", kind="pool")]) as rig:
            rig.wait_ready()
            rig.wait_act("pool starts")
            assert rig.ask("drain") == {}
            rig.wait_act("pool exits 0")
            until(lambda: rig.ask("status")["pools"][0]["state"] == "stopped", "the pool is stopped")
            assert "pool" not in rig.pids()
            assert not any("hint drain" in act for act in rig.acts())
            rig.ask("actors.restart", name="pool")
            assert "pool" in rig.pids()

    def test_drain_all_tells_the_dispatcher(self) -> None:
        with supervisor(four()) as rig:
            rig.wait_ready()
            assert rig.ask("drain", all=True) == {}
            rig.wait_act("dispatcher hint drain_workers from=supervisor data={}")


def soonest_status(rig: Rig) -> Body:
    """The status, which came within two seconds once in five times: others use the machine, too."""
    for _ in range(5):
        began_s = time.monotonic()
        status = rig.ask("status")
        if time.monotonic() - began_s < 2.0:
            return status
    pytest.fail("no status within two seconds")


class TestStatusInTrouble:
    def test_a_frozen_actor_costs_a_second_and_no_more(self) -> None:
        """With the dispatcher frozen, status comes within two seconds, with the database and the last known gate."""
        began_s = time.time()
        with supervisor(four()) as rig:
            rig.wait_ready()
            assert rig.ask("status")["jobs"] == {"PENDING": 3}
            os.kill(rig.pids()["dispatcher"], signal.SIGSTOP)
            status = soonest_status(rig)
            assert (status["jobs"], status["workers"]) == (None, None)
            assert status["database"]["ok"] is True
            assert status["gate"]["paused"] is False
            assert began_s < status["gate"]["as_of"] < time.time()

    def test_with_all_actors_frozen_the_supervisor_still_answers(self) -> None:
        with supervisor(four()) as rig:
            rig.wait_ready()
            for entry in rig.log("child_running"):
                os.kill(int(str(entry["pid"])), signal.SIGSTOP)
            status = soonest_status(rig)
            assert (status["database"], status["gate"], status["jobs"]) == (None, None, None)
            assert len(status["actors"]) == 4
