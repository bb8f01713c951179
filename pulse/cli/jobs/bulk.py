"""
Changing many jobs: first found and counted, then asked about, then changed in batches that can be stopped between two.

What was counted is what is changed: by its ids, each guarded by its status, so that what happens to a job meanwhile
is not undone by it.
"""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast
from uuid import UUID

import click

from pulse.cli.jobs.filters import chosen, in_words, pages
from pulse.cli.output.render import Cell, Column, Screen, Table, foreign, write_document
from pulse.cli.server import current_server
from pulse.common.text import count, shell_word
from pulse.errors import NobodyAnswersError, PulseError
from pulse.protocol.answers import Changed, read

if TYPE_CHECKING:
    from types import FrameType

    from pulse.client.client import Client

__all__ = ["Kind", "Options", "change", "check"]

MOST_PER_REQUEST: Final = 1000  # ids of one statement, which stays short
_EXAMPLES: Final = 3
_MATCHING_CHARACTERS: Final = 1000  # that are kept of it
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
class Kind:
    """
    What is done.

    Attributes:
        request: The kind of the frame.
        verb: As in ``cancel 3 jobs``.
        done: As in ``3 jobs canceled``.
        statuses: What it can be done to; what is looked for, unless the user says.
        by_default: What is looked for then; fewer, where all would be a surprise.
        inverse: The command that undoes it; empty: none does.
    """

    request: str
    verb: str
    done: str
    statuses: Sequence[str]
    by_default: Sequence[str]
    inverse: str = ""


@dataclass(frozen=True, slots=True)
class Options:
    """How it is done: to be counted only, without asking, told as JSON; ``more``: what else the request says."""

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


class _Line:
    """A line on the terminal that moves; nothing, where standard error is none."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._at_s = 0.0
        self._is_there = False

    def show(self, text: str) -> None:
        if self._shown and time.monotonic() - self._at_s >= _PROGRESS_S:
            self._at_s, self._is_there = time.monotonic(), True
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()

    def end(self) -> None:
        if self._is_there:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._is_there = False


def check(kind: Kind, job_ids: Sequence[bytes], filters: Mapping[str, object]) -> None:
    """
    Whether it can be understood at all.

    Raises:
        UsageError: Both ids and filters are given, or neither, or a status that it is not done to.

    """
    if job_ids and filters:
        raise click.UsageError("ids and options that choose jobs cannot be given together; one of them is allowed.")
    if not job_ids and not filters:
        raise click.UsageError("which jobs? ids are allowed, or options that choose them, as for `jobs list`.")
    for status in cast("list[str]", filters.get("status", [])):
        if status not in kind.statuses:
            allowed = ", ".join(kind.statuses)
            raise click.UsageError(f"--status {status}: jobs can be {kind.done} that are {allowed}.")


def change(kind: Kind, job_ids: Sequence[bytes], filters: Mapping[str, object], options: Options) -> None:
    """Change the jobs that are named, or all that the filters choose."""
    check(kind, job_ids, filters)
    with current_server().client() as client:
        if job_ids and not options.dry_run:
            changed, failure = _apply(client, kind, job_ids, dict(options.more), _Line(), told=False)
            _tell_each(kind, changed, as_json=options.as_json)
            _conclude(changed, failure, asked=len(job_ids))
            return
        if job_ids:
            raise click.UsageError("--dry-run counts what options choose; ids are what they are.")
        wanted = {"status": list(kind.by_default), **filters}
        found = _find(client, wanted)
        if options.dry_run:
            _show_found(kind, found, as_json=options.as_json)
            return
        if found.ids and not options.yes:
            _ask(kind, found, options)
        more = {**options.more, "matching": in_words(wanted)[:_MATCHING_CHARACTERS]}
        changed, failure = _apply(client, kind, found.ids, more, _Line(), told=True)
    _tell_all(kind, changed, filters, options)
    _conclude(changed, failure, asked=len(found.ids))


def _find(client: Client, filters: Mapping[str, object]) -> _Found:
    found, line = _Found(), _Line()

    def moved(reached_s: float | None) -> None:
        line.show(chosen(len(found.ids), reached_s))

    try:
        for page in pages(client, {**filters, "brief": True, "limit": MOST_PER_REQUEST}, moved):
            found.ids += [job.id for job in page.jobs]
            found.groups.update((job.status, job.topic) for job in page.jobs)
    finally:
        line.end()
    return found


def _show_found(kind: Kind, found: _Found, *, as_json: bool) -> None:
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
    screen.lines([[Cell(f"would {kind.verb} {count(len(found.ids), 'job')}; nothing was done")]])


def _ask(kind: Kind, found: _Found, options: Options) -> None:
    """
    Ask whether to go on.

    Raises:
        UsageError: Nobody can be asked.
        Exit: The answer is no.

    """
    if options.as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError(
            f"{count(len(found.ids), 'job')} would be {kind.done}; --yes is required where nobody can be asked."
        )
    _show_found_briefly(found)
    if not kind.inverse:
        click.echo("This cannot be undone.")
    if not click.confirm(f"{kind.verb} {count(len(found.ids), 'job')}?"):
        click.echo("nothing was done", err=True)
        raise click.exceptions.Exit(1)


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
    client: Client, kind: Kind, ids: Sequence[bytes], more: Mapping[str, object], line: _Line, *, told: bool
) -> tuple[Changed, PulseError | None]:
    """Batch by batch, until the end, until somebody stops it, or until one behind the first fails: then also why."""
    done: list[bytes] = []
    refused: list[tuple[bytes, str]] = []
    before: list[tuple[bytes, str, int]] = []
    failure: PulseError | None = None
    with _interruptible() as is_stopped:
        for start in range(0, len(ids), MOST_PER_REQUEST):
            if is_stopped():
                break
            asked = list(ids[start : start + MOST_PER_REQUEST])
            try:
                changed = read(Changed, client.request(kind.request, {**more, "ids": asked}))
            except PulseError as error:
                if not start:
                    raise
                failure = error
                break
            done += changed.done
            refused += changed.refused
            before += changed.before
            if told:
                line.show(f"{len(done):,} of {count(len(ids), 'job')} {kind.done}")
    line.end()
    return Changed(done, refused, before), failure


def _tell_each(kind: Kind, changed: Changed, *, as_json: bool) -> None:
    if as_json:
        write_document({"done": changed.done, "refused": changed.refused})
    else:
        Screen().lines([Cell(f"{kind.done} "), Cell(str(UUID(bytes=job_id)))] for job_id in changed.done)
        _hint(kind, changed, {})
    for job_id, code in changed.refused:
        click.echo(f"pulse: {UUID(bytes=job_id)}: {code}: {_REASONS.get(code, 'refused')}", err=True)


def _tell_all(kind: Kind, changed: Changed, filters: Mapping[str, object], options: Options) -> None:
    if options.as_json:
        write_document({"done": changed.done, "refused": changed.refused})
    else:
        click.echo(f"{count(len(changed.done), 'job')} {kind.done}")
        _hint(kind, changed, filters)
    for code, jobs in Counter(code for _, code in changed.refused).items():
        click.echo(f"pulse: {count(jobs, 'job')}: {code}: {_REASONS.get(code, 'refused')}", err=True)


def _conclude(changed: Changed, failure: PulseError | None, *, asked: int) -> None:
    """
    Say what was left, and end as it went.

    Raises:
        Exit: Some were refused, or somebody has stopped it.
        PulseError: The server said no, or nothing any more, in the middle of it.
    """
    left = asked - len(changed.done) - len(changed.refused)
    if failure is not None:
        kind = NobodyAnswersError if isinstance(failure, NobodyAnswersError) else PulseError
        doubt = min(left, MOST_PER_REQUEST)
        raise kind(f"{failure.message}; {count(left, 'job')} left, {doubt:,} of which may have been reached")
    if left:
        click.echo(f"pulse: stopped; {count(left, 'job')} not touched", err=True)
        raise click.exceptions.Exit(_INTERRUPTED)
    if changed.refused:
        raise click.exceptions.Exit(1)


def _hint(kind: Kind, changed: Changed, filters: Mapping[str, object]) -> None:
    """Say how to undo it, where somebody reads."""
    if sys.stderr.isatty():
        for line in _undo(kind, changed, filters):
            click.echo(line, err=True)


def _undo(kind: Kind, changed: Changed, filters: Mapping[str, object]) -> Iterator[str]:
    """The commands that undo what was done, as far as there are any."""
    if not kind.inverse or not changed.done:
        return
    if not kind.request.endswith("change"):
        which = _which(changed.done, filters, kind.inverse)
        if which:
            yield f"to undo: pulse ctl jobs {kind.inverse} {which}"
        return
    groups: dict[tuple[str, int], list[bytes]] = {}
    for job_id, topic, priority in changed.before:
        groups.setdefault((topic, priority), []).append(job_id)
    for (topic, priority), ids in list(groups.items())[:_MOST_GROUPS]:
        where = f"--to-topic {shell_word(topic)} --priority {priority}"
        if len(ids) <= _MOST_IDS_SHOWN:
            yield f"to undo: pulse ctl jobs change {where} {' '.join(str(UUID(bytes=one)) for one in ids)}"
        else:
            yield f"before, {count(len(ids), 'job')} had: {where}"
    if len(groups) > _MOST_GROUPS:
        yield f"and {len(groups) - _MOST_GROUPS} more topics and priorities before"


def _which(ids: Sequence[bytes], filters: Mapping[str, object], inverse: str) -> str:
    """What chooses these jobs now, with a warning of what else it may; '' where only their ids would."""
    if len(ids) <= _MOST_IDS_SHOWN:
        return " ".join(str(UUID(bytes=one)) for one in ids)
    kept = {name: value for name, value in filters.items() if name not in {"status", "worker"}}
    if not kept:
        return ""
    if inverse == "retry":
        return f"{in_words({'status': ['CANCELED'], **kept})}  (also those that were canceled before)"
    return f"{in_words(kept)}  (also others that wait or run; --dry-run counts them)"
