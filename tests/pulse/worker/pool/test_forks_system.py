"""Handler processes that are forked from a template, and what happens where that is not safe."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from pulse.system import process_tree
from pulse.worker.pool.template import NAME
from tests.support.servers.fake_server import FakeServer, Peer, job
from tests.support.systems.worker_kit import WorkerProcess, args, at_work, worker
from tests.support.waiting import is_alive, until

pytestmark = [pytest.mark.process, pytest.mark.timed]

FORKED = (  # tells by files which processes have imported it, and which were forked
    "import os, pathlib, random, resource, signal, subprocess, sys\n"
    "import anyio, pulse\n"
    "app = pulse.App()\n"
    "pathlib.Path(f'imported-{os.getpid()}').touch()\n"
    "def forked():\n"
    "    with open('forked', 'a') as file:\n"
    "        file.write(f'{os.getpid()}\\n')\n"
    "os.register_at_fork(after_in_child=forked)\n"
    "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
    "def opened(fd: str) -> str:\n"
    "    try:\n"
    "        return os.readlink(f'/proc/self/fd/{fd}').strip('0123456789:[]')\n"
    "    except OSError:\n"
    "        return 'what listed them'\n"
    "@app.handler('who')\n"
    "async def who() -> dict[str, object]:\n"
    "    return {\n"
    "        'session': os.getsid(0), 'parent': os.getppid(), 'mark': os.environ['PULSE_TREE'],\n"
    "        'blocked': [str(one) for one in signal.pthread_sigmask(signal.SIG_BLOCK, ())],\n"
    "        'children': str(signal.getsignal(signal.SIGCHLD)),\n"
    "        'name': pathlib.Path('/proc/self/comm').read_text(),\n"
    "        'stdin': os.readlink('/proc/self/fd/0'), 'random': random.random(),\n"
    "        'open': sorted(map(opened, os.listdir('/proc/self/fd'))),\n"
    "    }\n"
    "@app.handler('daemon')\n"
    "async def daemon(command: str) -> int:\n"
    "    text = subprocess.run(['sh', '-c', f'setsid {command} >&2 & echo $!'], stdout=subprocess.PIPE).stdout\n"
    "    return int(text)\n"
)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "forked.py").write_text(FORKED)
    return tmp_path


def told(peer: Peer, name: str, arguments: str | None = None) -> Any:
    peer.assign([job(name) if arguments is None else job(name, arguments)])
    ((*_, outcome, text),) = peer.take_results(1)
    assert outcome == "ok", text
    return json.loads(text)


def kill(peer: Peer) -> None:
    psutil.Process(peer.pid).kill()


def imports(place: Path) -> set[int]:
    return {int(path.name.partition("-")[2]) for path in place.glob("imported-*")}


def log_of(pool: WorkerProcess, event: str) -> dict[str, Any]:
    until(lambda: f'"event": "{event}"' in pool.stderr, event)
    found: dict[str, Any] = json.loads(next(line for line in pool.stderr.splitlines() if f'"{event}"' in line))
    return found


def test_the_app_is_imported_once(place: Path) -> None:
    """And hooks of the app after a fork run once in each process; one that dies is replaced without an import."""
    with FakeServer() as server, worker(server, "--processes", "2", app="forked:app", cwd=place) as pool:
        first, second = server.wait_child(), server.wait_child()
        template = pool.template()
        kill(first)
        third = server.wait_child()
        assert third.hello["worker"] == first.hello["worker"]
        assert imports(place) == {template.pid}
        in_turn = [*sorted((first, second), key=lambda peer: str(peer.hello["worker"])), third]  # pids may begin anew
        assert (place / "forked").read_text().split() == [str(one.pid) for one in in_turn]
        assert not second.closed


def test_a_forked_process_is_as_one_that_was_started_by_itself(place: Path) -> None:
    found: dict[str, dict[str, Any]] = {}
    for option in ("--concurrency=1", "--no-preload"):
        with FakeServer() as server, worker(server, option, app="forked:app", cwd=place) as pool:
            peer = server.wait_child()
            facts = found[option] = told(peer, "who")
            assert facts.pop("session") == peer.pid
            assert facts.pop("parent") == pool.process.pid
            assert process_tree.mark_of(peer.pid) == facts.pop("mark")
            facts.pop("random")
            facts["open"] = [one for one in facts["open"] if not one.startswith("/tmp")]  # the log
    forked, started = found.values()
    assert forked == started
    assert NAME not in forked["name"]


def test_no_two_are_alike(place: Path) -> None:
    """Marks differ, so that the end of one leaves what the other has started; and so do random numbers."""
    with FakeServer() as server, worker(server, "--processes", "2", app="forked:app", cwd=place) as pool:
        first, second = server.wait_child(), server.wait_child()
        facts = [told(one, "who") for one in (first, second)]
        template = process_tree.mark_of(pool.template().pid)
        assert len({template, *(one["mark"] for one in facts)}) == 3
        assert facts[0]["random"] != facts[1]["random"]
        ends, stays = (told(one, "daemon", args(command="sleep 600")) for one in (first, second))
        kill(first)
        until(lambda: not is_alive(ends), "the end of its daemon")
        assert is_alive(stays)
        kill(second)
        until(lambda: not is_alive(stays), "the end of the other one")


def test_orphans_of_handlers_are_buried(place: Path) -> None:
    """The pool adopts them now, so it has to."""
    with at_work(app="forked:app", cwd=place) as (child, _):
        orphan = told(child, "daemon", args(command="true"))
        until(lambda: not psutil.pid_exists(orphan), "its burial")


OVERWRITES = (
    "import pulse.system.processes as p\n"
    "with open('/proc/self/mem', 'r+b', buffering=0) as memory:\n"
    "    memory.seek(p.environment_start())\n"
    "    memory.write(bytes(8000))\n"
)
UNSAFE = {
    "thread": (
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()",
        "thread Thread-1",
    ),
    "connection": ("import socket\nkept = socket.socketpair()[0]", "socket"),
    "child process": ("import subprocess\nkept = subprocess.Popen(['sleep', '600'])", "child process"),
    "environment": (OVERWRITES, "environment"),
}


@pytest.mark.rest
@pytest.mark.parametrize("what", UNSAFE)
def test_an_app_for_which_a_fork_is_not_safe(what: str, place: Path) -> None:
    """The process that has found that out serves itself; the others, and the spare, are started by themselves."""
    code, found = UNSAFE[what]
    (place / "forked.py").write_text(f"{FORKED}\n{code}\n")
    options = ("--processes", "2", "--spares", "1")
    with FakeServer() as server, worker(server, *options, app="forked:app", cwd=place) as pool:
        first, second = server.wait_child(), server.wait_child()
        assert log_of(pool, "fork_unsafe")["found"][0].startswith(found)
        assert imports(place) >= {first.pid, second.pid}
        until(lambda: len(imports(place)) == 3, "the spare")
        kill(first)
        assert server.wait_child().hello["worker"] == first.hello["worker"]
        assert pool.stderr.count("fork_unsafe") == 1
        assert "template_died" not in pool.stderr
        assert not (place / "forked").exists()


def test_a_library_that_crashes_after_a_fork(place: Path) -> None:
    """Nothing shows that beforehand; the next process is started by itself, and the pool does not give up."""
    with (place / "forked.py").open("a") as file:
        file.write("os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGSEGV))\n")
    with FakeServer() as server, worker(server, app="forked:app", cwd=place) as pool:
        assert server.wait_child().pid in imports(place)
        assert log_of(pool, "fork_unsafe")["found"] == ["a forked process died at its start: SIGSEGV"]
        until(lambda: len(pool.children()) == len(psutil.Process(pool.process.pid).children()), "no template is left")
        assert "template_died" not in pool.stderr


def test_a_template_that_dies(place: Path) -> None:
    """Its handler processes go on, and the next ones come from a new one."""
    with FakeServer() as server, worker(server, app="forked:app", cwd=place) as pool:
        first = server.wait_child()
        old = pool.template()
        old.kill()
        assert log_of(pool, "template_died")["signal"] == "SIGKILL"
        until(lambda: len(imports(place)) == 2, "the next import")
        new = pool.template()
        assert told(first, "who")["parent"] == pool.process.pid
        kill(first)
        second = server.wait_child()
        assert imports(place) == {old.pid, new.pid}
        assert str(second.pid) in (place / "forked").read_text().split()


@pytest.mark.rest
def test_a_template_that_cannot_load_the_app_any_more(place: Path) -> None:
    """The pool says so once, and tries again only for the next process that is needed."""
    with FakeServer() as server, worker(server, app="forked:app", cwd=place) as pool:
        first = server.wait_child()
        (place / "forked.py").write_text(f"{FORKED}1 / 0\n")
        pool.template().kill()
        until(lambda: pool.stderr.count('"event": "template_died"') == 2, "both deaths")
        lines = [json.loads(line) for line in pool.stderr.splitlines() if "template_died" in line]
        assert lines[1]["cause"] == "pulse: cannot load 'forked:app': ZeroDivisionError: division by zero"
        assert told(first, "who")["parent"] == pool.process.pid
        kill(first)
        assert pool.wait() == 1
        assert pool.stderr.count("Traceback") == 1


@pytest.mark.rest
def test_a_template_that_hangs(place: Path) -> None:
    with FakeServer() as server, worker(server, app="forked:app", cwd=place) as pool:
        first = server.wait_child()
        old = pool.template()
        old.suspend()
        kill(first)
        assert server.wait_child().hello["worker"] == first.hello["worker"]
        assert log_of(pool, "template_died")["pid"] == old.pid


def test_a_signal_to_all_processes(place: Path) -> None:
    """A service manager's: the template leaves it to the pool, which waits for its handlers and ends it then."""
    with FakeServer() as server, worker(server, app="forked:app", cwd=place) as pool:
        server.wait_child()
        template = pool.template()
        for number in (signal.SIGTERM, signal.SIGINT):
            template.send_signal(number)
        pool.children()[0].terminate()
        pool.terminate()
        assert pool.wait() == 0
        assert "template_died" not in pool.stderr
        assert not is_alive(template.pid)


def test_a_stop_while_the_app_is_imported(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import os, pathlib, threading\npathlib.Path('pid').write_text(str(os.getpid()))\nthreading.Event().wait()\n"
    )
    with FakeServer() as server, worker(server, "--processes", "3", app="slow:app", cwd=tmp_path) as pool:
        until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "the import")
        pool.terminate()
        assert pool.wait() == 0
        assert not is_alive(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize("free", [2, 4])
def test_a_process_that_cannot_be_forked(free: int, place: Path) -> None:
    """Too few descriptors, for what the pool sends or the template makes: the pool says why, and tries again."""
    (place / "forked.py").write_text(
        f"{FORKED}\nlast = os.open('/dev/null', os.O_RDONLY)\n"
        "limit = max(last, *(int(one) for one in os.listdir('/proc/self/fd')[:-1])) + 1\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (limit, 1000))\n"
        "kept = [last]\n"
        "while last >= 0:\n"
        "    try:\n"
        "        kept.append(os.dup(last))\n"
        "    except OSError:\n"
        "        break\n"
        f"for one in kept[-{free}:]:\n"
        "    os.close(one)\n"
    )
    with FakeServer() as server, worker(server, app="forked:app", cwd=place) as pool:
        assert "Too many open files" in log_of(pool, "handler_process_died")["cause"]
        assert is_alive(pool.template().pid)
        limit = pool.template().rlimit(psutil.RLIMIT_NOFILE)[0]
        pool.template().rlimit(psutil.RLIMIT_NOFILE, (limit + 50, limit + 50))
        assert server.wait_child().pid in map(int, (place / "forked").read_text().split())


def test_it_ends_with_its_pool(place: Path) -> None:
    with FakeServer() as server, worker(server, app="forked:app", cwd=place) as pool:
        child = server.wait_child()
        template = pool.template()
        os.kill(pool.process.pid, signal.SIGKILL)
        pool.wait()
        until(lambda: not is_alive(template.pid) and not is_alive(child.pid), "their end")
