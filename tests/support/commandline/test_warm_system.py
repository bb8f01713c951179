"""Commands of tests that run in a warm process behave like cold ones."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from pulse.system import processes
from pulse.system.process_tree import MARK
from tests.support.commandline import cli_answers as answers
from tests.support.commandline import warm
from tests.support.commandline.cli import PULSE, ROOT, Done, environment, run, run_on_terminal
from tests.support.servers.fake_dispatcher import FakeDispatcher, RuntimeDir
from tests.support.systems.worker_kit import at_work
from tests.support.waiting import until

pytestmark = pytest.mark.process

COLD = [*PULSE]  # an equal command that is another object


def told(done: Done) -> Done:
    return dataclasses.replace(done, spent_s=0.0)


@pytest.mark.rest
@pytest.mark.parametrize("words", [["ctl", "status", "--json"], ["ctl", "--help"], ["ctl", "jobs", "list", "--nope"]])
def test_a_warm_command_says_what_a_cold_one_says(words: list[str]) -> None:
    with answers.system() as server:
        env = environment(server.directory)
        assert warm.fits(words, env, b"", environment())
        assert told(run(words, env)) == told(run(words, env, command=COLD))
        assert told(run_on_terminal(words, env)) == told(run_on_terminal(words, env, command=COLD))


def test_input_environment_and_folder_are_its_own(tmp_path: Path) -> None:
    (tmp_path / "pulse.toml").write_text("nonsense = 1\n")
    with answers.system() as server:
        done = run(["ctl", "submit", "x", "-"], environment(server.directory), stdin=b'{"a": 1}\n{"a": 2}\n')
        assert done.code == 0, done
        assert len(server.bodies("submit")[0]["jobs"]) == 2  # type: ignore[arg-type]
    assert "nonsense" in run(["ctl", "status"], environment(), cwd=tmp_path).err
    assert "nonsense" not in run(["ctl", "status"], environment()).err


def test_two_run_side_by_side_and_a_signal_ends_one(tmp_path: Path) -> None:
    """Each caller gets its own exit, and the signal that ended it."""
    with RuntimeDir() as made, FakeDispatcher(made.path, frozen=True) as server, (tmp_path / "said").open("wb") as sink:
        options = (environment(made.path), tmp_path, [sink.fileno()] * 3)
        words = ["ctl", "--timeout", "60", "status"]
        first, second = (warm.Running(words, *options) for _ in range(2))
        until(lambda: len(server.peers()) == 2, "both ask")
        psutil.Process(second.pid).send_signal(signal.SIGKILL)
        assert second.wait(10) == -signal.SIGKILL
        psutil.Process(first.pid).send_signal(signal.SIGINT)
        assert first.wait(10) == 130
        with pytest.raises(TimeoutError):
            warm.Running(words, *options).wait(0.1)


def test_a_warm_program_is_one_for_who_starts_it_by_popen() -> None:
    """A pool of workers with a session, a folder and a niceness of its own; who waits learns how it ended."""
    with at_work() as (_, pool):
        process = pool.process
        assert isinstance(process, warm.Process)
        seen = psutil.Process(process.pid)
        assert os.getsid(process.pid) == process.pid
        assert (seen.cwd(), seen.nice()) == (str(ROOT), psutil.Process().nice())
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.kill()
        assert process.wait(10) == -signal.SIGKILL
        assert process.poll() == process.returncode == -signal.SIGKILL
        process.terminate()  # too late, and harmless


def test_what_an_interpreter_sees_first_is_cold() -> None:
    usual = environment()
    assert warm.is_usual(usual)
    assert warm.is_usual({**usual, "PYTHONPATH": str(ROOT)})
    assert not warm.is_usual({**usual, "PYTHONPATH": "/elsewhere"})
    assert not warm.is_usual(environment(PYTHONIOENCODING="ascii"))
    assert not warm.fits(["ctl", "status"], environment(PYTHONIOENCODING="ascii"), b"", usual)
    assert not warm.fits(["ctl", "status"], environment(LC_ALL="C"), b"", usual)
    assert not warm.fits(["migrate"], usual, b"", usual)
    assert not warm.fits(["ctl", b"\xff"], usual, b"", usual)
    assert not warm.fits(["ctl", "submit", "x", "-"], usual, b"x" * (warm.PIPE_BYTES + 1), usual)


def test_the_first_process_of_a_warm_program_is_forked_beside_it() -> None:
    """It has the words and the environment of one that was started cold."""
    with at_work() as (_, pool):
        (child,) = pool.children()
        places = {Path(f"/proc/{pid}/maps").read_text().split()[0] for pid in (child.pid, pool.process.pid)}
        assert len(places) == 1, "another interpreter has other addresses"
        assert child.cmdline()[1:3] == ["-m", warm.HANDLERS]
        assert child.environ()[MARK].startswith(f"{processes.pid_namespace()}.{pool.process.pid}.")


def test_a_process_that_was_never_wanted_ends_with_the_program(tmp_path: Path) -> None:
    """Where the app is not there the pool starts no second one; nothing of the first stays."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as said:
        with os.fdopen(writing, "wb") as sink:
            words = ["pulse.worker.__main__", "--nonsense"]
            process = warm.Process(words, env=environment(), cwd=tmp_path, stderr=sink)
        assert process.wait(10) == 2
        assert b"--nonsense" in said.read(), "it ends when nobody can write to it any more"
