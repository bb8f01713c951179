"""``pulse worker --reload``: a changed file starts the pool again, after its handlers have ended."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulse.worker.pool.reload import watched
from tests.support.servers.fake_server import FakeServer, job
from tests.support.systems.worker_kit import WorkerProcess, args, worker
from tests.support.waiting import is_alive, until

pytestmark = [pytest.mark.process, pytest.mark.timed, pytest.mark.rest]

CHANGING = (
    "import pathlib, anyio, pulse\n"
    "app = pulse.App()\n"
    "@app.handler('hold')\n"
    "async def hold(gate: str, started: str) -> str:\n"
    "    pathlib.Path(started).touch()\n"
    "    while not pathlib.Path(gate).exists():\n"
    "        await anyio.sleep(0.01)\n"
    "    return 'VERSION'\n"
)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write(tmp_path, "one")
    return tmp_path


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as made:
        yield made


@pytest.fixture
def pool(server: FakeServer, place: Path) -> Iterator[WorkerProcess]:
    with worker(server, "--reload", "--drain-s", "20", app="changing:app", cwd=place) as made:
        until(lambda: "files_watched" in made.stderr, "it watches")
        yield made


def write(place: Path, version: str) -> None:
    (place / "changing.py").write_text(CHANGING.replace("VERSION", version))


def held(place: Path, name: str) -> str:
    return args(gate=place / f"gate-{name}", started=place / f"started-{name}")


def test_a_change_starts_the_pool_again(server: FakeServer, pool: WorkerProcess, place: Path) -> None:
    """The handler that runs ends first; the next job meets the new code."""
    old = server.wait_child()
    old.assign([job("hold", held(place, "old"))])
    until((place / "started-old").exists, "the handler")
    write(place, "two")
    until(lambda: "worker_draining" in pool.stderr, "the drain")
    (place / "gate-old").touch()
    assert old.take_results(1)[0][2:4] == ["ok", '"one"']
    new = server.wait_child()
    (place / "gate-new").touch()
    new.assign([job("hold", held(place, "new"))])
    assert new.take_results(1)[0][2:4] == ["ok", '"two"']
    assert not is_alive(old.pid)


def test_its_pools_have_its_options(server: FakeServer, place: Path) -> None:
    """But not --reload itself."""
    with worker(server, "--reload", "--no-preload", "--topic", "a", app="changing:app", cwd=place) as made:
        server.wait_child()
        words = " ".join(made.children()[0].cmdline())
        assert "--no-preload" in words
        assert "--topic a" in words
        assert "--reload" not in words


def test_a_mistake_waits_for_the_next_change(server: FakeServer, pool: WorkerProcess, place: Path) -> None:
    server.wait_child()
    (place / "changing.py").write_text("app = = 1\n")
    until(lambda: "pool_waits_for_change" in pool.stderr, "the mistake is met")
    assert "SyntaxError" in pool.stderr
    write(place, "two")
    assert server.wait_child().hello["names"] == ["hold"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_drains_at_a_signal(server: FakeServer, pool: WorkerProcess, place: Path, number: signal.Signals) -> None:
    """Its handlers end first; a second signal ends it at once."""
    child = server.wait_child()
    child.assign([job("hold", held(place, "last"))])
    until((place / "started-last").exists, "the handler")
    pool.process.send_signal(number)
    until(lambda: "worker_draining" in pool.stderr, "the drain")
    (place / "gate-last").touch()
    assert child.take_results(1)[0][2] == "ok"
    assert pool.wait() == 0
    assert not is_alive(child.pid)


def test_a_mistake_at_a_signal(pool: WorkerProcess, place: Path) -> None:
    (place / "changing.py").write_text("app = = 1\n")
    until(lambda: "pool_waits_for_change" in pool.stderr, "the mistake is met")
    pool.terminate()
    assert pool.wait() != 0


def test_what_is_watched(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current directory, and what lies elsewhere: the folder of a package, the file of a module."""
    monkeypatch.chdir(place)
    elsewhere = place.parent / f"{place.name}-elsewhere"
    (elsewhere / "package_elsewhere").mkdir(parents=True)
    for name in ("package_elsewhere/__init__.py", "module_elsewhere.py"):
        (elsewhere / name).touch()
    monkeypatch.syspath_prepend(str(elsewhere))
    assert watched("changing:app") == [place]
    assert watched("package_elsewhere.jobs:app") == [place, elsewhere / "package_elsewhere"]
    assert watched("module_elsewhere:app") == [place, elsewhere / "module_elsewhere.py"]
