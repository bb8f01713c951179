"""Actors are forked from a template: a real system, whose template is killed, stopped, and missing."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Final

import psutil
import pytest

from tests.support.servers.postgres import Postgres
from tests.support.systems.system import System, running
from tests.support.waiting import is_alive, until

pytestmark = [pytest.mark.process, pytest.mark.system, pytest.mark.rest]

SETTINGS: Final = dict[str, str]()
ACTORS: Final = ("watchdog", "pause", "scheduler", "dispatcher")


def templates(system: System) -> list[psutil.Process]:
    assert system.process is not None
    return [one for one in psutil.Process(system.process.pid).children() if "template" in words(one)]


def words(process: psutil.Process) -> str:
    return " ".join(process.cmdline())


def test_actors_look_as_if_started_by_themselves(system: System) -> None:
    """Children of the supervisor, each leads its session, and has its name."""
    assert system.process is not None
    for name in ACTORS:
        actor = psutil.Process(system.pids()[name])
        assert actor.ppid() == system.process.pid
        assert os.getsid(actor.pid) == actor.pid
        assert actor.name() == f"pulse-{name}"[:15]
        assert words(actor).rstrip().endswith(f"-m pulse_actors {name}")
    [template] = templates(system)
    assert template.num_threads() == 1
    assert template.children() == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_template_that_is_gone_costs_only_time(system: System, number: signal.Signals) -> None:
    """The next actor has another one made; the others never notice."""
    before = system.pids()
    [template] = templates(system)
    template.send_signal(number)
    if number is signal.SIGKILL:
        until(lambda: not psutil.pid_exists(template.pid), "the template is reaped")
    failures = len(system.log("child_waiting"))
    former = system.kill_actor("dispatcher")
    after = system.wait_actor("dispatcher", not_pid=former)
    assert system.pids() == {**before, "dispatcher": after}
    until(lambda: templates(system) not in ([], [template]), "another template")
    assert not is_alive(template.pid)
    assert [one for one in system.log("child_waiting")[failures:] if one["reason"] != "SIGKILL"] == []


def test_without_a_template_actors_are_started_by_themselves(newest_server: Postgres, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os, sys\n'template' in sys.orig_argv and os._exit(1)\n", "utf-8")
    with newest_server.database() as dsn, running(dsn, {"PYTHONPATH": str(tmp_path)}) as system:
        for name in ACTORS:
            assert "--parent-pid" in words(psutil.Process(system.pids()[name]))


def test_a_stop_after_the_template_has_died(newest_server: Postgres) -> None:
    """It is an end like any other, though the reaper has reaped the template."""
    with newest_server.database() as dsn, running(dsn) as system:
        [template] = templates(system)
        template.kill()
        until(lambda: not psutil.pid_exists(template.pid), "the template is reaped")
        assert system.stop() == 0


def test_a_shortage_passes(system: System) -> None:
    """A template that has no descriptor left says so; the actor is started as soon as there is one."""
    [template] = templates(system)
    limit = template.rlimit(psutil.RLIMIT_NOFILE)
    template.rlimit(psutil.RLIMIT_NOFILE, (template.num_fds() + 1, limit[1]))
    former = system.kill_actor("pause")
    waiting = until(lambda: system.log("child_waiting", name="pause"), "there is a shortage")
    assert waiting[-1]["reason"] == "[Errno 24] Too many open files"
    template.rlimit(psutil.RLIMIT_NOFILE, limit)
    assert system.wait_actor("pause", not_pid=former)
    assert templates(system) == [template]


def test_a_restart_is_asked_for_while_one_is_under_way(system: System) -> None:
    """It is the same restart; the answer names the new process."""
    [template] = templates(system)
    former = system.pids()["pause"]
    template.suspend()
    system.kill_actor("pause")
    until(lambda: system.log("child_exited", name="pause", pid=former), "it has ended")
    answer = system.ask_supervisor("actors.restart", name="pause")
    assert answer["pid"] == system.wait_actor("pause", not_pid=former)


def test_a_stop_while_an_actor_is_forked(newest_server: Postgres) -> None:
    """Nothing is left, neither of the actor nor of the template, and the log names no process that was."""
    with newest_server.database() as dsn, running(dsn) as system:
        [template] = templates(system)
        template.suspend()
        former = system.kill_actor("watchdog")
        until(lambda: system.log("child_exited", name="watchdog", pid=former), "it has ended")
        assert system.stop() == 0
        assert system.log("process_left_behind") == []
        assert not is_alive(template.pid)


def test_it_dies_with_the_supervisor(newest_server: Postgres) -> None:
    with newest_server.database() as dsn, running(dsn) as system:
        [template] = templates(system)
        system.kill()
        until(lambda: not is_alive(template.pid), "the template ends")
