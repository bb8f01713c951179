"""The nightly pipeline of the examples: its worker is killed in the middle, and the night is loaded once."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import pulse
from pulse.job import handler_process
from tests.support.systems.system_kit import Whole
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.patient, pytest.mark.rest]


@pytest.fixture(scope="module")
def folder(whole: Whole, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("nightly")
    for name in ("in", "out"):
        (made / name).mkdir()
    whole.pool("--processes", "1", app="examples.nightly:app", env={"NIGHTLY": str(made)})
    return made


@pytest.fixture(autouse=True)
def _new(folder: Path) -> None:
    for file in (*(folder / "in").iterdir(), *(folder / "out").iterdir()):
        file.unlink()


def trigger(client: pulse.Client) -> pulse.Job:
    """The job of the report."""
    named = lambda: [one for one in client.schedules_list().schedules if one.name == "nightly"]  # noqa: E731
    (schedule,) = until(named, "the worker has declared its schedule")
    return client.get(client.result(client.schedules_trigger(schedule.id), str, timeout_s=60))


def test_a_worker_is_killed_in_the_middle(whole: Whole, folder: Path) -> None:
    """One of the sources is a pipe: its job is in the middle as long as nobody writes into it."""
    for name in "abc":
        (folder / "in" / name).write_text("1\n2\n", "utf-8")
    pipe = folder / "in" / "pipe"
    os.mkfifo(pipe)
    with pulse.Client(whole.path) as client:
        report = trigger(client)
        assert [one.name for one in report.parents].count("nightly.extract") == 4
        until(lambda: len(_extracts(client, "COMPLETED")) == 3, "the others are read", 60)
        until(lambda: len(_extracts(client, "RUNNING")) == 1, "the pipe is read", 60)
        process = handler_process(str(_extracts(client, "RUNNING")[0].locked_by))
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        until(lambda: [job.attempts for job in _extracts(client, "RUNNING")] == [2], "the pipe is read again", 60)
        pipe.write_text("10\n", "utf-8")
        said = client.result(report.id, str, timeout_s=60)
        jobs = client.jobs(limit=100).jobs
    (day,) = (folder / "out").iterdir()
    assert said == f"{day.name}: loaded"
    assert day.read_text("utf-8") == "a 3\nb 3\nc 3\npipe 10\n"
    assert sorted((job.name.removeprefix("nightly."), job.attempts) for job in jobs) == [
        ("extract", 1), ("extract", 1), ("extract", 1), ("extract", 2), ("load", 1), ("nightly", 1), ("report", 1),
        ("transform", 1),
    ]  # fmt: skip


def test_a_source_that_cannot_be_read(whole: Whole, folder: Path) -> None:
    """Nothing is loaded, and the report says why."""
    (folder / "in" / "a").write_text("1\n", "utf-8")
    (folder / "in" / "gone").symlink_to(folder / "nowhere")
    with pulse.Client(whole.path) as client:
        said = client.result(trigger(client).id, str, timeout_s=60).splitlines()
    assert said[0].endswith(": failed")
    assert [line.partition(":")[0] for line in said[1:]] == ["nightly.extract", "nightly.load", "nightly.transform"]
    assert "FileNotFoundError" in said[1]
    assert list((folder / "out").iterdir()) == []


def _extracts(client: pulse.Client, status: str) -> tuple[pulse.Job, ...]:
    return client.jobs(name="nightly.extract", status=status).jobs
