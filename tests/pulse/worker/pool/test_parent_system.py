"""The pool parent: children that die, apps that cannot be loaded, servers that refuse."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import psutil
import pytest

from pulse.worker.execution.wakeup import SAME_SIGNAL_S, SIGNALED
from tests.support.servers.fake_server import FakeServer, job
from tests.support.systems.worker_kit import at_work, hold, worker
from tests.support.waiting import is_alive, until

pytestmark = [pytest.mark.process, pytest.mark.timed]


def test_a_killed_child_is_replaced() -> None:
    with FakeServer() as server, worker(server, "--processes", "2") as pool:
        first, second = server.wait_child(), server.wait_child()
        assert {first.hello["worker"][-2:], second.hello["worker"][-2:]} == {"-0", "-1"}
        next(one for one in pool.children() if one.pid == first.pid).kill()
        first.wait_closed()
        again = server.wait_child()
        assert (again.hello["worker"], again.hello["running"]) == (first.hello["worker"], [])
        assert "session" not in again.hello
        assert not second.closed
        assert '"signal": "SIGKILL"' in pool.stderr


def test_what_a_handler_started_ends_with_its_process(tmp_path: Path) -> None:
    app = tmp_path / "spawning.py"
    app.write_text(
        "import subprocess, pulse\n"
        "app = pulse.App()\n"
        "@app.handler('spawn')\n"
        "async def spawn() -> int:\n"
        "    return subprocess.Popen(['sleep', '600']).pid\n"
    )
    with at_work(app="spawning:app", cwd=tmp_path) as (child, pool):
        child.assign([job("spawn")])
        grandchild = int(child.take_results(1)[0][3])
        assert is_alive(grandchild)
        pool.children()[0].kill()
        until(lambda: not is_alive(grandchild), "its end")


def test_a_handler_that_writes_into_the_notes(tmp_path: Path) -> None:
    """That child's pipe counts no more, with one log line; all work on under watch."""
    app = tmp_path / "scribbling.py"
    app.write_text(
        "import os, pulse\n"
        "from fcntl import F_GETFL, fcntl\n"
        "def is_notes(fd):\n"
        "    try:\n"
        "        flags, file = fcntl(fd, F_GETFL), os.readlink(f'/proc/self/fd/{fd}')\n"
        "    except OSError:\n"
        "        return False\n"
        "    return file.startswith('pipe:') and flags & os.O_NONBLOCK and flags & os.O_ACCMODE == os.O_WRONLY\n"
        "(NOTES,) = filter(is_notes, map(int, os.listdir('/proc/self/fd')))\n"
        "app = pulse.App()\n"
        "@app.handler('scribble')\n"
        "async def scribble(junk: str) -> int:\n"
        "    return os.write(NOTES, junk.encode('latin-1'))\n"
    )
    for junk in ("?\0\0\0\0", "S\xff\xff\xff\xff"):
        with FakeServer() as server, worker(server, "--processes", "2", app="scribbling:app", cwd=tmp_path) as pool:
            children = [server.wait_child(), server.wait_child()]
            processes = pool.children()
            for _ in range(2):
                children[0].assign([job("scribble", json.dumps({"junk": junk}))])
                assert children[0].take_results(1)[0][2:] == ["ok", "5"]
            until(lambda: '"event": "notes_not_understood"' in pool.stderr, "the warning")
            assert pool.children() == processes
            name = children[0].hello["worker"]
            next(one for one in processes if one.pid == children[0].pid).kill()
            assert server.wait_child().hello["worker"] == name
            assert not children[1].closed
            assert pool.stderr.count("notes_not_understood") == 1
            assert "Traceback" not in pool.stderr


def test_a_second_signal_at_the_same_moment(tmp_path: Path) -> None:
    """A service manager signals all processes, and the supervisor passes it on to its pool: that is one request."""
    with at_work() as (child, pool):
        _, gate = hold(child, tmp_path)
        for number in (signal.SIGTERM, signal.SIGINT):  # two of the same might come as one
            pool.process.send_signal(number)
        child.take("capacity")
        gate.touch()
        assert child.take_results(1)[0][2] == "ok"
        assert pool.wait() == 0


def test_a_second_signal_later(tmp_path: Path) -> None:
    with at_work() as (child, pool):
        hold(child, tmp_path)
        (process,) = pool.children()
        pool.terminate()
        child.take("capacity")
        heard_s = time.monotonic()
        until(lambda: time.monotonic() > heard_s + SAME_SIGNAL_S, "another moment")
        pool.terminate()
        assert pool.wait() == SIGNALED + signal.SIGTERM
        assert child.count("report") == 0
        until(lambda: not psutil.pid_exists(process.pid), "no child")


@pytest.mark.rest
def test_a_crash_loop_ends_the_pool(tmp_path: Path) -> None:
    (tmp_path / "dying.py").write_text("import os, pulse\napp = pulse.App()\nos._exit(9)\n")
    with FakeServer() as server, worker(server, app="dying:app", cwd=tmp_path) as pool:
        assert pool.wait() == 70
        lines = pool.stderr.splitlines()
        assert "pulse: handler process 0 died more than 5 times within 60 s; the pool gives up" in lines
        assert sum('"exit_code": 9' in line for line in lines) == 6


def test_an_app_that_cannot_be_loaded(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import pulse\napp = pulse.App()\n1 / 0\n")
    with FakeServer() as server, worker(server, "--processes", "3", app="broken:app", cwd=tmp_path) as pool:
        assert pool.wait() == 1
        assert pool.stderr.count("Traceback") == 1
        assert pool.stderr.splitlines()[0].startswith("Traceback")
        assert pool.stderr.splitlines()[-1] == "pulse: cannot load 'broken:app': ZeroDivisionError: division by zero"
        assert '"event"' not in pool.stderr, "that line says it all"


def test_a_server_that_refuses_the_worker() -> None:
    with FakeServer() as server:
        server.refuse_hello = ("forbidden", "this user may not be a worker")
        with worker(server, "--processes", "2") as pool:
            assert pool.wait() == 1
            line = "pulse: the server refuses this worker: this user may not be a worker"
            assert pool.stderr.splitlines().count(line) == 1


def test_children_die_with_their_parent() -> None:
    with FakeServer() as server, worker(server, "--processes", "2") as pool:
        server.wait_child()
        server.wait_child()
        children = pool.children()
        assert len(children) == 2
        pool.process.send_signal(signal.SIGKILL)
        pool.wait()
        until(lambda: not any(is_alive(child.pid) for child in children), "their end")


def test_settings_of_the_environment() -> None:
    env = {"PULSE_CONCURRENCY": "4", "PULSE_PROCESSES": "2"}
    with FakeServer() as server, worker(server, "--processes", "1", env=env) as pool:
        assert server.wait_child().hello["capacity"] == 4
        assert len(pool.children()) == 1


def test_a_wrong_setting_is_one_line() -> None:
    with FakeServer() as server, worker(server, env={"PULSE_DRAIN_S": "soon"}) as pool:
        assert pool.wait() == 1
        assert pool.stderr.startswith("pulse: PULSE_DRAIN_S")
        assert len(pool.stderr.splitlines()) == 1


@pytest.mark.parametrize("what", ["directory", "file", "too long"])
def test_a_socket_that_can_never_be_one(what: str, tmp_path: Path) -> None:
    with FakeServer() as server:
        if what == "directory":
            server.path = server.directory
        elif what == "file":
            server.path = tmp_path / "file"
            server.path.touch()
        else:
            server.path = server.directory / ("x" * 100)
        with worker(server) as pool:
            assert pool.wait() == 1
            assert pool.stderr.startswith(f"pulse: socket {'path ' if what == 'too long' else ''}{server.path} ")
            assert len(pool.stderr.splitlines()) == 1
        server.path = server.directory / "pulse.sock"
