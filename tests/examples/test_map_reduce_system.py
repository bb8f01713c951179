"""The map-reduce of the examples: its worker is killed in the middle, and every file is counted once."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

import pulse
from pulse.job import handler_process
from tests.support.systems.system_kit import Whole, run
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.patient, pytest.mark.rest]


def test_a_worker_is_killed_in_the_middle(whole: Whole, tmp_path: Path) -> None:
    """One of the files is a pipe: its job is in the middle as long as nobody writes into it."""
    whole.pool("--processes", "1", app="examples.map_reduce:app")
    files = [tmp_path / name for name in "abc"]
    for file in files:
        file.write_text("pulse counts words, words")
    pipe, said = tmp_path / "pipe", list[str]()
    os.mkfifo(pipe)
    names = [*map(str, files), str(pipe), str(tmp_path / "none")]
    done = threading.Thread(
        target=lambda: said.extend(run("examples.map_reduce", names, {**whole.env}, within_s=120).stdout.splitlines())
    )
    done.start()
    with pulse.Client(whole.path) as client:
        until(lambda: len(_counts(client, "COMPLETED")) == len(files), "the files are counted", 60)
        until(lambda: len(_counts(client, "RUNNING")) == 1, "the pipe is read", 60)
        (worker,) = {str(job.locked_by) for job in _counts(client, "RUNNING")}
        process = handler_process(worker)
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        until(lambda: [job.attempts for job in _counts(client, "RUNNING")] == [2], "the pipe is read again", 60)
        pipe.write_text("words of the pipe")
        done.join(120)
        jobs = client.jobs(limit=100).jobs
        assert len(jobs) == len({job.id for job in jobs}) == len(names) + 2
        assert sorted(job.attempts for job in jobs) == [1] * (len(jobs) - 1) + [2]
    assert said[:2] == [f"{2 * len(files) + 1:6} words", f"{len(files):6} pulse"]
    assert said[-1].startswith("missing: FileNotFoundError:")


def _counts(client: pulse.Client, status: str) -> tuple[pulse.Job, ...]:
    return client.jobs(name="words.count", status=status).jobs
