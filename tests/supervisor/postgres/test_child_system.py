"""The supervisor with its own PostgreSQL: first to start, last to stop, and back after a death."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.servers.embedded_kit import needs_postgres, reachable_dir
from tests.support.systems.supervisor_kit import four, script, supervisor
from tests.support.waiting import is_alive, until

pytestmark = [pytest.mark.process, pytest.mark.postgres, needs_postgres, pytest.mark.system, pytest.mark.rest]


@pytest.fixture(scope="module")
def state_dir() -> Iterator[Path]:
    with reachable_dir() as place:
        yield place / "state"


def own_database(state_dir: Path) -> dict[str, str]:
    return {"PULSE_DSN": "", "PULSE_STATE_DIR": str(state_dir)}


def dsn(state_dir: Path) -> str:
    """The beginning of the actors' DSN."""
    return f"dsn=postgresql:///postgres?host={state_dir}"


def test_actors_get_its_dsn_when_it_is_ready(state_dir: Path) -> None:
    """PostgreSQL runs before any actor has its settings, and the settings name its socket."""
    with supervisor(four(), env=own_database(state_dir)) as rig:
        rig.wait_ready()
        events = [(entry["event"], entry.get("name")) for entry in rig.log()]
        assert events.index(("child_running", "postgres")) < events.index(("child_priming", "watchdog"))
        assert all(dsn(state_dir) in act for act in rig.acts() if " start boot=True " in act)
        rig.process.terminate()
        assert rig.wait_exit() == 0
        events = [(entry["event"], entry.get("name")) for entry in rig.log()]
        assert events.index(("child_exited", "watchdog")) < events.index(("child_exited", "postgres"))
        assert rig.log("child_killed") == []
        assert rig.log("process_left_behind") == []


def test_a_second_signal_stops_it_at_once_too(state_dir: Path) -> None:
    """While a pool would drain for a minute, a second SIGTERM ends everything, PostgreSQL last, in a few seconds."""
    children = [*four(), script("pool", "--stubborn", kind="pool", stop_s=60.0)]
    with supervisor(children, env=own_database(state_dir)) as rig:
        rig.wait_ready()
        rig.wait_act("pool starts")
        pid = int(str(rig.wait_log("child_running", name="postgres")["pid"]))
        rig.process.terminate()
        rig.wait_act("pool SIGTERM")
        again_s = time.monotonic()
        rig.process.terminate()
        assert rig.wait_exit() == 0
        assert time.monotonic() - again_s < 6.0
        assert not psutil.pid_exists(pid)


def test_a_stop_in_the_middle_of_initdb_leaves_nothing_half_made() -> None:
    """SIGTERM while the first data directory is being made: exit 0, nothing runs on, and the next start is good."""
    with reachable_dir() as place:
        env = own_database(place / "state")
        with supervisor(four(), env=env) as rig:
            until(lambda: "initdb" in rig.programs(), "initdb runs")
            below = rig.descendants()
            rig.process.terminate()
            assert rig.wait_exit() == 0
            until(lambda: not any(is_alive(process.pid) for process in below), "nothing is left")
        with supervisor(four(), env=env) as rig:
            rig.wait_ready()
            rig.process.terminate()
            assert rig.wait_exit() == 0


def test_one_that_cannot_start_is_one_line_and_exit_1(state_dir: Path) -> None:
    """When PostgreSQL refuses its own configuration, the line has its words; the actors never get settings."""
    broken = state_dir / "postgres" / "data" / "postgresql.auto.conf"
    if not broken.exists():
        with supervisor(four(), env=own_database(state_dir)) as rig:
            rig.wait_ready()
    broken.write_text("shared_buffers = 'plenty'\n", "utf-8")
    try:
        with supervisor(four(), env=own_database(state_dir)) as rig:
            assert rig.wait_exit() == 1
            assert len(rig.lines()) == 1
            assert re.match(r"pulse-supervisor: PostgreSQL does not start: .*postgres\.log", rig.lines()[0])
            assert not any(" start boot" in act for act in rig.acts())
    finally:
        broken.write_text("", "utf-8")


def test_one_that_cannot_be_made_is_one_line_and_exit_1() -> None:
    with reachable_dir() as place, supervisor(four(), env=own_database(place / "a\nb")) as rig:
        assert rig.wait_exit() == 1
        (line,) = rig.lines()
        assert line.startswith("pulse-supervisor: the state directory ")
        assert "Traceback" not in rig.errors.read_text("utf-8")
