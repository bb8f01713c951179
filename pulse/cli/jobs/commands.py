"""``pulse ctl jobs``: list, get, why, stack; and what changes jobs or signals them."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import click

from pulse.cli.jobs.change import cancel, change, delete, retry
from pulse.cli.jobs.filters import filters_of, found_of, job_filters
from pulse.cli.jobs.page import show_job
from pulse.cli.jobs.signals import signal
from pulse.cli.lazy import CONTEXT, CommandGroup, examples
from pulse.cli.lookup import IdWord, job_of, warn_of_handler, warn_of_topic
from pulse.cli.options import DURATION, JOB, with_full
from pulse.cli.output.render import STATUS_STYLES, Cell, Column, Screen, Table, foreign, id_cells, write_document
from pulse.cli.server import current_server
from pulse.common.text import cut, duration, headline, iso, one_line, printable
from pulse.errors import PulseError
from pulse.protocol.answers import JobInfo, JobPageAnswer, Stack, WhyAnswer, part, read

if TYPE_CHECKING:
    from pulse.client.client import Client

_ERROR_CHARACTERS: Final = 200  # of an error in a piped table
_COLUMNS: Final = (
    Column("id"),
    Column("status"),
    Column("name", least=8),
    Column("topic", least=6, leave_out=4),
    Column("tries", right=True, leave_out=3),
    Column("age", right=True, leave_out=2),
    Column("error", least=9, leave_out=1),
)


@click.group(cls=CommandGroup, context_settings=dict(CONTEXT))
def jobs() -> None:
    """List, show, cancel, retry, move, delete and signal jobs; tell why one does not run, and where one hangs."""


@jobs.command(
    "list",
    epilog=examples(
        "pulse ctl jobs list --status RUNNING --status RETRYING",
        "pulse ctl jobs list --status PENDING --status RETRYING --due --oldest",
        "pulse ctl jobs list --topic images --limit 200 --json | jq -r '.jobs[].last_error'",
    ),
)
@job_filters()
@click.option("--due/--later", default=None, help="Only jobs whose time has come, or only those that are to run later.")
@click.option("--oldest", is_flag=True, help="Oldest first.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, metavar="N", help="Most jobs to list, 1 to 1000.")
@click.option("--after", metavar="CURSOR", help="Go on behind a page: the cursor that it ended with.")
@click.option(
    "--watch",
    type=DURATION,
    is_flag=False,
    flag_value=2.0,
    metavar="DURATION",
    help="List again so often (every 2 s), until interrupted.",
)
@with_full
@click.option("--json", "as_json", is_flag=True, help='Print {"jobs": [...], "next": cursor or null}.')
def list_jobs(
    *,
    due: bool | None,
    oldest: bool,
    limit: int,
    after: str | None,
    watch: float | None,
    full: bool,
    as_json: bool,
    **given: object,
) -> None:
    """List jobs, newest first: by the time in their ids, else by when they were submitted."""
    body: dict[str, object] = {**filters_of(given), "limit": limit}
    if due is not None:
        body["due"] = due
    if oldest:
        body["oldest"] = True
    if after is not None:
        body["after"] = after
    if watch is None:
        with current_server().client() as client:
            _list_once(client, body, full=full, as_json=as_json)
    elif as_json:
        raise click.UsageError("--watch and --json cannot be given together; one of them is allowed.")
    else:
        _watch(body, watch, full=full)


def _list_once(client: Client, body: Mapping[str, object], *, full: bool, as_json: bool) -> None:
    answer = found_of(client, body)
    if as_json:
        write_document(answer)
        return
    page = read(JobPageAnswer, answer)
    screen = Screen()
    if page.jobs:
        screen.table(jobs_table(page, time.time(), None if full else screen.width))
    else:
        screen.lines([[Cell("no jobs", "dim")]])
        if (topic := body.get("topic")) is not None:
            warn_of_topic(str(topic))
        if (name := body.get("name")) is not None:
            warn_of_handler(str(name))
    if page.next is not None:
        click.echo(f"more: repeat with --after {page.next}", err=True)


def _watch(body: Mapping[str, object], every_s: float, *, full: bool) -> None:
    """
    A list that is renewed: in its place on a terminal, one below the other elsewhere.

    Where nobody answers any more, what was seen last stays, and that is said; it goes on as soon as somebody does.
    """
    page, trouble = None, ""
    with current_server().client() as client:
        while True:
            try:
                page, trouble = read(JobPageAnswer, found_of(client, body)), ""
            except PulseError as error:
                if page is None:
                    raise
                trouble = error.message
            _paint(page, trouble, time.time(), full=full)
            time.sleep(every_s)


def _paint(page: JobPageAnswer, trouble: str, now_s: float, *, full: bool) -> None:
    screen = Screen()  # the window may have another width now
    rows = page.jobs
    if screen.width is not None and os.environ.get("TERM", "dumb") != "dumb":
        sys.stdout.write("\x1b[H\x1b[2J")
        rows = rows[: max(1, shutil.get_terminal_size().lines - 3)]
    screen.lines([[Cell(iso(int(now_s)), "dim")]])
    if trouble:
        screen.lines([[foreign(f"! {trouble}", "yellow")]])
    screen.table(jobs_table(JobPageAnswer(rows), now_s, None if full else screen.width))
    sys.stdout.flush()


@jobs.command(
    "get",
    epilog=examples(
        "pulse ctl jobs get 0190163d-8694-739b-aea5-966c26f8ad91",
        "pulse ctl jobs get 0190163d-8694-739b-aea5-966c26f8ad91 --json | jq .result",
    ),
)
@click.argument("job_id", metavar="ID", type=JOB)
@click.option("--stack", "whole_stacks", is_flag=True, help="All lines of the stacks of attempts that hung.")
@click.option("--json", "as_json", is_flag=True, help='Print the columns of pulse.jobs and "history", oldest first.')
def get_job(job_id: IdWord, *, whole_stacks: bool, as_json: bool) -> None:
    """Show a job and its history: each attempt, where, how long, how it ended and why."""
    answer = current_server().ask("jobs.get", {"id": job_of(job_id)}, repeatable=True)
    if as_json:
        write_document(part(answer, "job"))
    else:
        show_job(read(JobInfo, part(answer, "job")), Screen(), time.time(), whole_stacks=whole_stacks)


@jobs.command(
    epilog=examples(
        "pulse ctl jobs why 0190163d-8694-739b-aea5-966c26f8ad91",
        "pulse ctl jobs why 0190163d-8694-739b-aea5-966c26f8ad91 --json | jq -r '.reasons[0].code'",
    )
)
@click.argument("job_id", metavar="ID", type=JOB)
@click.option("--json", "as_json", is_flag=True, help='Print {"id", "name", "topic", "status", "reasons": [...]}.')
def why(job_id: IdWord, *, as_json: bool) -> None:
    """
    Tell why a job is not running, and what to do about it.

    Everything that is in its way, one line each, the decisive reason first; below it, indented, what to do.
    """
    answer = current_server().ask("jobs.why", {"id": job_of(job_id)}, repeatable=True)
    if as_json:
        write_document(answer)
        return
    screen = Screen()
    for reason in read(WhyAnswer, answer).reasons:
        screen.lines([[foreign(reason.text)]])
        if reason.advice:
            screen.lines([[foreign(f"  {reason.advice}", "dim")]])


@jobs.command(epilog=examples("pulse ctl jobs stack 0190163d-8694-739b-aea5-966c26f8ad91"))
@click.argument("job_id", metavar="ID", type=JOB)
@click.option("--json", "as_json", is_flag=True, help='Print {"worker", "pid", "attempt", "stack"}.')
def stack(job_id: IdWord, *, as_json: bool) -> None:
    """
    Show where a running job is: the Python stack of each thread of its process.

    The process is not stopped for it. Works while a C extension holds the interpreter, too.
    """
    answer = current_server().ask("jobs.stack", {"id": job_of(job_id)}, repeatable=True)
    if as_json:
        write_document(answer)
        return
    found = read(Stack, answer)
    screen = Screen()
    screen.lines([[Cell(f"attempt {found.attempt}, pid {found.pid}, ", "dim"), foreign(found.worker)], []])
    screen.lines([Cell(line)] for line in printable(found.stack.rstrip(), keep_lines=True).split("\n"))


for _command in (cancel, retry, delete, change, signal):
    jobs.add_command(_command)


def jobs_table(page: JobPageAnswer, now_s: float, width: int | None = None) -> Table:
    """The table of a page of jobs; ids are short where *width*, the columns of a terminal, is small."""
    ids = id_cells([job.id for job in page.jobs], width)
    return Table(_COLUMNS, [[one, *_row(job, now_s)] for one, job in zip(ids, page.jobs, strict=True)])


def _row(job: JobInfo, now_s: float) -> list[Cell]:
    error = cut(one_line(headline(job.last_error or "")), _ERROR_CHARACTERS)
    return [
        Cell(job.status, STATUS_STYLES.get(job.status, "")),
        foreign(job.name),
        foreign(job.topic),
        Cell(job.tries),
        Cell("" if job.submitted_at is None else duration(now_s - job.submitted_at), "dim"),
        Cell(error, "red" if job.status == "DEAD_LETTERED" else ""),
    ]
