"""Jobs that run each in a process of their own: everything is as in the handler process, but for the process."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from tests.support.servers.fake_server import FakeServer, Peer, job, pair
from tests.support.systems.worker_kit import WorkerProcess, args, at_work, check_endings, worker
from tests.support.waiting import until
from tests.support.whole import WHOLE

pytestmark = [pytest.mark.process, pytest.mark.timed]

APP: Final = "tests.support.apps.cell_app:app"
both_backends = pytest.mark.parametrize("backend", ["asyncio", "trio"])
# An async handler on each event loop, and a plain one.
all_kinds = pytest.mark.parametrize(
    ("kind", "backend"), [("", "asyncio"), ("-plain", "asyncio"), *([("", "trio")] if WHOLE else [])]
)


def run(child: Peer, one: list[Any]) -> list[Any]:
    child.assign([one])
    (result,) = child.take_results(1)
    assert result[:2] == pair(one)
    return result[2:]


def zygote_of(pool: WorkerProcess) -> psutil.Process:
    (host,) = pool.children()
    (zygote,) = host.children()
    return zygote


@all_kinds
def test_each_job_has_a_process_of_its_own(kind: str, backend: str) -> None:
    with at_work("--backend", backend, app=APP) as (child, pool):
        here = json.loads(run(child, job("here"))[1])
        results = [run(child, job(f"who{kind}", args(n=n))) for n in range(3)]
        found = [json.loads(result) for _, result, _ in results]
        assert [one["given"] for one in found] == [{"n": n} for n in range(3)]
        assert len({here["pid"], *(one["pid"] for one in found)}) == 4
        zygote = zygote_of(pool)
        assert {one["parent"] for one in found} == {zygote.pid}
        assert here["group"] == here["pid"]
        assert [one["group"] for one in found] == [one["pid"] for one in found]
        assert {one["threads"] for one in found} == {1}
        assert zygote.num_threads() == 1
        for one in found:
            assert not set(one["sockets"]) & set(here["sockets"])
            assert not kind or len(one["sockets"]) == 1, "it has more than its own channel"
            assert one["inherited"] == [], "what its handler starts would hold its descriptors"
            assert one["oom_score"] == min(1000, here["oom_score"] + 200)
        for _, _, used in results:
            assert used.keys() == {"cpu_s", "peak_rss_bytes"}
            assert 0 < used["cpu_s"] < 10
            assert 2**22 < used["peak_rss_bytes"] < 2**30
        assert len(run(child, job("here"))) == 2
        assert run(child, job(f"exit{kind}"))[2]["cpu_s"] > 0
        until(lambda: zygote.children() == [], "the end of all cells")


@both_backends
def test_what_a_handler_may_come_to(backend: str) -> None:
    with at_work("--backend", backend, app=APP) as (child, _):
        check_endings(child, {
            "coroutine": ("error", "the handler is a plain def that returned a coroutine"),
            "echo": ("discard", "the handler does not take these args: argument 'text' is missing; it takes text"),
            "fork": ("ok", "70"),  # the child may not come back: there is one result
        })  # fmt: skip


@pytest.mark.rest
@pytest.mark.parametrize("kind", ["", "-plain"])
def test_a_lease_that_passes_unanswered(kind: str) -> None:
    with FakeServer(heartbeat_s=0.2, lease_s=0.6) as server, worker(server, app=APP):
        child = server.wait_child()
        child.assign([job(f"watch-lease{kind}", lease_s=0.6)])
        child.take("started")
        server.silent_on.add("heartbeat")
        assert child.take_results(1)[0][2:4] == ["ok", '"lost, cancelled: False"']


def test_the_server_may_isolate_any_job() -> None:
    with at_work(app=APP) as (child, pool):
        here = json.loads(run(child, job("here-plain"))[1])
        (host,) = pool.children()
        assert host.children() == [], "there is a zygote before anything is isolated"
        for name in ("here", "here-plain"):
            apart = json.loads(run(child, job(name, extra={"isolate": True}))[1])
            assert apart["group"] == apart["pid"] != here["pid"]
            assert json.loads(run(child, job(name, extra={"isolate": False}))[1])["pid"] == here["pid"]
        died = run(child, job("die", extra={"isolate": True}))
        assert died[:2] == ["crash", ["worker process died: exit code 7", 7]]
        assert json.loads(run(child, job("here"))[1])["pid"] == here["pid"]


def test_an_isolated_job_takes_one_place(tmp_path: Path) -> None:
    gates = [tmp_path / f"gate-{n}" for n in range(3)]
    starts = [tmp_path / f"started-{n}" for n in range(3)]
    jobs = [job("wait", args(gate=gate, started=started)) for gate, started in zip(gates, starts, strict=True)]
    with at_work("--concurrency", "2", app=APP) as (child, _):
        run(child, job("who"))
        child.take("started")
        named = child.count("started")
        child.assign([*jobs, job("here")])
        until(lambda: starts[0].exists() and starts[1].exists(), "two cells")
        assert child.take("started").body["jobs"] == [pair(one) for one in jobs[:2]]
        assert child.count("started") == named + 1
        gates[1].touch()
        assert child.take_results(1)[0][:2] == pair(jobs[1])
        assert child.take("started").body["jobs"] == [pair(jobs[2])]
        gates[0].touch()
        gates[2].touch()
        assert len(child.take_results(3)) == 3


def test_a_slow_import_delays_isolated_jobs_only(tmp_path: Path) -> None:
    """While the zygote loads the app, others run, and waiting jobs are not named as started: no time runs yet."""
    gate, loading = tmp_path / "gate", tmp_path / "loading"
    (tmp_path / "slow.py").write_text(
        "import pathlib, sys, time, pulse\n"
        "app = pulse.App()\n"
        f"gate, loading = pathlib.Path({str(gate)!r}), pathlib.Path({str(loading)!r})\n"
        "if 'zygote' in sys.orig_argv[2]:\n"
        "    loading.touch()\n"
        "    while not gate.exists():\n"
        "        time.sleep(0.01)\n"
        "@app.handler('apart', isolate=True)\n"
        "def apart(): return 'apart'\n"
        "@app.handler('here')\n"
        "def here(): return 'here'\n"
    )
    with at_work("--concurrency", "1", app="slow:app", cwd=tmp_path) as (child, _):
        first, stopped, recalled = (job("apart", timeout_s=0.5) for _ in range(3))
        child.assign([first, stopped, recalled])
        until(loading.exists, "the zygote's import")
        orders = [[*pair(stopped), "canceled"], [*pair(recalled), "recall"]]
        child.send("stop", None, {"jobs": orders})
        assert [one[1:3] for one in child.take_results(2)] == [[1, "release"], [1, "release"]]
        assert [run(child, job("here")) for _ in range(3)] == [["ok", '"here"']] * 3
        named = [one for heard in child.log if heard.kind == "started" for one in heard.body["jobs"]]
        assert len(named) == 3
        assert pair(first) not in named
        gate.touch()
        assert child.take_results(1)[0][:4] == [*pair(first), "ok", '"apart"']


def test_large_args_and_results() -> None:
    with FakeServer() as server, worker(server, app=APP):
        child = server.wait_child()
        text = "ä" * 1_000_000
        outcome, detail, _ = run(child, job("echo", args(text=text)))
        assert (outcome, json.loads(detail)) == ("ok", text)
    with FakeServer(max_frame_bytes=100_000) as server, worker(server, app=APP):
        child = server.wait_child()
        assert run(child, job("echo", args(text="x" * 200_000)))[1].startswith("too large: result of about 200")


@pytest.mark.rest
def test_many_at_once() -> None:
    with at_work("--concurrency", "50", app=APP) as (child, pool):
        run(child, job("who"))
        (host,) = pool.children()
        before = host.num_fds()
        jobs = [job("who-plain" if n % 2 else "who", args(n=n)) for n in range(200)]
        child.assign(jobs)
        results = {one[0]: json.loads(one[3]) for one in child.take_results(200)}
        assert [results[one[0]]["given"]["n"] for one in jobs] == list(range(200))
        assert len({one["pid"] for one in results.values()}) == 200
        zygote = zygote_of(pool)
        until(lambda: zygote.children() == [], "the end of all cells")
        until(lambda: host.num_fds() <= before, "closed descriptors")
        assert zygote.num_fds() <= 12


def test_an_app_that_starts_threads_is_warned_of() -> None:
    """Threads from import time do not exist after a fork, and their locks may be held for ever."""
    with FakeServer() as server:
        (server.directory / "threaded.py").write_text(
            "import threading, time, pulse\n"
            "app = pulse.App()\n"
            "threading.Thread(target=time.sleep, args=(3600,), name='busybody', daemon=True).start()\n"
            "@app.handler('apart', isolate=True)\n"
            "def apart(): return [thread.name for thread in threading.enumerate()]\n"
        )
        with worker(server, app="threaded:app", cwd=server.directory) as pool:
            assert run(server.wait_child(), job("apart"))[:2] == ["ok", '["MainThread"]']
            lines = [json.loads(line) for line in pool.stderr.splitlines() if "app_started_threads" in line]
            assert [line["threads"] for line in lines] == [["busybody"]]


def test_an_app_that_ignores_its_children() -> None:
    """The app's own SIGCHLD setting does not hide from the zygote how a cell ended."""
    with FakeServer() as server:
        (server.directory / "careless.py").write_text(
            "import os, signal, pulse\n"
            "app = pulse.App()\n"
            "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
            "@app.handler('apart', isolate=True)\n"
            "def apart(): os._exit(5)\n"
        )
        with worker(server, app="careless:app", cwd=server.directory):
            child = server.wait_child()
            for _ in range(2):
                assert run(child, job("apart"))[:2] == ["crash", ["worker process died: exit code 5", 5]]


def test_handlers_that_leave_their_directory() -> None:
    """Jobs that come later are still isolated where the pool was started, though this process is nowhere."""
    with FakeServer() as server:
        (server.directory / "restless.py").write_text(
            "import os, tempfile, pulse\n"
            "app = pulse.App()\n"
            "@app.handler('leave')\n"
            "def leave():\n"
            "    with tempfile.TemporaryDirectory() as directory: os.chdir(directory)\n"
            "@app.handler('apart', isolate=True)\n"
            "def apart(): return os.getcwd()\n"
        )
        with worker(server, app="restless:app", cwd=server.directory):
            child = server.wait_child()
            assert run(child, job("leave"))[0] == "ok"
            assert run(child, job("apart"))[:2] == ["ok", json.dumps(str(server.directory.resolve()))]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_to_all_do_not_end_cells(number: int, tmp_path: Path) -> None:
    """A stop of every process, zygote and cells too, lets isolated jobs finish like others: the worker decides."""
    gate, started = tmp_path / "gate", tmp_path / "started"
    with at_work(app=APP) as (child, pool):
        one = job("wait", args(gate=gate, started=started))
        child.assign([one])
        until(started.exists, "the cell")
        (host,) = pool.children()
        os.killpg(int(started.read_text()), number)
        os.killpg(host.pid, number)
        child.take("capacity")
        gate.touch()
        assert child.take_results(1)[0][:4] == [*pair(one), "ok", '"through"']


def test_last_words() -> None:
    with FakeServer() as server, worker(server, app=APP) as pool:
        assert run(server.wait_child(), job("mumble"))[0] == "ok"
        until(lambda: "half a line" in pool.stderr, "it is there")
