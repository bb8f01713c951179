"""Handlers that run, or are silent, for too long: they are stopped, with the place where they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.servers.fake_server import job, pair
from tests.support.systems.worker_kit import args, at_work

pytestmark = [pytest.mark.process, pytest.mark.timed]

both_backends = pytest.mark.parametrize("backend", ["asyncio", "trio"])


@pytest.mark.rest
@both_backends
def test_silence_is_what_counts(backend: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with at_work("--backend", backend) as (child, _):
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
    """They see ctx.cancelled; their own end comes behind the reason, and each stack names its thread."""
    with at_work() as (child, _):
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
    with at_work("--backend", backend) as (child, _):
        child.assign([job("wait-deeply", args(gate=tmp_path / "gate"), timeout_s=0.2)])
        (result,) = child.take_results(1)
        assert result[2:4] == ["error", "timed out after 0.2 s"]
        assert result[4]["stopped"] == "timeout"
        lines = result[4]["stack"].splitlines()
        calls = [line.rpartition(" in ")[2] for line in lines if line.startswith("  File") and "worker_app" in line]
        assert lines[0] == "The handler waits here (most recent call last):"
        assert calls[:3] == ["wait_deeply", "first_line", "lines"]
        assert "    async for line in lines(gate):" in lines
        waits, _, threads = result[4]["stack"].partition("Current thread 0x")
        assert "pulse/worker/" not in waits, "whoever reads it looks for code of their own"
        assert "_run_module_as_main" in threads
