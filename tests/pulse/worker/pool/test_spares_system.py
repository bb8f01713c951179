"""Spares: processes that wait, the app loaded, to replace one that dies."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.servers.fake_server import FakeServer, Peer, job
from tests.support.systems.worker_kit import ROOT, WorkerProcess, worker
from tests.support.waiting import is_alive, until

pytestmark = [pytest.mark.process, pytest.mark.timed, pytest.mark.rest]

WAITING = (  # tells by files which processes have loaded it
    "import os, pathlib, sys, pulse\n"
    "app = pulse.App()\n"
    "at_import = sys.stdin.read()\n"
    "@app.handler('stdin')\n"
    "async def stdin() -> list[str]:\n"
    "    return [at_import, sys.stdin.read(), os.readlink('/proc/self/fd/0')]\n"
    "pathlib.Path(f'loaded-{os.getpid()}').touch()\n"
)


@contextlib.contextmanager
def pool_of(
    server: FakeServer, processes: int = 1, spares: int = 1, app: str = "waiting:app", cwd: Path = ROOT
) -> Iterator[WorkerProcess]:
    options = ("--processes", str(processes), "--spares", str(spares), "--no-preload")
    with worker(server, *options, app=app, cwd=cwd) as pool:
        yield pool


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "waiting.py").write_text(WAITING)
    return tmp_path


def waiting(pool: WorkerProcess, *serving: Peer) -> list[psutil.Process]:
    known = {peer.pid for peer in serving}
    return [one for one in pool.children() if one.pid not in known]


def spare_of(pool: WorkerProcess, *serving: Peer, place: Path | None = None) -> psutil.Process:
    """The spare, as soon as it is there; with *place*, as soon as it has loaded the app."""
    (spare,) = until(lambda: waiting(pool, *serving), "a spare")
    if place is not None:
        until((place / f"loaded-{spare.pid}").exists, "its app")
    return spare


def kill(peer: Peer) -> None:
    psutil.Process(peer.pid).kill()


def test_a_killed_process_is_replaced_by_the_spare(place: Path) -> None:
    with FakeServer() as server, pool_of(server, 2, cwd=place) as pool:
        first, second = server.wait_child(), server.wait_child()
        spare = spare_of(pool, first, second, place=place)
        kill(first)
        again = server.wait_child()
        assert (again.pid, again.hello["worker"]) == (spare.pid, first.hello["worker"])
        assert again.hello["running"] == []
        assert "session" not in again.hello
        again.assign([job("stdin")])
        ((*_, outcome, told),) = again.take_results(1)
        assert (outcome, json.loads(told)) == ("ok", ["", "", "/dev/null"])  # not what the parent says to it
        assert not second.closed
        assert spare_of(pool, again, second).pid not in {first.pid, spare.pid}
        assert "spare_died" not in pool.stderr


def test_a_spare_is_taken_before_it_is_ready(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import os, pathlib, time\n"
        "loads = len(list(pathlib.Path().glob('loading-*')))\n"
        "pathlib.Path(f'loading-{os.getpid()}').touch()\n"
        "while loads and not pathlib.Path('gate').exists():\n"
        "    time.sleep(0.005)\n"
        "import pulse\n"
        "app = pulse.App()\n"
        "@app.handler('nothing')\n"
        "async def nothing() -> None: ...\n"
    )
    with FakeServer() as server, pool_of(server, app="slow:app", cwd=tmp_path) as pool:
        first = server.wait_child()
        spare = spare_of(pool, first)
        until((tmp_path / f"loading-{spare.pid}").exists, "its start")
        kill(first)
        until(lambda: '"event": "handler_process_died"' in pool.stderr, "the death")
        assert pool.children() == [spare]
        (tmp_path / "gate").touch()
        assert server.wait_child().pid == spare.pid


def test_spares_wait_until_all_are_connected(place: Path) -> None:
    with FakeServer() as server:
        server.silent_on = {"hello"}
        with pool_of(server, 2, 2, cwd=place) as pool:
            until(lambda: len(list(place.glob("loaded-*"))) == 2, "both processes")
            until(lambda: sum(peer.log != [] for peer in server.peers()) >= 2, "both hellos")
            assert len(pool.children()) == 2
            server.stop()
            server.silent_on = set()  # not before: a hello that is late would be welcomed by who goes
            server.listen()
            peers = [server.wait_child(), server.wait_child()]
            until(lambda: len(waiting(pool, *peers)) == 2, "two spares")


def test_a_spare_that_dies_is_not_missed(place: Path) -> None:
    with FakeServer() as server, pool_of(server, cwd=place) as pool:
        first = server.wait_child()
        spare_of(pool, first, place=place).kill()
        until(lambda: '"event": "spare_died"' in pool.stderr, "the line")
        assert [one.pid for one in pool.children()] == [first.pid]
        first.assign([job("stdin")])
        assert first.take_results(1)[0][2] == "ok"
        assert [one.pid for one in pool.children()] == [first.pid]
        kill(first)
        again = server.wait_child()
        assert again.hello["worker"] == first.hello["worker"]
        spare_of(pool, again)
        assert pool.stderr.count("spare_died") == 1


def test_all_die_at_once(place: Path) -> None:
    """A spare that died in the same moment as its process is not used."""
    with FakeServer() as server, pool_of(server, cwd=place) as pool:
        first = server.wait_child()
        spare = spare_of(pool, first, place=place)
        pool.process.send_signal(signal.SIGSTOP)
        spare.kill()
        kill(first)
        until(lambda: all(one.status() == psutil.STATUS_ZOMBIE for one in pool.children()), "both deaths")
        pool.process.send_signal(signal.SIGCONT)
        assert server.wait_child().pid not in {first.pid, spare.pid}
        assert pool.stderr.count('"event": "handler_process_died"') == 1


def test_an_app_that_cannot_be_loaded_any_more(place: Path) -> None:
    with FakeServer() as server, pool_of(server, cwd=place) as pool:
        first = server.wait_child()
        spare_of(pool, first, place=place)
        (place / "waiting.py").write_text(f"{WAITING}1 / 0\n")
        kill(first)
        again = server.wait_child()
        until(lambda: '"event": "spare_died"' in pool.stderr, "the line")
        line = next(line for line in pool.stderr.splitlines() if "spare_died" in line)
        assert json.loads(line)["cause"] == "pulse: cannot load 'waiting:app': ZeroDivisionError: division by zero"
        again.assign([job("stdin")])
        assert again.take_results(1)[0][2] == "ok"
        assert [one.pid for one in pool.children()] == [again.pid]
        assert "Traceback" not in pool.stderr
        kill(again)
        assert pool.wait() == 1
        assert pool.stderr.count("Traceback") == 1
        assert pool.stderr.count("spare_died") == 1


def test_a_stop_leaves_no_spare(place: Path) -> None:
    (place / "draining.py").write_text(
        WAITING + "@app.handler('hold')\n"
        "async def hold() -> None:\n"
        "    import anyio\n"
        "    while not pathlib.Path('gate').exists():\n"
        "        await anyio.sleep(0.005)\n"
    )
    with FakeServer() as server, pool_of(server, app="draining:app", cwd=place) as pool:
        first = server.wait_child()
        first.assign([job("hold")])
        first.take("started")
        spare = spare_of(pool, first, place=place)
        pool.terminate()
        until(lambda: not spare.is_running(), "its end, reaped")
        assert not first.closed
        (place / "gate").touch()
        assert pool.wait() == 0
        assert "spare_died" not in pool.stderr


def test_a_drain_for_good_leaves_no_spare(place: Path) -> None:
    with FakeServer() as server, pool_of(server, cwd=place) as pool:
        first = server.wait_child()
        spare = spare_of(pool, first, place=place)
        first.send("drain", None, {"reconnect": False})
        assert pool.wait() == 0
        assert not spare.is_running()


def test_a_spare_dies_with_its_parent(place: Path) -> None:
    with FakeServer() as server, pool_of(server, 1, 2, cwd=place) as pool:
        first = server.wait_child()
        until(lambda: len(waiting(pool, first)) == 2, "two spares")
        spares = waiting(pool, first)
        until((place / f"loaded-{spares[0].pid}").exists, "one that is ready")
        pool.process.kill()
        pool.wait()
        until(lambda: not any(is_alive(spare.pid) for spare in spares), "their end")


@pytest.mark.parametrize(("backend", "number"), [("asyncio", signal.SIGTERM), ("trio", signal.SIGINT)])
def test_a_spare_that_is_asked_to_end(backend: str, number: signal.Signals, place: Path) -> None:
    """A service manager's SIGTERM to all ends a spare without a traceback or a warning."""
    options = ("--spares", "1", "--backend", backend, "--no-preload")
    with FakeServer() as server, worker(server, *options, app="waiting:app", cwd=place) as pool:
        spare = spare_of(pool, server.wait_child(), place=place)
        until(lambda: not default_int_handler(spare.pid), "its event loop")
        spare.send_signal(number)
        until(lambda: '"event": "spare_died"' in pool.stderr, "the line")
        line = json.loads(next(line for line in pool.stderr.splitlines() if "spare_died" in line))
        assert (line["level"], line["signal"]) == ("info", number.name)
        assert "Traceback" not in pool.stderr


def default_int_handler(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text("ascii")
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) & 1 << (signal.SIGINT - 1))
