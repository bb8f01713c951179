"""The supervisor with real processes: starts, deaths, restarts, refusals, silence."""

from __future__ import annotations

import os
import signal
import time
from datetime import datetime
from pathlib import Path

import pytest

from tests.support.systems.supervisor_kit import NAMES, four, open_files, supervisor
from tests.support.waiting import is_alive, until

pytestmark = [pytest.mark.process, pytest.mark.system]


def seconds_between(earlier: dict[str, object], later: dict[str, object]) -> float:
    first, second = (datetime.fromisoformat(str(entry["timestamp"])) for entry in (earlier, later))
    return (second - first).total_seconds()


def test_it_is_ready_when_all_four_are() -> None:
    """The ready line names both sockets and the time; each child leads its group, and has no socket but its own."""
    with supervisor(four()) as rig:
        ready = rig.wait_log("supervisor_ready")
        assert ready["message"] == "pulse is ready"
        assert ready["pulse_sock"] == str(rig.directory / "pulse.sock")
        assert ready["supervisor_sock"] == str(rig.directory / "supervisor.sock")
        assert isinstance(ready["start_ms"], int)
        assert 0 < ready["start_ms"] < 15_000
        assert [rig.actor(name)["state"] for name in NAMES] == ["running"] * 4
        pids = rig.pids()
        files = {name: open_files(pid) for name, pid in pids.items()}
        sockets = {name: sum(file.startswith("socket:") for file in some) for name, some in files.items()}
        assert sockets == {"watchdog": 1, "pause": 1, "scheduler": 1, "dispatcher": 2}  # buses, and where it listens
        assert [os.getpgid(pid) for pid in pids.values()] == list(pids.values())
        assert [os.getsid(pid) for pid in pids.values()] == list(pids.values())


def test_a_killed_actor_is_back_at_once_and_the_others_never_notice() -> None:
    """SIGKILL of each actor: a new process half a second after its death, boot false; no other is touched or left."""
    with supervisor(four()) as rig:
        rig.wait_ready()
        for name in NAMES:
            before = rig.pids()
            os.kill(before[name], signal.SIGKILL)
            exited = rig.wait_log("child_exited", name=name, how="SIGKILL")
            rig.wait_log("child_running", name=name, restarts=1)
            spawned = rig.log("child_spawned", name=name)[-1]
            assert {key for key, pid in rig.pids().items() if pid != before[key]} == {name}
            assert f"{name} start boot=False dsn=postgresql://nobody@localhost/nothing" in rig.acts()
            assert rig.actor(name)["restarts"] == 1
            assert seconds_between(exited, spawned) < 0.5
        below = rig.descendants()
        assert len(below) == len(NAMES)
        assert all(is_alive(process.pid) for process in below)


@pytest.mark.rest
def test_a_crash_loop_ends_with_70_and_one_line() -> None:
    """More than five deaths within a minute stop everything, also the healthy, and the line says who and why."""
    with supervisor(four(scheduler=["--crash", "primed"])) as rig:
        assert rig.wait_exit() == 70
        assert rig.lines() == [
            "pulse-supervisor: scheduler died 6 times within 60 s (the last time: exit code 70); giving up"
        ]
        assert rig.acts().count("scheduler starts") == 6
        assert rig.log("supervisor_stopped") != []


@pytest.mark.rest
def test_a_frozen_actor_is_killed_and_replaced() -> None:
    with supervisor(four()) as rig:
        rig.wait_ready()
        frozen = rig.pids()["watchdog"]
        stopped_s = time.monotonic()
        os.kill(frozen, signal.SIGSTOP)
        faulty = rig.wait_log("child_faulty", name="watchdog")
        assert 1.5 < time.monotonic() - stopped_s < 6.0
        assert faulty["reason"] == "silent: no answer to pings"
        rig.wait_log("child_running", name="watchdog", restarts=1)
        assert not is_alive(frozen)
        assert rig.pids()["watchdog"] != frozen


def test_an_actor_with_a_stuck_turn_is_killed() -> None:
    with supervisor(four(scheduler=["--turn-age-s", "31"])) as rig:
        assert rig.wait_log("child_faulty", name="scheduler")["reason"] == "stuck: its turn takes 31 s already"


def test_an_actor_that_speaks_nonsense_is_killed_and_only_that_one() -> None:
    """A broken bus is that child's fault and its end."""
    with supervisor(four(pause=["--crash", "garbage"])) as rig:
        assert str(rig.wait_log("child_faulty", name="pause")["reason"]).startswith("broken bus: ")
        assert rig.log("child_faulty", name="watchdog") == []


@pytest.mark.rest
def test_a_supervisor_that_was_stopped_itself_blames_nobody() -> None:
    """SIGSTOP and SIGCONT of the supervisor for longer than the actors may be silent: all live on."""
    with supervisor(four()) as rig:
        rig.wait_ready()
        before = rig.pids()
        os.kill(rig.pid, signal.SIGSTOP)
        deadline_s = time.monotonic() + 4.0
        until(lambda: time.monotonic() > deadline_s, "four seconds pass")
        os.kill(rig.pid, signal.SIGCONT)
        rig.wait_log("supervisor_slept")
        assert rig.pids() == before
        assert rig.log("child_faulty") == []


def test_a_refusal_is_one_line_and_exit_1() -> None:
    """Exit code 78: everything stops, nothing is restarted, and the user sees the child's own words."""
    with supervisor(four(pause=["--crash", "refuse"])) as rig:
        assert rig.wait_exit() == 1
        assert rig.lines() == ["pulse-supervisor: the database is too new for this pulse"]
        assert rig.acts().count("pause starts") == 1


def test_the_database_is_no_secret_of_the_command_line_or_the_environment() -> None:
    """Neither /proc/PID/cmdline nor environ of any child shows the DSN, and yet each got it."""
    with supervisor(four(), env={"PULSE_DSN": "postgresql://u:hunter2-secret@localhost/x"}) as rig:
        rig.wait_ready()
        for process in rig.descendants():
            place = Path(f"/proc/{process.pid}")
            assert b"hunter2-secret" not in place.joinpath("cmdline").read_bytes()
            assert b"hunter2-secret" not in place.joinpath("environ").read_bytes()
        assert "pause start boot=True dsn=postgresql://u:hunter2-secret@localhost/x" in rig.acts()
        assert "hunter2-secret" not in rig.errors.read_text("utf-8")
