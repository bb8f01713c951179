"""The supervisor with real processes: how it stops, in which order, and what is left."""

from __future__ import annotations

import os
import signal
import time
from datetime import datetime

import psutil
import pytest

from tests.support.systems.supervisor_kit import NAMES, Rig, four, script, supervisor
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.system]


def stop_acts(rig: Rig) -> list[str]:
    return [act for act in rig.acts() if act.split()[1] in {"stop", "SIGTERM", "exits", "hint"}]


def wait_orphan(rig: Rig, number: int = 1) -> int:
    """The pid of the process that a child, at its *number*-th start, left to itself."""
    until(lambda: len(orphans(rig)) >= number, "an orphan")
    return orphans(rig)[number - 1]


def orphans(rig: Rig) -> list[int]:
    return [int(act.split()[-1]) for act in rig.acts() if " orphan " in act]


@pytest.mark.rest
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_pools_first_then_the_actors_last_started_first(number: signal.Signals) -> None:
    """The dispatcher hears of the drain, pools end, then dispatcher, scheduler, pause, watchdog, each asked; exit 0."""
    with supervisor([*four(), script("pool", kind="pool")]) as rig:
        rig.wait_ready()
        rig.wait_act("pool starts")
        rig.process.send_signal(number)
        assert rig.wait_exit() == 0
        acts = stop_acts(rig)
        told = "dispatcher hint drain from=supervisor data={}"
        assert acts.index(told) < acts.index("dispatcher stop grace=5")
        assert [act for act in acts if act != told] == [
            "pool SIGTERM",
            "pool exits 0",
            *(f"{name} {what}" for name in reversed(NAMES) for what in ("stop grace=5", "exits 0")),
        ]
        assert rig.lines() == []
        assert [path.name for path in rig.directory.iterdir()] == ["supervisor.lock"]


def test_a_stubborn_actor_is_asked_told_and_killed() -> None:
    """Stop frame, SIGTERM, SIGKILL, and the log says what was killed; the stop itself is still a good one."""
    with supervisor([script("watchdog"), script("dispatcher", "--stubborn", stop_s=0.3)]) as rig:
        rig.wait_ready()
        rig.process.terminate()
        assert rig.wait_exit() == 0
        acts = [act for act in stop_acts(rig) if act.startswith("dispatcher") and "hint" not in act]
        assert acts == ["dispatcher stop grace=0.3", "dispatcher SIGTERM"]
        assert [entry["name"] for entry in rig.log("child_killed")] == ["dispatcher"]


@pytest.mark.rest
def test_while_pools_drain_the_actors_are_still_looked_after() -> None:
    """A dispatcher that dies while a pool drains is started again, since the pool's reports need it."""
    with supervisor([*four(), script("pool", "--stubborn", kind="pool", stop_s=60.0)]) as rig:
        rig.wait_ready()
        rig.wait_act("pool starts")
        dispatcher = rig.pids()["dispatcher"]
        rig.process.terminate()
        rig.wait_act("pool SIGTERM")
        told = "dispatcher hint drain from=supervisor data={}"
        rig.wait_act(told)
        os.kill(dispatcher, signal.SIGKILL)
        rig.wait_log("child_running", name="dispatcher", restarts=1)
        until(lambda: rig.acts().count(told) == 2, "the new dispatcher is told of the drain")
        rig.process.terminate()
        assert rig.wait_exit() == 0


@pytest.mark.rest
def test_a_second_signal_stops_at_once() -> None:
    """While a pool would drain for a minute, a second SIGTERM ends everything within a second or two."""
    with supervisor([*four(), script("pool", "--stubborn", kind="pool", stop_s=60.0)]) as rig:
        rig.wait_ready()
        rig.wait_act("pool starts")
        rig.process.terminate()
        rig.wait_act("pool SIGTERM")
        again_s = time.monotonic()
        rig.process.terminate()
        assert rig.wait_exit() == 0
        assert time.monotonic() - again_s < 3.0
        assert not any("stop grace" in act for act in rig.acts())


def ends(rig: Rig) -> dict[str, datetime]:
    """When the supervisor saw each child end, by name and in order."""
    return {str(one["name"]): datetime.fromisoformat(str(one["timestamp"])) for one in rig.log("child_exited")}


@pytest.mark.rest
def test_in_a_hurry_the_dispatcher_outlives_the_pools() -> None:
    """Pools are killed first; then the dispatcher has half a second to bury their jobs, then actors are killed."""
    pools = [script(name, "--stubborn", kind="pool", stop_s=60.0) for name in ("pool", "pond")]
    with supervisor([*four(), *pools]) as rig:
        rig.wait_ready()
        for name in ("pool", "pond"):
            rig.wait_act(f"{name} starts")
        rig.process.terminate()
        rig.wait_act("pond SIGTERM")
        rig.process.terminate()
        assert rig.wait_exit() == 0
        ended = ends(rig)
        assert set(list(ended)[:2]) == {"pool", "pond"}
        assert set(list(ended)[2:]) == set(NAMES)
        pools_at = max(ended["pool"], ended["pond"])
        assert all((ended[name] - pools_at).total_seconds() > 0.45 for name in NAMES)
        assert rig.acts().count("dispatcher hint drain from=supervisor data={}") == 1


@pytest.mark.rest
def test_a_hurry_that_comes_first_tells_of_the_drain_too() -> None:
    """Two signals at once: the dispatcher hears of the drain before the pools are killed, and has time to act on it."""
    with supervisor([*four(), script("pool", "--stubborn", kind="pool", stop_s=60.0)]) as rig:
        rig.wait_ready()
        rig.wait_act("pool starts")
        rig.process.send_signal(signal.SIGSTOP)
        rig.process.send_signal(signal.SIGINT)
        rig.process.send_signal(signal.SIGTERM)
        rig.process.send_signal(signal.SIGCONT)
        assert rig.wait_exit() == 0
        assert rig.log("supervisor_hurries") != []
        assert next(iter(ends(rig))) == "pool"
        assert rig.acts().count("dispatcher hint drain from=supervisor data={}") == 1
        assert "pool SIGTERM" not in rig.acts()


def test_a_hurry_without_pools_waits_for_nothing() -> None:
    """Where no pool has ended, there is nothing to bury: actors that do not stop are killed at once."""
    with supervisor(four(dispatcher=["--stubborn"])) as rig:
        rig.wait_ready()
        rig.process.terminate()
        rig.wait_act("dispatcher stop grace=5")
        rig.process.terminate()
        assert rig.wait_exit() == 0
        assert rig.log("child_killed") != []
        hurried = datetime.fromisoformat(str(rig.log("supervisor_hurries")[0]["timestamp"]))
        killed = datetime.fromisoformat(str(rig.log("child_killed", name="dispatcher")[0]["timestamp"]))
        assert (killed - hurried).total_seconds() < 0.3


def test_a_stop_during_the_start_is_obeyed() -> None:
    """While one actor primes the whole is not ready; SIGTERM then ends all of it, with exit 0."""
    with supervisor(four(pause=["--crash", "never"], watchdog=["--mute"])) as rig:
        rig.wait_act("pause start boot=True dsn=postgresql://nobody@localhost/nothing")
        until(lambda: rig.actor("dispatcher")["state"] == "running", "the dispatcher runs")
        assert rig.actor("pause")["state"] == "starting"
        rig.process.terminate()
        assert rig.wait_exit() == 0
        assert rig.log("supervisor_ready") == []


def test_sighup_is_no_reason_to_do_anything() -> None:
    with supervisor(four()) as rig:
        rig.wait_ready()
        before = rig.pids()
        rig.process.send_signal(signal.SIGHUP)
        rig.wait_log("signal_ignored")
        assert rig.pids() == before


@pytest.mark.rest
def test_an_orphan_is_reaped_or_ended_at_the_stop() -> None:
    """What a child left in a session of its own is reaped, or ended and named in the log when the supervisor stops."""
    with supervisor(four(pause=["--orphan", "600"])) as rig:
        rig.wait_ready()
        dead = wait_orphan(rig)
        os.kill(rig.pids()["pause"], signal.SIGKILL)
        until(lambda: psutil.Process(dead).ppid() == rig.pid, "the supervisor is its parent")
        os.kill(dead, signal.SIGKILL)
        until(lambda: not psutil.pid_exists(dead), "the orphan is buried")
        orphan = wait_orphan(rig, 2)
        rig.process.terminate()
        assert rig.wait_exit() == 0
        assert not psutil.pid_exists(orphan)
        assert rig.log("process_left_behind", pid=orphan, command="sleep") != []
