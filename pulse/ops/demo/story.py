"""The steps of the demonstration, and the lines that it prints."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

import click

from pulse.client.client import Client
from pulse.common.json_text import JsonValue
from pulse.errors import PulseError
from pulse.job import Job, Status
from pulse.ops.demo.server import running_server, worker_rows

PACKAGES: Final = ("asyncio", "collections", "ctypes", "email", "encodings", "html", "http", "importlib", "json")
SLICES: Final = 60
KILL_AT: Final = 0.4  # of the long job
PROCESSES: Final = 2
SETTINGS: Final = {"PULSE_HEARTBEAT_S": "1"}  # progress is seen as it travels with the heartbeats
STEP_DEADLINE_S: Final = 60.0
_POLL_S: Final = 0.02


@dataclass(slots=True)
class Timeline:
    """Prints lines with the time since the begin."""

    began_s: float

    def tell(self, text: str, *, mark: str = " ", colour: str | None = None) -> None:
        """One thing that happened."""
        moment = click.style(f"T+{time.monotonic() - self.began_s:6.2f} s", dim=True)
        click.echo(f"{moment}  {click.style(mark, fg=colour, bold=True)} {click.style(text, fg=colour)}")

    def row(self, job: Job) -> None:
        """The state of a job, as its row has it."""
        colour = {"RUNNING": "blue", "COMPLETED": "green", "RETRYING": "yellow"}.get(job.status, "red")
        error = f" · last_error = {job.last_error!r}" if job.last_error else ""
        self.tell(f"{job.status} · attempts = {job.attempts}{error}", mark="│", colour=colour)


def run() -> None:
    """
    Run the demonstration on the terminal.

    Raises:
        PulseError: A step failed.
    """
    click.secho("pulse: a worker dies in the middle of a job", bold=True)
    click.echo()
    line = Timeline(time.monotonic())
    line.tell("starting PostgreSQL, the supervisor with its actors, and a pool of 2 worker processes")
    with running_server("pulse.ops.demo.app:app", SETTINGS, processes=PROCESSES) as client:
        line.tell(f"ready: workers {' and '.join(str(row['pid']) for row in worker_rows(client))} are connected")
        short, long = _submit(client)
        line.tell(f"submitted {len(short)} short jobs (SHA-256 of a package) and a long one (of all Python's library)")
        _crash(client, line, long)
        for job_id in short:
            client.wait(job_id, timeout_s=STEP_DEADLINE_S)
        line.tell(f"the {len(short)} short jobs are completed, too; nothing is lost", mark="✓", colour="green")
        click.echo()
        _epilogue([client.get(job_id) for job_id in (*short, long)])


def _submit(client: Client) -> tuple[list[UUID], UUID]:
    long = client.submit("checksum-library", {"slices": SLICES})
    short = client.submit_many([{"name": "checksum", "args": {"package": package}} for package in PACKAGES])
    return short, long


def _crash(client: Client, line: Timeline, long: UUID) -> None:
    job = _follow(client, long, lambda job: _progress(job) >= KILL_AT)
    line.row(job)
    pid = _worker_of(client, long)
    line.tell(f"worker {pid} has done {_progress(job):.0%} of the long job: kill -9 {pid}", mark="✗", colour="red")
    killed_at = datetime.now(UTC)
    os.kill(pid, signal.SIGKILL)
    again = _follow(client, long, lambda job: job.status is Status.RUNNING and job.attempts > 1)
    crash = again.history[-1]
    line.tell(f"{_ms(killed_at, crash.ended_at)} ms after the kill: {crash.error}; attempt 1 is over", mark="│")
    line.tell(f"{_ms(killed_at, again.started_at)} ms after the kill: attempt 2 is claimed", mark="│")
    line.row(again)
    line.tell(f"it runs again, on worker {_worker_of(client, long)}; attempt 1 could not change anything now", mark="│")
    line.row(_follow(client, long, lambda job: job.is_terminal))


def _ms(earlier: datetime, later: datetime | None) -> str:
    """Milliseconds between two moments on the clock of this machine, which is the database's too."""
    return "?" if later is None else f"{(later - earlier).total_seconds() * 1000:.1f}"


def _follow(client: Client, job_id: UUID, reached: Callable[[Job], bool]) -> Job:
    """Look at a job until it has *reached* the next step."""
    deadline_s = time.monotonic() + STEP_DEADLINE_S
    while not reached(job := client.get(job_id)):
        if time.monotonic() > deadline_s:
            raise PulseError(f"job {job_id} is {job.status} after {STEP_DEADLINE_S:g} s")
        time.sleep(_POLL_S)
    return job


def _progress(job: Job) -> float:
    """Share of the long job that is done; the context stores [share, text]."""
    value = job.progress
    if isinstance(value, Mapping):
        value = value.get("value")
    return float(value) if isinstance(value, (int, float)) else 0.0


def _worker_of(client: Client, job_id: UUID) -> int:
    for row in worker_rows(client):
        if str(job_id) in str(row.get("running")):
            return int(str(row["pid"]))
    raise PulseError(f"no worker says that it runs job {job_id}")


def _table(jobs: Sequence[Job]) -> list[str]:
    head = ("id", "name", "status", "attempts", "result", "last error")
    rows = [head, *(_cells(job) for job in jobs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [click.style(lines[0], bold=True), *lines[1:]]


def _cells(job: Job) -> tuple[str, ...]:
    result = job.result
    shown = f"{result['files']} files, {result['sha256']}" if isinstance(result, Mapping) else ""
    return (str(job.id), job.name, job.status.value, str(job.attempts), shown, job.last_error or "")


def _epilogue(jobs: Sequence[Job]) -> None:
    """How all ended; the last is the long one."""
    click.echo("\n".join(_table(jobs)))
    click.echo()
    for entry in jobs[-1].history:
        done = _progress_text(entry.progress)
        click.echo(f"attempt {entry.attempt} of the long job: {entry.outcome}, {entry.error}, after {done}")
    if any(job.status is not Status.COMPLETED for job in jobs):
        raise PulseError("a job of the demonstration was not completed")
    click.echo(f"attempt {jobs[-1].attempts}: completed")


def _progress_text(value: JsonValue) -> str:
    text = value.get("text") if isinstance(value, dict) else None
    return str(text) if text else "no progress told"
