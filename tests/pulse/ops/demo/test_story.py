"""The demonstration where it does not go as it should, and where it puts its files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from pulse.client.client import Client
from pulse.errors import PulseError
from pulse.job import Job, Status
from pulse.ops.demo import server, story
from tests.support.servers.embedded_kit import IS_ROOT, reachable_dir
from tests.support.servers.fake_dispatcher import FakeDispatcher, RuntimeDir

JOB = UUID(int=7)
ROW = {"id": JOB.bytes, "name": "a", "topic": "t", "status": "RUNNING", "history": []}
WORKERS = [{"identity": f"h/b/1/{pid}.1/w", "pid": pid, "running": [UUID(int=pid).bytes]} for pid in (6, 7)]


@pytest.fixture
def client() -> Iterator[Client]:
    with RuntimeDir() as directory:
        script: dict[str, Any] = {"jobs.get": {"job": ROW}, "workers.list": {"workers": WORKERS}}
        with FakeDispatcher(directory.path, script) as dispatcher, Client(dispatcher.path) as client:
            yield client


def test_the_worker_that_is_killed_runs_the_job(client: Client) -> None:
    assert story._worker_of(client, JOB) == 7
    with pytest.raises(PulseError, match=f"^no worker says that it runs job {UUID(int=8)}$"):
        story._worker_of(client, UUID(int=8))


def test_a_step_that_is_not_reached(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(story, "STEP_DEADLINE_S", 0.0)
    looks = iter([False, True])
    with pytest.raises(PulseError, match=f"^job {JOB} is RUNNING after 0 s$"):
        story._follow(client, JOB, lambda _job: next(looks))


@pytest.mark.parametrize("place", [0, 1])
def test_a_job_that_fails(place: int, capsys: pytest.CaptureFixture[str]) -> None:
    """The table shows it, and the exit code of the command says so."""
    jobs = [Job(id=JOB, name="checksum", topic="t", status=Status.COMPLETED, attempts=2) for _ in range(2)]
    story._epilogue(jobs)
    assert capsys.readouterr().out.endswith("\nattempt 2: completed\n")
    jobs[place] = Job(id=JOB, name="checksum", topic="t", status=Status.DEAD_LETTERED)
    with pytest.raises(PulseError, match=r"^a job of the demonstration was not completed$"):
        story._epilogue(jobs)
    assert "DEAD_LETTERED" in capsys.readouterr().out


def test_files_go_where_postgresql_can_reach_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """As root it runs as another user."""
    with reachable_dir() as directory:
        monkeypatch.setattr(tempfile, "tempdir", str(directory))
        assert server._temporary_dir() == directory
        directory.chmod(0o700)
        assert server._temporary_dir() == (Path("/tmp") if IS_ROOT else directory)
