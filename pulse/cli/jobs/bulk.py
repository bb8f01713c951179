"""
Changing many jobs: first found and counted, then asked about, then changed in batches that can be stopped between two.

What was counted is what is changed: by its ids, each guarded by its status, so that what happens to a job meanwhile
is not undone by it.
"""

from __future__ import annotations

import itertools
import signal
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast
from uuid import UUID

import click

from pulse.cli.jobs.filters import chosen, in_words
from pulse.cli.lookup import IdWord, jobs_of
from pulse.cli.output.progress import ProgressLine
from pulse.cli.output.render import Cell, Column, Screen, Table, foreign, write_document
from pulse.cli.server import current_server
from pulse.common.text import count, shell_word
from pulse.errors import NobodyAnswersError, PulseError
from pulse.ops.bulk import (
    MAX_MATCHING_CHARACTERS,
    Ask,
    BulkAction,
    batches,
    change_jobs,
    former_of,
    job_pages,
    jobs_with_ids,
    run_blocking,
)
from pulse.protocol.answers import ChangedAnswer

if TYPE_CHECKING:
    from types import FrameType

    from pulse.client.client import Client

MOST_PER_REQUEST: Final = 1000  # ids of one statement, which stays short
_EXAMPLES: Final = 3
_MOST_GROUPS: Final = 20  # of what is counted, in a table for people
_MOST_IDS_SHOWN: Final = 20  # in a hint
_PROGRESS_S: Final = 0.1
_INTERRUPTED: Final = 130
_REASONS: Final = {
    "not_found": "there is no such job",
    "invalid_transition": "its status does not allow that",
    "conflict": "its last attempt is still held by a worker",
    "set_aside": "the database refuses it, so it is set aside; `jobs why` tells the error, `jobs delete` ends it",
}


@dataclass(frozen=True, slots=True)
class BulkOptions:
    """Options: only count, do not ask, JSON output; ``more``: further fields of the request."""

    dry_run: bool
    yes: bool
    as_json: bool
    more: Mapping[str, object] = field(default_factory=dict[str, object])


@dataclass(slots=True)
class _Found:
    ids: list[bytes] = field(default_factory=list[bytes])
    groups: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])

    def document(self) -> dict[str, object]:
        groups = [
            {"status": status, "topic": topic, "jobs": jobs} for (status, topic), jobs in self.groups.most_common()
        ]
        return {"jobs": len(self.ids), "counts": groups, "examples": self.ids[:_EXAMPLES]}


def check(action: BulkAction, job_ids: Sequence[IdWord], filters: Mapping[str, object], *, dry_run: bool) -> None:
    """
    Whether it can be understood at all.

    Raises:
        UsageError: Both ids and filters are given, or neither, or a status that it is not done to, or ids to count.
    """
    if job_ids and filters:
        raise click.UsageError("ids and options that choose jobs cannot be given together; one of them is allowed.")
    if job_ids and dry_run:
        raise click.UsageError("--dry-run counts what options choose; ids are what they are.")
    if not job_ids and not filters:
        raise click.UsageError("which jobs? ids are allowed, or options that choose them, as for `jobs list`.")
    for status in cast("list[str]", filters.get("status", [])):
        if status not in action.statuses:
            allowed = ", ".join(action.statuses)
            raise click.UsageError(f"--status {status}: jobs can be {action.done} that are {allowed}.")


def change(action: BulkAction, words: Sequence[IdWord], filters: Mapping[str, object], options: BulkOptions) -> None:
    """Change the jobs that are named, or all that the filters choose."""
    check(action, words, filters, dry_run=options.dry_run)
    job_ids = jobs_of(words)
    current_server().route(options.more.get("topic"))
    current_server().check_topic(cast("str | None", options.more.get("topic")))
    with current_server().client() as client:
        if job_ids:
            if action.verb == "retry" and not (options.yes or options.as_json) and _is_asked():
                _ask_again(client, job_ids)
            changed, failure = _apply(client, action, job_ids, options.more)
            _tell_each(action, changed, as_json=options.as_json)
            told = len(changed.done) + len(changed.refused)  # with dependents more than were asked for
            _conclude(changed, failure, asked=max(len(job_ids), told))
            return
        wanted = {"status": list(action.by_default), **filters}
        found = _find(client, wanted)
        if options.dry_run:
            _show_found(action, found, as_json=options.as_json)
            return
        if found.ids and not options.yes:
            _ask(action, found, options)
        more = {**options.more, "matching": in_words(wanted)[:MAX_MATCHING_CHARACTERS]}
        changed, failure = _apply(client, action, found.ids, more, shows=True)
    _tell_all(action, changed, filters, options)
    _conclude(changed, failure, asked=len(found.ids))


def _find(client: Client, filters: Mapping[str, object]) -> _Found:
    found = _Found()
    with ProgressLine(_PROGRESS_S) as line:

        async def count_all() -> None:
            async for page in job_pages(_asks(client), {**filters, "brief": True}, MOST_PER_REQUEST):
                found.ids += [job.id for job in page.jobs]
                found.groups.update((job.status, job.topic) for job in page.jobs)
                if page.next is not None:
                    line.show(chosen(len(found.ids), page.reached))

        run_blocking(count_all())
    return found


def _asks(client: Client) -> Ask:
    """Sends the requests of bulk changes by *client*, which blocks; reading requests may be repeated."""

    async def ask(kind: str, body: Mapping[str, object]) -> Mapping[str, object]:
        return client.request(kind, body, repeatable=kind == "jobs.list")

    return ask


def _show_found(action: BulkAction, found: _Found, *, as_json: bool) -> None:
    if as_json:
        write_document(found.document())
        return
    screen = Screen()
    shown = found.groups.most_common(_MOST_GROUPS)
    if shown:
        columns = (Column("status"), Column("topic", least=8), Column("jobs", right=True))
        rows = [[Cell(status), foreign(topic), Cell(f"{jobs:,}")] for (status, topic), jobs in shown]
        screen.table(Table(columns, rows))
    if len(found.groups) > len(shown):
        screen.lines([[Cell(f"and {len(found.groups) - len(shown)} more topics", "dim")]])
    screen.lines([Cell("for example ", "dim"), Cell(str(UUID(bytes=one)))] for one in found.ids[:_EXAMPLES])
    screen.lines([[Cell(f"would {action.verb} {count(len(found.ids), 'job')}; nothing was done")]])


def _ask(action: BulkAction, found: _Found, options: BulkOptions) -> None:
    """
    Ask whether to go on.

    Raises:
        UsageError: Nobody can be asked.
        Exit: The answer is no.
    """
    if options.as_json or not _is_asked():
        raise click.UsageError(
            f"{count(len(found.ids), 'job')} would be {action.done}; --yes is required where nobody can be asked."
        )
    _show_found_briefly(found)
    if not action.reverse:
        click.echo("This cannot be undone.")
    completed = sum(jobs for (status, _), jobs in found.groups.items() if status == "COMPLETED")
    if action.verb == "retry" and completed:
        _warn_of_completed(completed)
    _confirm(f"{action.verb} {count(len(found.ids), 'job')}?")


def _is_asked() -> bool:
    """Whether somebody can be asked."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def _confirm(question: str) -> None:
    """Raise Exit if the answer is no."""
    if not click.confirm(question):
        click.echo("nothing was done", err=True)
        raise click.exceptions.Exit(1)


def _ask_again(client: Client, job_ids: Sequence[bytes]) -> None:
    """Ask before jobs that have completed run again; the others are retried without a question, as they failed."""
    found = run_blocking(jobs_with_ids(_asks(client), job_ids))
    completed = sum(job.status == "COMPLETED" for job in found)
    if completed:
        _warn_of_completed(completed)
        _confirm(f"retry {count(len(job_ids), 'job')}?")


def _warn_of_completed(jobs: int) -> None:
    it = "it runs again, and that" if jobs == 1 else "they run again, and that"
    click.echo(f"{count(jobs, 'job')} {'has' if jobs == 1 else 'have'} completed: {it} cannot be undone.")


def _show_found_briefly(found: _Found) -> None:
    screen = Screen()
    for (status, topic), jobs in found.groups.most_common(_EXAMPLES):
        screen.lines([[Cell(f"{jobs:,} {status} in "), foreign(topic)]])
    if len(found.groups) > _EXAMPLES:
        screen.lines([[Cell(f"and in {len(found.groups) - _EXAMPLES} more groups", "dim")]])


@contextmanager
def _interruptible() -> Generator[Callable[[], bool]]:
    """Ctrl-C takes effect between two batches; a second one at once. Yields whether there was one."""
    seen: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        if len(seen) > 1:
            signal.default_int_handler(number, frame)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(seen)
    finally:
        signal.signal(signal.SIGINT, before)


def _apply(
    client: Client, action: BulkAction, ids: Sequence[bytes], more: Mapping[str, object], *, shows: bool = False
) -> tuple[ChangedAnswer, PulseError | None]:
    """Change batch by batch, until the end, an interrupt, or a failure after the first batch; returns also why."""
    whole = ChangedAnswer([], [], before=[], completed=[])
    has_answer = False
    with _interruptible() as is_stopped, ProgressLine(_PROGRESS_S, is_shown=shows) as line:

        def keep(changed: ChangedAnswer) -> None:
            nonlocal has_answer
            has_answer = True
            whole.done.extend(changed.done)
            whole.refused.extend(changed.refused)
            whole.before.extend(changed.before)
            whole.completed.extend(changed.completed)
            line.show(f"{len(whole.done):,} of {count(len(ids), 'job')} {action.done}")

        until_stopped = itertools.takewhile(lambda _: not is_stopped(), batches(ids, MOST_PER_REQUEST))
        try:
            run_blocking(change_jobs(_asks(client), action, until_stopped, more, keep))
        except PulseError as error:
            if not has_answer:
                raise
            return whole, error
    return whole, None


def _tell_each(action: BulkAction, changed: ChangedAnswer, *, as_json: bool) -> None:
    if as_json:
        write_document({"done": changed.done, "refused": changed.refused})
    else:
        again = frozenset(changed.completed)
        Screen().lines(
            [Cell(f"{action.done} "), Cell(str(UUID(bytes=one))), Cell(", which had completed" if one in again else "")]
            for one in changed.done
        )
        _hint(action, changed, {})
    for job_id, code in changed.refused:
        click.echo(f"pulse: {UUID(bytes=job_id)}: {code}: {_REASONS.get(code, 'refused')}", err=True)


def _tell_all(action: BulkAction, changed: ChangedAnswer, filters: Mapping[str, object], options: BulkOptions) -> None:
    if options.as_json:
        write_document({"done": changed.done, "refused": changed.refused})
    else:
        click.echo(f"{count(len(changed.done), 'job')} {action.done}")
        _hint(action, changed, filters)
    for code, jobs in Counter(code for _, code in changed.refused).items():
        click.echo(f"pulse: {count(jobs, 'job')}: {code}: {_REASONS.get(code, 'refused')}", err=True)


def _conclude(changed: ChangedAnswer, failure: PulseError | None, *, asked: int) -> None:
    """
    Say what was left, and end as it went.

    Raises:
        Exit: Some were refused, or it was interrupted.
        PulseError: The server said no, or nothing any more, in the middle of it.
    """
    left = asked - len(changed.done) - len(changed.refused)
    if failure is not None:
        error = NobodyAnswersError if isinstance(failure, NobodyAnswersError) else PulseError
        doubt = min(left, MOST_PER_REQUEST)
        raise error(f"{failure.message}; {count(left, 'job')} left, {doubt:,} of which may have been reached")
    if left:
        click.echo(f"pulse: stopped; {count(left, 'job')} not touched", err=True)
        raise click.exceptions.Exit(_INTERRUPTED)
    if changed.refused:
        raise click.exceptions.Exit(1)


def _hint(action: BulkAction, changed: ChangedAnswer, filters: Mapping[str, object]) -> None:
    """Print how to undo it, on a terminal."""
    if sys.stderr.isatty():
        for line in _undo(action, changed, filters):
            click.echo(line, err=True)


def _undo(action: BulkAction, changed: ChangedAnswer, filters: Mapping[str, object]) -> Iterator[str]:
    """The commands that undo it, if there are some."""
    groups = list(former_of(action, changed).items())
    for former, ids in groups[:_MOST_GROUPS]:
        if former is None:
            if which := _which(ids, filters, action.reverse):
                yield f"to undo: pulse ctl jobs {action.reverse} {which}"
            continue
        where = f"--to-topic {shell_word(former[0])} --priority {former[1]}"
        if len(ids) <= _MOST_IDS_SHOWN:
            yield f"to undo: pulse ctl jobs change {where} {' '.join(str(UUID(bytes=one)) for one in ids)}"
        else:
            yield f"before, {count(len(ids), 'job')} had: {where}"
    if len(groups) > _MOST_GROUPS:
        yield f"and {len(groups) - _MOST_GROUPS} more topics and priorities before"


def _which(ids: Sequence[bytes], filters: Mapping[str, object], reverse: str) -> str:
    """What chooses these jobs now, with a warning of what else it may; '' where only their ids would."""
    if len(ids) <= _MOST_IDS_SHOWN:
        return " ".join(str(UUID(bytes=one)) for one in ids)
    kept = {name: value for name, value in filters.items() if name not in {"status", "worker"}}
    if not kept:
        return ""
    if reverse == "retry":
        return f"{in_words({'status': ['CANCELED'], **kept})}  (also those that were canceled before)"
    return f"{in_words(kept)}  (also others that wait or run; --dry-run counts them)"
