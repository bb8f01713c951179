"""``pulse ctl jobs cancel | retry | delete | change``: by ids, or all that options choose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from pulse.cli.jobs import bulk
from pulse.cli.jobs.bulk import BulkOptions
from pulse.cli.jobs.filters import filters_of, job_filters
from pulse.cli.lazy import examples
from pulse.cli.lookup import IdWord
from pulse.cli.options import JOB, PRIORITY, TOPIC
from pulse.ops.bulk import ACTIONS

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


def _chosen(command: CommandT) -> CommandT:
    """Ids, or the options that choose jobs; and how it is to be done."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help='Print {"done": [ids], "refused": [[id, code]...]}.'),
        click.option("--yes", "-y", is_flag=True, help="Do not ask."),
        click.option("--dry-run", is_flag=True, help="Only count what would be changed, by status and topic."),
        job_filters(),
        click.argument("job_ids", metavar="[ID]...", type=JOB, nargs=-1),
    ):
        command = option(command)
    return command


@click.command(
    epilog=examples(
        "pulse ctl jobs cancel 0190163d-8694-739b-aea5-966c26f8ad91",
        "pulse ctl jobs cancel --topic images --older 1h --dry-run",
    )
)
@click.option(
    "--with-dependents",
    is_flag=True,
    help="And all jobs that wait for these, directly or not: those, too, that would run all the same.",
)
@_chosen
def cancel(
    job_ids: Sequence[IdWord], *, with_dependents: bool, dry_run: bool, yes: bool, as_json: bool, **given: object
) -> None:
    """
    Cancel jobs: those that wait never start, those that run are stopped.

    Jobs that wait for a canceled one are canceled, too, unless they were submitted with --on-failure run.

    Either the jobs with these ids, or all that the options choose. Ends with exit code 1 when any of them was refused;
    the others are canceled all the same. Interrupted, it ends between two batches and says how far it came.
    """
    more = _dependents(job_ids, wanted=with_dependents)
    bulk.change(ACTIONS["cancel"], job_ids, filters_of(given), BulkOptions(dry_run, yes, as_json, more=more))


def _dependents(job_ids: Sequence[IdWord], *, wanted: bool) -> dict[str, object]:
    if not wanted:
        return {}
    if not job_ids:  # what one batch took along would be refused in the next one
        raise click.UsageError("--with-dependents is allowed with ids only.")
    return {"with_dependents": True}


@click.command(
    epilog=examples(
        "pulse ctl jobs retry 0190163d-8694-739b-aea5-966c26f8ad91",
        "pulse ctl jobs retry 0190163d-8694-739b-aea5-966c26f8ad91 --with-dependents",
        "pulse ctl jobs retry --status DEAD_LETTERED --error 'connection refused' --newer 1d",
    )
)
@click.option(
    "--with-dependents",
    is_flag=True,
    help="And all jobs that were canceled because these had failed, directly or not: they wait again.",
)
@_chosen
def retry(
    job_ids: Sequence[IdWord], *, with_dependents: bool, dry_run: bool, yes: bool, as_json: bool, **given: object
) -> None:
    """
    Start completed, canceled or dead jobs again, with a fresh budget of tries.

    Either the jobs with these ids, or all that the options choose: dead and canceled ones, unless --status says
    otherwise. Of jobs that have completed it asks on a terminal: they run again. Ends with exit code 1 when any of them
    was refused; the others are started all the same.
    """
    more = _dependents(job_ids, wanted=with_dependents)
    bulk.change(ACTIONS["retry"], job_ids, filters_of(given), BulkOptions(dry_run, yes, as_json, more=more))


@click.command(
    epilog=examples(
        "pulse ctl jobs delete 0190163d-8694-739b-aea5-966c26f8ad91",
        "pulse ctl jobs delete --status DEAD_LETTERED --older 30d --yes",
    )
)
@_chosen
def delete(job_ids: Sequence[IdWord], *, dry_run: bool, yes: bool, as_json: bool, **given: object) -> None:
    """
    Delete jobs that have ended, with the history of their attempts. This cannot be undone.

    Jobs that wait or run are refused: cancel them first.
    """
    bulk.change(ACTIONS["delete"], job_ids, filters_of(given), BulkOptions(dry_run, yes, as_json))


@click.command(
    epilog=examples(
        "pulse ctl jobs change --priority 50 0190163d-8694-739b-aea5-966c26f8ad91",
        "pulse ctl jobs change --topic images --name resize --to-topic images-slow --dry-run",
    )
)
@click.option("--priority", type=PRIORITY, metavar="P", help="Give them this priority; higher first.")
@click.option("--to-topic", type=TOPIC, metavar="TOPIC", help="Have them wait in this topic.")
@_chosen
def change(
    job_ids: Sequence[IdWord],
    *,
    priority: int | None,
    to_topic: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **given: object,
) -> None:
    """
    Give jobs that wait another priority or topic, on all hosts at once.

    What is due waits at the end of where it is then; what is due later stays due then. Jobs that run are refused.
    """
    if priority is None and to_topic is None:
        raise click.UsageError("neither --priority nor --to-topic is given; one of them, or both, is needed.")
    more = {key: value for key, value in (("priority", priority), ("topic", to_topic)) if value is not None}
    bulk.change(ACTIONS["change"], job_ids, filters_of(given), BulkOptions(dry_run, yes, as_json, more=more))
