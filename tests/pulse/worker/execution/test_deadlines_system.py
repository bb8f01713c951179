"""Handlers that run, or are silent, for too long: they are stopped, and it is known where they were."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.servers.fake_server import FakeServer, job, pair
from tests.support.systems.worker_kit import worker
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.timed]

both_backends = pytest.mark.parametrize("backend", ["asyncio", "trio"])


def args(**given: object) -> str:
    return json.dumps({key: str(value) if isinstance(value, Path) else value for key, value in given.items()})


def test_hello_declares_stall_s() -> None:
    """The server learns after which silence a handler is stopped: it looks after those whose process hangs."""
    with FakeServer() as server, worker(server):
        assert server.wait_child().hello["handlers"]["restless"] == {"stall_s": 0.5}


@both_backends
def test_silence_is_what_counts(backend: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with FakeServer() as server, worker(server, "--backend", backend):
        child = server.wait_child()
        silent = [job("restless", args(word=w, started=tmp_path / w, gate=gate)) for w in ("progress", "checkpoint")]
        child.assign(silent)
        for result in child.take_results(2):
            assert result[2:4] == ["error", "stalled: no progress for 0.5 s"]
            assert result[4]["stopped"] == "stalled"
            assert "await anyio.sleep(0.005)" in result[4]["stack"]
        assert (tmp_path / "progress").exists(), "it was stopped while it told its progress"
        assert (tmp_path / "checkpoint").exists(), "it was stopped while it saved its state"
        gate.touch()
        again = job("restless", args(word="progress", started=tmp_path / "again", gate=gate))
        child.assign([again])
        assert child.take_results(1)[0][:4] == [*pair(again), "ok", '"through"']


def test_plain_handlers_that_stall_are_asked() -> None:
    """They see ctx.cancelled; what they make of that is told behind the reason, and each stack names its thread."""
    with FakeServer() as server, worker(server):
        child = server.wait_child()
        child.assign([job("restless-plain") for _ in range(8)])
        for result in child.take_results(8):
            assert result[2] == "error"
            assert result[3].splitlines()[:2] == ["stalled: no progress for 0.3 s", "ValueError: I was not done"]
            stack = result[4]["stack"]
            thread = stack.splitlines()[0].removeprefix("The handler runs in thread ").rstrip(".")
            (its,) = [part for part in stack.split("\n\n") if f"hread {thread} (most recent call first)" in part]
            assert "in restless_plain" in its


@both_backends
def test_the_stack_of_a_timeout_shows_what_it_waits_for(backend: str, tmp_path: Path) -> None:
    """From the handler to the last call that it waits in, through coroutines and async generators; then all threads."""
    with FakeServer() as server, worker(server, "--backend", backend):
        child = server.wait_child()
        child.assign([job("wait-deeply", args(gate=tmp_path / "gate"), timeout_s=0.2)])
        (result,) = child.take_results(1)
        assert result[2:4] == ["error", "timed out after 0.2 s"]
        lines = result[4]["stack"].splitlines()
        calls = [line.rpartition(" in ")[2] for line in lines if line.startswith("  File") and "worker_app" in line]
        assert lines[0] == "The handler waits here (most recent call last):"
        assert calls[:3] == ["wait_deeply", "first_line", "lines"]
        assert "    async for line in lines(gate):" in lines
        waits, _, threads = result[4]["stack"].partition("Current thread 0x")
        assert "pulse/worker/" not in waits, "whoever reads it looks for code of their own"
        assert "_run_module_as_main" in threads


def test_where_the_server_asks_for_the_end_of_a_hung_one(tmp_path: Path) -> None:
    """A stop because of a timeout gets a stack as well; one for another reason has none."""
    with FakeServer() as server, worker(server):
        child = server.wait_child()
        hung, canceled = (job("wait-deeply", args(gate=tmp_path / "gate")) for _ in range(2))
        child.assign([hung, canceled])
        child.take("started")
        child.send("stop", None, {"jobs": [[*pair(hung), "timeout"], [*pair(canceled), "canceled"]]})
        results = {one[0]: one for one in child.take_results(2)}
        assert "wait_deeply" in results[hung[0]][4]["stack"]
        assert results[canceled[0]][4] == {"stopped": "canceled"}


def test_a_stack_that_does_not_fit_is_left_out(tmp_path: Path) -> None:
    with FakeServer(max_frame_bytes=16_384) as server, worker(server):
        child = server.wait_child()
        crowd = job("crowd-of-threads", args(count=60, started=tmp_path / "started", gate=tmp_path / "gate"))
        child.assign([crowd])
        until((tmp_path / "started").exists, "the threads")
        child.assign([job("wait", args(gate=tmp_path / "gate"), timeout_s=0.1)])
        assert child.take_results(1)[0][2:] == ["error", "timed out after 0.1 s", {"stopped": "timeout"}]
        (tmp_path / "gate").touch()
