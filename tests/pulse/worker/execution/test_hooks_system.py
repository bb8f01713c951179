"""The hooks of an app in a real pool: what is called, in which process, in which order, and what failures do."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.servers.fake_server import FakeServer, Peer, job, pair
from tests.support.systems.worker_kit import WorkerProcess, args, at_work, worker
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.timed]

APP: Final = "tests.support.apps.hook_app:app"
both_backends = pytest.mark.parametrize("backend", ["asyncio", "trio"])


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines"
    path.touch()
    return path


def env(lines: Path) -> dict[str, str]:
    return {"HOOK_LINES": str(lines)}


def run(child: Peer, one: list[Any]) -> list[Any]:
    child.assign([one])
    (result,) = child.take_results(1)
    assert result[:2] == pair(one)
    return result[2:]


def words(lines: Path, pid: int | None = None) -> list[str]:
    """What was noted, by one process or by all."""
    found = [line.rpartition(" ") for line in lines.read_text().splitlines()]
    return [text for text, _, by in found if pid is None or int(by) == pid]


def pid_of(pool: WorkerProcess) -> int:
    (child,) = pool.children()
    return child.pid


@both_backends
def test_a_process_starts_before_its_first_job_and_ends_after_its_last(backend: str, lines: Path) -> None:
    with at_work("--backend", backend, app=APP, env=env(lines)) as (child, pool):
        started = ["start", "start async", "open", "open mailer"]
        assert words(lines) == started, "the worker is known to the server once all this is done"
        assert "added" in child.hello["topics"], "what a hook adds is told, too"
        pid = pid_of(pool)
        assert json.loads(run(child, job("ask", args(question="why")))[1]) == {
            "question": "why", "own": True, "in_loop": True,
        }  # fmt: skip
        assert json.loads(run(child, job("ask-plain"))[1]) == {"own": True, "name": "ask-plain"}
        pool.terminate()
        assert pool.wait() == 0
        called = ["before ask", "after ask", "before ask-plain", "after ask-plain"]
        ended = ["close mailer", "close", "stop", "stop plain"]
        assert words(lines, pid) == [*started, *called, *ended]
        assert "a hook that fails at the end" in pool.stderr


@both_backends
@pytest.mark.parametrize("kind", ["ask", "ask-plain"])
def test_an_isolated_job_has_values_of_its_own(kind: str, backend: str, lines: Path) -> None:
    """In its own process, of the types that its handler takes; its result does not wait for their end."""
    with at_work("--backend", backend, app=APP, env=env(lines)) as (child, pool):
        given = args(question="why") if kind == "ask" else "{}"
        host = pid_of(pool)
        assert json.loads(run(child, job(f"{kind}-apart", given))[1])["own"] is True
        (own,) = {int(line.rpartition(" ")[2]) for line in lines.read_text().splitlines()} - {host}
        called = [f"before {kind}-apart", f"after {kind}-apart"]
        assert words(lines, own) == ["start", "start async", "open", *called, "close", "stop", "stop plain"]


def test_what_hangs_at_the_end_does_not_keep_the_process_of_a_job(lines: Path) -> None:
    with at_work(app=APP, env=env(lines)) as (child, _):
        lines.with_name("hangs").touch()
        assert run(child, job("ask-apart", args(question="why")))[0] == "ok"
        assert "hangs" in words(lines)
        lines.with_name("hangs").unlink()


@pytest.mark.rest
def test_what_blocks_the_loop_at_the_end_does_not_keep_the_process(lines: Path) -> None:
    lines.with_name("blocks").touch()
    with at_work(app=APP, env=env(lines)) as (_, pool):
        pool.terminate()
        assert pool.wait() == 0
        assert "a function that is no coroutine hangs" in pool.stderr
        assert "pool_killed_rest" not in pool.stderr


@pytest.mark.rest
@both_backends
def test_a_lifespan_that_fails_ends_the_process(backend: str, lines: Path) -> None:
    """The next one begins anew, even if a thread of a handler cannot be ended."""
    with FakeServer() as server, worker(server, "--backend", backend, app=APP, env=env(lines)) as pool:
        child = server.wait_child()
        (first,) = pool.children()
        child.assign([job("block")])
        until(lines.with_name("gone").exists, "the handler")
        until(lambda: words(lines).count("start") >= 2, "the next process")
        lines.with_name("gone").unlink()
        server.wait_child()
        assert not first.is_running()
        assert backend == "trio" or "handler_process_failed" in pool.stderr
        assert '"exit_code": 69' in pool.stderr


def test_an_isolated_job_tells_its_failure(lines: Path) -> None:
    with at_work(app=APP, env=env(lines)) as (child, _):
        assert run(child, job("fail-apart"))[0] == "error"
        assert "failed fail-apart LookupError('no such thing')" in words(lines)


def test_an_isolated_job_whose_start_fails_fails_with_that(lines: Path) -> None:
    with at_work(app=APP, env=env(lines)) as (child, pool):
        lines.with_name("broken").touch()
        outcome, detail, _ = run(child, job("ask-apart", args(question="why")))
        assert outcome == "error"
        assert detail.startswith("ConnectionError: the database is away\n")
        assert run(child, job("fail-apart"))[1].startswith("LookupError"), "it does not take that value"
        assert '"startup_failed"' in pool.stderr


def test_a_start_that_fails_is_tried_again(lines: Path) -> None:
    """Each process says once why, with its traceback; the pool has the usual patience, and so has its database."""
    broken = lines.with_name("broken")
    broken.touch()
    with FakeServer() as server, worker(server, app=APP, env=env(lines)) as pool:
        until(lambda: pool.stderr.count("handler_process_died") == 2, "two starts that fail")
        broken.unlink()
        server.wait_child()
        found = [json.loads(line) for line in pool.stderr.splitlines()]
        failed = [one for one in found if one["event"] == "startup_failed"]
        assert [one["hook"] for one in failed] == ["database", "database"]
        assert all("ConnectionError: the database is away" in one["exception"] for one in failed)
        assert [one["exit_code"] for one in found if one["event"] == "handler_process_died"] == [69, 69]


@pytest.mark.rest
def test_a_pool_whose_processes_cannot_start_gives_up(lines: Path) -> None:
    lines.with_name("broken").touch()
    with FakeServer() as server, worker(server, app=APP, env=env(lines)) as pool:
        assert pool.wait() == 70


def test_a_spare_starts_when_it_serves(lines: Path) -> None:
    with FakeServer() as server, worker(server, "--spares", "1", "--no-preload", app=APP, env=env(lines)) as pool:
        child = server.wait_child()
        until(lambda: len(pool.children()) == 2, "the spare")
        first, spare = sorted(pool.children(), key=lambda one: one.create_time())
        assert run(child, job("nothing"))[0] == "ok"
        assert words(lines, spare.pid) == []
        first.send_signal(signal.SIGKILL)
        server.wait_child()
        assert words(lines, spare.pid) == ["start", "start async", "open", "open mailer"]
