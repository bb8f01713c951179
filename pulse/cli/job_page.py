"""One job for people: what it is, how it goes, what went wrong, and its attempts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from uuid import UUID

from pulse.cli.documents import pretty
from pulse.cli.render import Cell, Column, Line, Screen, Table, foreign
from pulse.cli.styles import STATUS_STYLES
from pulse.cli.views import Attempt, Job
from pulse.cli.words import ago, count, duration, iso, one_line, printable

__all__ = ["facts", "history_table", "moment", "outcome_of", "show_job"]

_LABEL_WIDTH: Final = 11
_MARGIN: Final = 2
_HISTORY: Final = (
    Column("attempt", right=True),
    Column("outcome"),
    Column("ended", right=True, leave_out=1),
    Column("took", right=True, leave_out=2),
    Column("worker", least=8, leave_out=3),
    Column("error", least=10),
)


def show_job(job: Job, screen: Screen, now_s: float) -> None:
    """Show *job* on *screen*."""
    screen.lines(
        [
            [Cell(str(UUID(bytes=job.id)), "bold")],
            *([Cell(f"{label:<{_LABEL_WIDTH}}", "dim"), value] for label, value in facts(job, now_s)),
        ]
    )
    if job.last_error:
        _show_block(screen, "last error", printable(job.last_error.rstrip(), keep_lines=True), "red")
    for label, text in (("args", job.args), ("progress", job.progress), ("result", job.result)):
        if text is not None:
            room = None if screen.width is None else screen.width - _MARGIN
            _show_block(screen, label, printable(pretty(text, room), keep_lines=True))
    if job.history:
        screen.lines([[], [Cell("attempts that did not simply succeed", "dim")]])
        screen.table(history_table(job, now_s))
        for attempt in job.history:
            if attempt.cpu_s is not None or attempt.peak_rss_bytes is not None:
                screen.lines([[Cell(f"attempt {attempt.attempt} used {_used(attempt)}", "dim")]])
        hung = next((attempt for attempt in reversed(job.history) if attempt.stack), None)
        if hung is not None and hung.stack is not None:
            text = printable(hung.stack.rstrip(), keep_lines=True)
            _show_block(screen, f"where attempt {hung.attempt} was when its time was over", text)


def facts(job: Job, now_s: float) -> Iterator[tuple[str, Cell]]:
    """What there is to say of *job*, label by label; what does not apply is left out."""
    yield "status", Cell(job.status, STATUS_STYLES.get(job.status, ""))
    yield "name", foreign(job.name)
    yield "topic", foreign(job.topic)
    yield "tries", Cell(_tries(job))
    if job.priority:
        yield "priority", Cell(str(job.priority))
    if job.timeout_s is not None:
        yield "timeout", Cell(duration(job.timeout_s))
    if job.schedule_id is not None:
        yield "schedule", Cell(str(UUID(bytes=job.schedule_id)))
    for label, moment_s in (("occurrence", job.occurrence), ("submitted", job.submitted_at)):
        if moment_s is not None:
            yield label, moment(moment_s, now_s)
    waits = job.status in {"PENDING", "RETRYING"}
    for label, moment_s in (
        ("due", job.next_run_at if waits else None),
        ("expires", job.expires_at if waits else None),
        ("claimed", job.started_at),
    ):
        if moment_s is not None:
            yield label, moment(moment_s, now_s)
    if job.status == "RUNNING":
        if job.locked_by is not None:
            yield "worker", foreign(job.locked_by)
        if job.lease_until is not None:
            yield "lease until", moment(job.lease_until, now_s)
    if job.completed_at is not None:
        yield "ended", moment(job.completed_at, now_s)


def moment(moment_s: float, now_s: float) -> Cell:
    """A time, absolute to the second and relative."""
    return Cell(f"{iso(int(moment_s))} ({ago(moment_s, now_s)})")


def outcome_of(attempt: Attempt) -> str:
    """How an attempt ended, with the signal or exit code of a worker that died."""
    if attempt.exit_code is None:
        return attempt.outcome
    what = f"exit code {attempt.exit_code}" if attempt.exit_code >= 0 else _signal_name(-attempt.exit_code)
    return f"{attempt.outcome} ({what})"


def history_table(job: Job, now_s: float) -> Table:
    """The attempts of *job* that left a row, oldest first."""
    return Table(_HISTORY, [_attempt_row(attempt, now_s) for attempt in job.history])


def _attempt_row(attempt: Attempt, now_s: float) -> Line:
    took = ""
    if attempt.started_at is not None and attempt.ended_at is not None:
        took = duration(attempt.ended_at - attempt.started_at)
    return [
        Cell(str(attempt.attempt)),
        Cell(outcome_of(attempt)),
        Cell("" if attempt.ended_at is None else ago(attempt.ended_at, now_s), "dim"),
        Cell(took, "dim"),
        foreign(attempt.worker or ""),
        Cell(one_line(attempt.error or "")),
    ]


def _used(attempt: Attempt) -> str:
    parts: list[str] = []
    if attempt.cpu_s is not None:
        parts.append(f"{attempt.cpu_s:.2f} s of CPU")
    if attempt.peak_rss_bytes is not None:
        parts.append(f"{attempt.peak_rss_bytes / 2**20:.0f} MiB of memory")
    return ", ".join(parts)


def _tries(job: Job) -> str:
    notes = [count(job.attempts, "attempt")] if job.uncharged else []
    if job.uncharged:
        notes.append(f"{job.uncharged} uncharged")
    if job.crashes:
        notes.append(count(job.crashes, "crash", "crashes"))
    text = f"{job.attempts - job.uncharged} of {job.max_attempts}"
    return f"{text} ({', '.join(notes)})" if notes else text


def _show_block(screen: Screen, label: str, text: str, style: str = "") -> None:
    screen.lines([[], [Cell(label, "dim")]])
    screen.lines([Cell(" " * _MARGIN + line, style)] for line in text.split("\n"))


def _signal_name(number: int) -> str:
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
