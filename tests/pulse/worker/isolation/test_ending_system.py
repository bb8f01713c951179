"""How isolated jobs end that do not end by themselves: they die, reach a limit, are stopped, or killed."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.pulse.worker.isolation.test_run_system import APP, all_kinds, both_backends, run, zygote_of
from tests.support.servers.fake_server import job, pair
from tests.support.systems.worker_kit import args, at_work
from tests.support.waiting import is_alive, until

pytestmark = [pytest.mark.process, pytest.mark.timed]

QUICK: Final = {"PULSE_OBEY_S": "0.5"}


def pid_in(path: Path) -> int:
    until(path.exists, f"a pid in {path}")
    return int(path.read_text())


DEATHS: Final[list[tuple[str, dict[str, int], str, int, list[str]]]] = [
    ("die", {}, "exit code 7", 7, []),
    ("die", {"code": 0}, "exit code 0", 0, []),
    ("kill-itself", {"number": signal.SIGKILL}, "SIGKILL", -signal.SIGKILL, []),
    ("kill-itself", {"number": signal.SIGABRT}, "SIGABRT", -signal.SIGABRT, ["in kill_itself"]),
    ("fault", {}, "SIGSEGV", -signal.SIGSEGV, ["Segmentation fault", "in fault"]),
]


def test_one_that_dies_is_a_crash() -> None:
    with at_work(app=APP) as (child, pool):
        (host,) = pool.children()
        for name, given, text, code, calls in DEATHS:
            outcome, detail, extra = run(child, job(name, args(**given), extra={"isolate": True}))
            assert (outcome, detail) == ("crash", [f"worker process died: {text}", code])
            assert extra["cpu_s"] > 0
            assert extra["peak_rss_bytes"] > 2**22
            assert all(call in extra["stack"] for call in calls)
            assert ("stack" in extra) == bool(calls)
            assert "stopped" not in extra
        assert json.loads(run(child, job("here"))[1])["pid"] == host.pid
        assert run(child, job("who"))[0] == "ok"


@pytest.mark.rest
@both_backends
def test_memory_beyond_the_limit(backend: str) -> None:
    with at_work("--backend", backend, app=APP) as (child, _):
        for name, step in (("eat", 2**20), ("eat", 2**30), ("eat-plain", 2**20), ("eat-plain", 2**30)):
            outcome, text, used = run(child, job(name, args(step=step)))
            assert (outcome, text.splitlines()[0]) == ("error", "MemoryError")
            assert "eaten.append" in text
            assert used["peak_rss_bytes"] < 512 * 2**20
        outcome, text, _ = run(child, job("eat-crumbs"))
        assert (outcome, text.splitlines()[0]) == ("error", "MemoryError")
        assert "crumb = (crumb, *beside)" in text


def test_a_memory_limit_below_what_the_app_needs() -> None:
    with at_work(app=APP) as (child, _):
        outcome, text, _ = run(child, job("diet"))
        assert outcome == "error"
        assert text.startswith("MemoryError: max_memory_bytes is 4096: before the handler runs, ")


@pytest.mark.rest
@pytest.mark.parametrize(("name", "backend", "text", "has_stack"), [
    ("compute", "asyncio", "used more than 1 s of CPU time", True),
    ("compute", "trio", "used more than 1 s of CPU time", True),
    ("compute-plain", "asyncio", "used more than 0.2 s of CPU time", False),  # it ignores the signal
])  # fmt: skip
def test_processor_time_beyond_the_limit(name: str, backend: str, text: str, has_stack: bool) -> None:
    """The process ends, though C code holds its interpreter; it is the job's error, with the place, and no crash."""
    with at_work("--backend", backend, app=APP) as (child, _):
        outcome, detail, extra = run(child, job(name))
        assert (outcome, detail) == ("error", text)
        assert 0.5 < extra["cpu_s"] < 4.0  # the kernel looks at it once per tick
        assert ("stack" in extra) == has_stack
        assert not has_stack or "in compute" in extra["stack"]


@pytest.fixture
def small_group() -> Iterator[Path]:
    name = f"pulse-test-{os.getpid()}"
    places = [
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        *((root, "memory.max") for root in (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))),
    ]
    for root, limit in places:
        group = root / name
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text(str(128 * 2**20))
            (group / "cgroup.procs").read_text()
        except OSError:
            group.rmdir()
            continue
        try:
            yield group
        finally:
            until(lambda group=group: not (group / "cgroup.procs").read_text(), "an empty group")  # type: ignore[misc]
            group.rmdir()
        return
    pytest.skip("no memory cgroup can be made here")


def test_killed_by_the_kernel_for_memory(small_group: Path) -> None:
    """It differs from another SIGKILL: an operator must give it more memory, or the handler take less. Others live."""
    with at_work(app=APP) as (child, pool):
        (host,) = pool.children()
        (small_group / "cgroup.procs").write_text(str(host.pid))
        outcome, detail, _ = run(child, job("eat-all"))
        assert (outcome, detail) == ("crash", ["worker process died: out of memory (SIGKILL)", -9])
        killed = run(child, job("kill-itself", args(number=9)))
        assert killed[:2] == ["crash", ["worker process died: SIGKILL", -9]]
        assert pool.children() == [host]


@both_backends
def test_stop_canceled(backend: str, tmp_path: Path) -> None:
    with at_work("--backend", backend, app=APP) as (child, _):
        waiting = job("wait", args(gate=tmp_path / "gate", started=tmp_path / "started"))
        asked = job("wait-plain", args(gate=tmp_path / "gate", started=tmp_path / "started-plain"))
        child.assign([waiting, asked])
        pids = [pid_in(tmp_path / "started"), pid_in(tmp_path / "started-plain")]
        child.send("stop", None, {"jobs": [[*pair(waiting), "canceled"], [*pair(asked), "lost"]]})
        results = {one[0]: one[2:] for one in child.take_results(2)}
        assert results[waiting[0]][:2] == ["release", None]
        assert results[waiting[0]][2]["stopped"] == "canceled"
        assert "stack" not in results[waiting[0]][2]
        assert results[asked[0]][:2] == ["ok", '"asked to end, lease lost: True"']
        assert results[asked[0]][2]["stopped"] == "lost"
        assert not any(map(is_alive, pids)), "a result was told before the process had ended"


@all_kinds
def test_a_timeout_counts_from_the_call(kind: str, backend: str, tmp_path: Path) -> None:
    with at_work("--backend", backend, app=APP) as (child, _):
        given = args(gate=tmp_path / "gate", started=tmp_path / "started")
        outcome, detail, extra = run(child, job(f"wait{kind}", given, timeout_s=0.3))
        if kind:
            assert (outcome, detail) == ("ok", '"asked to end, lease lost: False"')
        else:
            assert (outcome, detail) == ("error", "timed out after 0.3 s")
            assert "    await anyio.sleep(0.005)" in extra["stack"].splitlines()
        assert extra["stopped"] == "timeout"
        assert f"in wait{kind.replace('-', '_')}" in extra["stack"]
        assert "Main thread " in extra["stack"]


@pytest.mark.rest
@pytest.mark.parametrize(("name", "limits", "outcome", "text", "stopped"), [
    ("deaf", {"timeout_s": 0.3}, "error", "timed out after 0.3 s", "timeout"),
    ("deaf-plain", {"timeout_s": 0.3}, "error", "timed out after 0.3 s", "timeout"),
    ("deaf", {}, "release", None, "canceled"),
    ("deaf-plain", {}, "release", None, "lost"),
])  # fmt: skip
def test_one_that_does_not_obey_is_killed(
    name: str, limits: dict[str, Any], outcome: str, text: str | None, stopped: str, tmp_path: Path
) -> None:
    with at_work(env=QUICK, app=APP) as (child, pool):
        neighbour = job("wait", args(gate=tmp_path / "gate", started=tmp_path / "neighbour"))
        one = job(name, args(started=tmp_path / "started"), **limits)
        child.assign([neighbour, one])
        pid = pid_in(tmp_path / "started")
        pid_in(tmp_path / "neighbour")
        if stopped != "timeout":
            child.send("stop", None, {"jobs": [[*pair(one), stopped]]})
        began_s = time.monotonic()
        (result,) = child.take_results(1)
        assert time.monotonic() - began_s < 3.0
        assert result[:4] == [*pair(one), outcome, text]
        assert result[4]["stopped"] == stopped
        assert ("stack" in result[4]) == (stopped == "timeout")
        assert stopped != "timeout" or f"in {name.replace('-', '_')}" in result[4]["stack"]
        assert not is_alive(pid)
        assert '"event": "cell_killed"' in pool.stderr
        (tmp_path / "gate").touch()
        assert child.take_results(1)[0][:4] == [*pair(neighbour), "ok", '"through"']


@pytest.mark.rest
@pytest.mark.parametrize(("name", "backend"), [("silent", "asyncio"), ("silent", "trio"), ("silent-plain", "asyncio")])
def test_a_silent_one_is_stopped(name: str, backend: str) -> None:
    with at_work("--backend", backend, env=QUICK, app=APP) as (child, _):
        outcome, text, extra = run(child, job(name))
        assert (outcome, text) == ("error", "stalled: no progress for 0.5 s")
        assert extra["stopped"] == "stalled"
        beats = [one[2] for heard in child.log if heard.kind == "heartbeat" for one in heard.body["jobs"]]
        assert '{"value":9}' in [*beats, extra.get("progress")]
        assert f"in {name.replace('-', '_')}" in extra["stack"]


@pytest.mark.rest
def test_drain_gives_back_what_does_not_finish(tmp_path: Path) -> None:
    with at_work(env={"PULSE_DRAIN_S": "0.3"}, app=APP) as (child, pool):
        waiting = job("wait", args(gate=tmp_path / "gate", started=tmp_path / "started"))
        deaf = job("deaf", args(started=tmp_path / "started-deaf"))
        child.assign([waiting, deaf])
        pids = [pid_in(tmp_path / "started"), pid_in(tmp_path / "started-deaf")]
        zygote = zygote_of(pool)
        pool.terminate()
        results = {one[0]: one[2:] for one in child.take_results(2)}
        for one in (waiting, deaf):
            assert results[one[0]][:2] == ["release", None]
            assert results[one[0]][2]["stopped"] == "drain"
        assert pool.wait() == 0
        assert "worker_left_behind" not in pool.stderr
        assert not any(map(is_alive, pids))
        until(lambda: not is_alive(zygote.pid), "the end of the zygote")


@pytest.mark.parametrize("victim", ["handler process", "pool parent"])
def test_cells_die_with_their_worker(victim: str, tmp_path: Path) -> None:
    with at_work(app=APP) as (child, pool):
        child.assign([job("deaf", args(started=tmp_path / "started"))])
        pid = pid_in(tmp_path / "started")
        zygote = zygote_of(pool)
        (host,) = pool.children()
        os.kill(host.pid if victim == "handler process" else pool.process.pid, signal.SIGKILL)
        until(lambda: not any(map(is_alive, (host.pid, zygote.pid, pid))), "the end of zygote and cell")


def test_a_zygote_that_dies_is_replaced(tmp_path: Path) -> None:
    """Its cells die with it; started jobs are given back, since none is known to be the cause."""
    with at_work(app=APP) as (child, pool):
        jobs = [job("wait", args(gate=tmp_path / "gate", started=tmp_path / f"started-{n}")) for n in range(2)]
        child.assign(jobs)
        pids = [pid_in(tmp_path / f"started-{n}") for n in range(2)]
        zygote_of(pool).kill()
        assert sorted(child.take_results(2)) == sorted([*pair(one), "release", None, {}][:4] for one in jobs)
        assert not any(map(is_alive, pids))
        assert run(child, job("who"))[0] == "ok"
        assert '"event": "zygote_died"' in pool.stderr


@pytest.mark.rest
@pytest.mark.parametrize(("source", "reason"), [
    ("raise ValueError('not here')", "cannot load 'picky:app': ValueError: not here"),
    ("import os; os._exit(9)", "exit code 9"),
])  # fmt: skip
def test_an_app_that_cannot_be_loaded_once_more(source: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "picky.py").write_text(
        "import sys, pulse\n"
        "app = pulse.App()\n"
        "if 'zygote' in sys.orig_argv[2]:\n"
        f"    {source}\n"
        "@app.handler('apart', isolate=True)\n"
        "def apart(): ...\n"
        "@app.handler('here')\n"
        "def here(): ...\n"
    )
    with at_work(app="picky:app", cwd=tmp_path) as (child, _):
        for _ in range(2):
            assert run(child, job("apart")) == ["error", f"no process could be started for it: {reason}"]
            assert run(child, job("here")) == ["ok", None]


@pytest.mark.parametrize("end", ["return", "die", "cancel"])
def test_what_it_started_ends_with_it(end: str, tmp_path: Path) -> None:
    with at_work(env=QUICK, app=APP) as (child, _):
        one = job("spawn", args(started=tmp_path / "started", end=end))
        child.assign([one])
        started = tmp_path / "started"
        until(lambda: started.exists() and started.read_text(), "the process that it starts")
        if end == "cancel":
            child.send("stop", None, {"jobs": [[*pair(one), "canceled"]]})
        (result,) = child.take_results(1)
        assert result[2] == {"return": "ok", "die": "crash", "cancel": "release"}[end]
        assert not is_alive(int(started.read_text()))


def test_one_that_meddles_with_its_descriptors() -> None:
    with at_work(app=APP) as (child, _):
        for name in ("write-junk", "close-all", "write-junk", "close-all"):
            assert run(child, job(name))[0] == "crash"
            assert run(child, job("who"))[0] == "ok"
