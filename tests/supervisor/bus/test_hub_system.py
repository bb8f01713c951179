"""The bus with real processes: hints go by name, and no further than they may."""

from __future__ import annotations

import os
import signal

import pytest

from tests.support.systems.supervisor_kit import four, supervisor
from tests.support.waiting import is_alive, until

pytestmark = [pytest.mark.process, pytest.mark.system]


def test_a_hint_reaches_the_one_it_names() -> None:
    with supervisor(four(scheduler=["--hint", "dispatcher:schedules changed:3"])) as rig:
        rig.wait_ready()
        os.kill(rig.pids()["scheduler"], signal.SIGUSR1)
        rig.wait_act("dispatcher hint schedules changed from=scheduler data={'x': 'xxx'}")
        assert [act for act in rig.acts() if " hint " in act and not act.startswith("dispatcher")] == []


def test_a_hint_to_everybody_reaches_all_others() -> None:
    with supervisor(four(pause=["--hint", "*:gate changed:0"])) as rig:
        rig.wait_ready()
        os.kill(rig.pids()["pause"], signal.SIGUSR1)
        for name in ("watchdog", "scheduler", "dispatcher"):
            rig.wait_act(f"{name} hint gate changed from=pause data={{'x': ''}}")
        assert not any(act.startswith("pause hint") for act in rig.acts())


def test_an_oversize_hint_is_dropped_and_nobody_harmed() -> None:
    """Above 4 KiB; its sender lives on and can send smaller ones."""
    with supervisor(four(scheduler=["--hint", "dispatcher:big:5000"], pause=["--hint", "dispatcher:small:1"])) as rig:
        rig.wait_ready()
        before = rig.pids()
        os.kill(before["scheduler"], signal.SIGUSR1)
        assert "at most 4096 are passed on" in str(rig.wait_log("hint_dropped", source="scheduler")["reason"])
        os.kill(before["pause"], signal.SIGUSR1)
        rig.wait_act("dispatcher hint small from=pause data={'x': 'x'}")
        assert not any("hint big" in act for act in rig.acts())
        assert rig.pids() == before


def test_a_hint_to_nobody_is_dropped() -> None:
    with supervisor(four(scheduler=["--hint", "nobody:x:1"])) as rig:
        rig.wait_ready()
        os.kill(rig.pids()["scheduler"], signal.SIGUSR1)
        assert rig.wait_log("hint_dropped", source="scheduler")["reason"] == "it is not running"


@pytest.mark.rest
def test_a_frozen_actor_fills_its_own_buffer_only() -> None:
    """Hints to a frozen actor are dropped once its buffer is full; sender and supervisor go on."""
    with supervisor(four(scheduler=["--hint", "pause:x:4000"])) as rig:
        rig.wait_ready()
        pids = rig.pids()
        os.kill(pids["pause"], signal.SIGSTOP)

        def flood() -> bool:
            os.kill(pids["scheduler"], signal.SIGUSR1)
            return bool(rig.log("hint_dropped", reason="its buffer is full"))

        until(flood, "a hint is dropped")
        rig.wait_log("child_running", name="pause", restarts=1)
        assert rig.pids()["scheduler"] == pids["scheduler"]
        assert is_alive(rig.pid)


def test_an_actor_can_ask_for_the_supervisors_status() -> None:
    with supervisor(four()) as rig:
        rig.wait_ready()
        os.kill(rig.pids()["dispatcher"], signal.SIGUSR1)
        rig.wait_act("dispatcher told ['actors', 'pools', 'services', 'supervisor']")
