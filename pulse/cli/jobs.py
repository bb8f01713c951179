"""``pulse ctl jobs``: list, get, why, stack, cancel, retry."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final
from uuid import UUID

import click

from pulse.cli.connection import current_server
from pulse.cli.job_page import show_job
from pulse.cli.lazy import CONTEXT, examples
from pulse.cli.params import ID, NAME, STATUS, STATUSES, TOPIC
from pulse.cli.render import Cell, Column, Screen, Table, foreign, write_document
from pulse.cli.styles import STATUS_STYLES
from pulse.cli.views import Changed, Job, JobPage, Stack, Why, part, read
from pulse.cli.words import cut, duration, one_line, printable

__all__ = ["jobs", "jobs_table"]

MOST_PER_REQUEST: Final = 1000  # ids of a cancel or retry: one statement stays short
_ERROR_CHARACTERS: Final = 200  # of an error in a piped table
_STATUS_HELP: Final = f"Only jobs of this status ({', '.join(STATUSES)}); may be repeated."
_REASONS: Final = {
    "not_found": "there is no such job",
    "invalid_transition": "its status does not allow that",
    "conflict": "its last attempt is still held by a worker",
}
_COLUMNS: Final = (
    Column("id"),
    Column("status"),
    Column("name", least=8),
    Column("topic", least=6, leave_out=4),
    Column("tries", right=True, leave_out=3),
    Column("age", right=True, leave_out=2),
    Column("error", least=9, leave_out=1),
)


@click.group(context_settings=dict(CONTEXT))
def jobs() -> None:
    """List, show, cancel and retry jobs; tell why one does not run, and where one hangs."""


@jobs.command(
    "list",
    epilog=examples(
        "pulse ctl jobs list --status RUNNING --status RETRYING",
        "pulse ctl jobs list --topic images --limit 200 --json | jq -r '.jobs[].last_error'",
    ),
)
@click.option("--status", "statuses", type=STATUS, multiple=True, help=_STATUS_HELP)
@click.option("--topic", type=TOPIC, metavar="TOPIC", help="Only jobs of this topic.")
@click.option("--name", type=NAME, metavar="NAME", help="Only jobs of this handler.")
@click.option("--schedule", type=ID, metavar="ID", help="Only jobs that this schedule fired.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, metavar="N", help="Most jobs to list, 1 to 1000.")
@click.option("--after", metavar="CURSOR", help="Go on behind a page: the cursor that it ended with.")
@click.option("--json", "as_json", is_flag=True, help='Print {"jobs": [...], "next": cursor or null}.')
def list_jobs(
    statuses: Sequence[str],
    topic: str | None,
    name: str | None,
    schedule: bytes | None,
    limit: int,
    after: str | None,
    *,
    as_json: bool,
) -> None:
    """List jobs, newest first."""
    filters: dict[str, object] = {
        "status": list(statuses) or None,
        "topic": topic,
        "name": name,
        "schedule": schedule,
        "after": after,
    }
    body: dict[str, object] = {key: value for key, value in filters.items() if value is not None}
    answer = current_server().ask("jobs.list", {**body, "limit": limit}, repeatable=True)
    if as_json:
        write_document(answer)
        return
    page = read(JobPage, answer)
    screen = Screen()
    if page.jobs:
        screen.table(jobs_table(page, time.time()))
    else:
        screen.lines([[Cell("no jobs", "dim")]])
    if page.next is not None:
        click.echo(f"more: repeat with --after {page.next}", err=True)


@jobs.command(
    "get",
    epilog=examples(
        "pulse ctl jobs get 0190163d-8694-739b-aea5-966c26f8ad91",
        "pulse ctl jobs get 0190163d-8694-739b-aea5-966c26f8ad91 --json | jq .result",
    ),
)
@click.argument("job_id", metavar="ID", type=ID)
@click.option("--json", "as_json", is_flag=True, help='Print the columns of pulse.jobs and "history", oldest first.')
def get_job(job_id: bytes, *, as_json: bool) -> None:
    """Show a job with its history."""
    answer = current_server().ask("jobs.get", {"id": job_id}, repeatable=True)
    if as_json:
        write_document(part(answer, "job"))
    else:
        show_job(read(Job, part(answer, "job")), Screen(), time.time())


@jobs.command(
    epilog=examples(
        "pulse ctl jobs why 0190163d-8694-739b-aea5-966c26f8ad91",
        "pulse ctl jobs why 0190163d-8694-739b-aea5-966c26f8ad91 --json | jq -r '.reasons[0].code'",
    )
)
@click.argument("job_id", metavar="ID", type=ID)
@click.option("--json", "as_json", is_flag=True, help='Print {"id", "name", "topic", "status", "reasons": [...]}.')
def why(job_id: bytes, *, as_json: bool) -> None:
    """
    Tell why a job is not running, and what to do about it.

    Everything that is in its way, one line each, the decisive reason first; below it, indented, what to do.
    """
    answer = current_server().ask("jobs.why", {"id": job_id}, repeatable=True)
    if as_json:
        write_document(answer)
        return
    screen = Screen()
    for reason in read(Why, answer).reasons:
        screen.lines([[foreign(reason.text)]])
        if reason.advice:
            screen.lines([[foreign(f"  {reason.advice}", "dim")]])


@jobs.command(epilog=examples("pulse ctl jobs stack 0190163d-8694-739b-aea5-966c26f8ad91"))
@click.argument("job_id", metavar="ID", type=ID)
@click.option("--json", "as_json", is_flag=True, help='Print {"worker", "pid", "attempt", "stack"}.')
def stack(job_id: bytes, *, as_json: bool) -> None:
    """
    Show where a running job is: the Python stack of each thread of its process.

    The process is not stopped for it. Works while a C extension holds the interpreter, too.
    """
    answer = current_server().ask("jobs.stack", {"id": job_id}, repeatable=True)
    if as_json:
        write_document(answer)
        return
    found = read(Stack, answer)
    screen = Screen()
    screen.lines([[Cell(f"attempt {found.attempt}, pid {found.pid}, ", "dim"), foreign(found.worker)], []])
    screen.lines([Cell(line)] for line in printable(found.stack.rstrip(), keep_lines=True).split("\n"))


@jobs.command(epilog=examples("pulse ctl jobs cancel 0190163d-8694-739b-aea5-966c26f8ad91"))
@click.argument("job_ids", metavar="ID...", type=ID, nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help='Print {"done": [ids], "refused": [[id, code]...]}.')
def cancel(job_ids: Sequence[bytes], *, as_json: bool) -> None:
    """
    Cancel jobs: those that wait never start, those that run are stopped.

    Ends with exit code 1 when any of them was refused; the others are canceled all the same.
    """
    _change("jobs.cancel", "canceled", job_ids, as_json=as_json)


@jobs.command(
    epilog=examples(
        "pulse ctl jobs retry 0190163d-8694-739b-aea5-966c26f8ad91",
        "pulse ctl jobs list --status DEAD_LETTERED --json | jq -r '.jobs[].id' | xargs pulse ctl jobs retry",
    )
)
@click.argument("job_ids", metavar="ID...", type=ID, nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help='Print {"done": [ids], "refused": [[id, code]...]}.')
def retry(job_ids: Sequence[bytes], *, as_json: bool) -> None:
    """
    Start completed, canceled or dead jobs anew, with a fresh budget of tries.

    Ends with exit code 1 when any of them was refused; the others are started all the same.
    """
    _change("jobs.retry", "retried", job_ids, as_json=as_json)


def jobs_table(page: JobPage, now_s: float) -> Table:
    """The table of a page of jobs."""
    return Table(_COLUMNS, [_row(job, now_s) for job in page.jobs])


def _row(job: Job, now_s: float) -> list[Cell]:
    error = cut(one_line(job.last_error or ""), _ERROR_CHARACTERS)
    return [
        Cell(str(UUID(bytes=job.id))),
        Cell(job.status, STATUS_STYLES.get(job.status, "")),
        foreign(job.name),
        foreign(job.topic),
        Cell(job.tries),
        Cell("" if job.submitted_at is None else duration(now_s - job.submitted_at), "dim"),
        Cell(error, "red" if job.status == "DEAD_LETTERED" else ""),
    ]


def _change(kind: str, done_word: str, job_ids: Sequence[bytes], *, as_json: bool) -> None:
    done: list[bytes] = []
    refused: list[tuple[bytes, str]] = []
    with current_server().client() as client:
        for start in range(0, len(job_ids), MOST_PER_REQUEST):
            asked = list(job_ids[start : start + MOST_PER_REQUEST])
            changed = read(Changed, client.request(kind, {"ids": asked}))
            done += changed.done
            refused += changed.refused
    if as_json:
        write_document({"done": done, "refused": refused})
    else:
        Screen().lines([Cell(f"{done_word} "), Cell(str(UUID(bytes=job_id)))] for job_id in done)
    for job_id, code in refused:
        click.echo(f"pulse: {UUID(bytes=job_id)}: {code}: {_REASONS.get(code, 'refused')}", err=True)
    if refused:
        raise click.exceptions.Exit(1)
