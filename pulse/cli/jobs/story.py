"""The history of a job in order: submitted, each attempt, the end. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from uuid import UUID

from pulse.cli.output.render import Cell, Line, foreign
from pulse.common.text import count, cut, cut_middle, duration, headline, iso, one_line, printable
from pulse.ops.job_text import held_back, outcome_of, pretty, where
from pulse.protocol.answers import HELD_S, AttemptInfo, JobInfo

_MARGIN: Final = " " * 22  # the width of a time, and two
_SHORT_STACK_LINES: Final = 4
_MOST_COLUMNS: Final = 400  # of the reason of an attempt, on its line
_UNCHARGED: Final = frozenset({"released", "snoozed", "crashed"})
_NOT_TRIED: Final = frozenset({"expired", "canceled", "completed"})  # neither charged nor not: the end
_ENDS: Final = {"COMPLETED": "green", "DEAD_LETTERED": "red", "CANCELED": "yellow"}


def story(job: JobInfo, now_s: float, *, whole_stacks: bool = False, most: int | None = None) -> Iterator[Line]:
    """
    The lines of it.

    Args:
        job: With its history.
        now_s: For what is still going on.
        whole_stacks: All lines of stacks, not only the last.
        most: Bytes of an error; None: all.
    """
    if job.submitted_at is not None:
        yield [*_at(job.submitted_at), Cell(_submitted(job))]
    seen = {(job.last_error or "").rstrip()}  # shown above
    for attempt in job.history:
        error = (attempt.error or "").rstrip()
        trace = "" if error in seen else error if most is None else cut_middle(error, most)
        seen.add(error)
        by = f" by {where(attempt.worker, job.hosts)}" if attempt.worker else ""
        yield from _attempt(attempt, by, trace, whole_stacks=whole_stacks)
    missing = _unrecorded(job)
    if missing:
        yield [
            Cell(_MARGIN),
            Cell(f"{missing} left no record: given back unstarted", "dim"),
        ]
    yield from _newest(job, now_s)


def used(attempt: AttemptInfo) -> str:
    """What an attempt used, as far as the kernel counted it."""
    parts: list[str] = []
    if attempt.cpu_s is not None:
        parts.append(f"{attempt.cpu_s:.2f} s of CPU")
    if attempt.peak_rss_bytes is not None:
        parts.append(f"{attempt.peak_rss_bytes / 2**20:.0f} MiB of memory")
    return ", ".join(parts)


def _at(moment_s: float | None) -> list[Cell]:
    return [Cell(_MARGIN if moment_s is None else f"{iso(int(moment_s))}  ", "dim")]


def _submitted(job: JobInfo) -> str:
    words = "submitted"
    if job.schedule_id is not None:
        words = f"fired by schedule {UUID(bytes=job.schedule_id)}"
        if job.occurrence is not None:
            words += f", for {iso(int(job.occurrence))}"
    first_s = next((one.started_at for one in job.history if one.started_at is not None), job.started_at)
    if first_s is not None and job.submitted_at is not None:
        words += f"; first claimed after {duration(first_s - job.submitted_at)}"
    return words


def _attempt(attempt: AttemptInfo, by: str, trace: str, *, whole_stacks: bool) -> Iterator[Line]:
    if attempt.attempt == 0:
        yield [*_at(attempt.ended_at), Cell("expired", "red"), Cell(": not started in time")]
        return
    name = f"attempt {attempt.attempt}"
    if attempt.started_at is not None:
        yield [*_at(attempt.started_at), Cell(f"{name} claimed{by}")]
    style = _ENDS["COMPLETED"] if attempt.outcome == "completed" else "red"
    yield [*_at(attempt.ended_at), Cell(f"{name} "), Cell(outcome_of(attempt), style), Cell(_how(attempt), "dim")]
    why = cut(one_line(headline(attempt.error or "")), _MOST_COLUMNS)
    if why:
        yield [Cell(f"{_MARGIN}  why: ", "dim"), foreign(why)]
    for line in _below(trace, why):
        yield [Cell(f"{_MARGIN}    {line}")]
    if text := used(attempt):
        yield [Cell(f"{_MARGIN}  used: ", "dim"), foreign(text)]
    if attempt.progress is not None:
        yield [Cell(f"{_MARGIN}  progress: ", "dim"), Cell(one_line(pretty(attempt.progress, None)))]
    if attempt.stack:
        yield from _stack(attempt.stack, whole=whole_stacks)


def _how(attempt: AttemptInfo) -> str:
    words = ""
    if attempt.started_at is not None and attempt.ended_at is not None:
        words = f" after {duration(attempt.ended_at - attempt.started_at)}"
    if attempt.outcome in _NOT_TRIED:
        return words
    return f"{words}, {'uncharged' if attempt.outcome in _UNCHARGED else 'charged'}"


def _below(error: str, first: str) -> list[str]:
    """The lines of an error that come below its headline *first*."""
    lines = printable(error, keep_lines=True).split("\n")
    return lines[1:] if lines[0] == first else lines if error else []


def _stack(text: str, *, whole: bool) -> Iterator[Line]:
    lines = printable(text.rstrip(), keep_lines=True).split("\n")
    shown = lines if whole else _innermost(lines)
    more = f" (the {len(shown)} innermost of {len(lines)} lines; --stack shows all)" if len(shown) < len(lines) else ""
    yield [Cell(f"{_MARGIN}  where it was{more}:", "dim")]
    for line in shown:
        yield [Cell(f"{_MARGIN}    {line}")]


def _innermost(lines: list[str]) -> list[str]:
    """Where the first part hangs, which is the handler's where there is one: its head says which end is the newest."""
    heads = [number for number, line in enumerate(lines) if "most recent call" in line]
    if not heads:
        return lines[-_SHORT_STACK_LINES:]
    part = lines[heads[0] + 1 : heads[1] if len(heads) > 1 else None]
    return part[:_SHORT_STACK_LINES] if "call first" in lines[heads[0]] else part[-_SHORT_STACK_LINES:]


def _unrecorded(job: JobInfo) -> str:
    """Attempts before the newest that left no row."""
    known = {one.attempt for one in job.history}
    missing = [number for number in range(1, job.attempts) if number not in known]
    if not missing:
        return ""
    if len(missing) == 1:
        return f"attempt {missing[0]}"
    return f"{count(len(missing), 'attempt')} ({missing[0]} to {missing[-1]})"


def _newest(job: JobInfo, now_s: float) -> Iterator[Line]:
    """What its newest attempt comes to, where it has no row; then what it waits for, or the end."""
    is_recorded = any(one.attempt == job.attempts for one in job.history)
    if job.started_at is not None and job.status in {"RUNNING", "COMPLETED"} and not is_recorded:
        by = f" by {where(holder, job.hosts)}" if (holder := job.locked_by or job.ran_by) else ""
        yield [*_at(job.started_at), Cell(f"attempt {job.attempts} claimed{by}")]
    if job.status == "RUNNING" and job.started_at is not None:
        yield [Cell(f"{_MARGIN}still running, for {duration(now_s - job.started_at)}")]
    elif job.status in {"PENDING", "RETRYING"} and job.next_run_at is not None:
        yield _due(job, job.next_run_at, now_s)
    elif job.completed_at is not None:
        took = ""
        if job.status == "COMPLETED" and job.started_at is not None:
            took = f", {duration(job.completed_at - job.started_at)} after its claim"
        yield [*_at(job.completed_at), Cell(job.status, _ENDS.get(job.status, "")), Cell(took)]


def _due(job: JobInfo, due_s: float, now_s: float) -> Line:
    held = held_back(job, now_s)
    if held is not None:
        is_limited = job.waiting_on and now_s < due_s < HELD_S
        return [Cell(_MARGIN), foreign(f"{held}, not before {iso(int(due_s))}" if is_limited else held)]
    if due_s > now_s:
        return [*_at(due_s), Cell(f"due in {duration(due_s - now_s)}")]
    return [*_at(due_s), Cell(f"due for {duration(now_s - due_s)}: `pulse ctl jobs why` tells why it waits")]
