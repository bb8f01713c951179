"""One job for people: what it is, how it goes, what went wrong, and its attempts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from uuid import UUID

from pulse.cli.jobs.story import story
from pulse.cli.output.render import STATUS_STYLES, Cell, Line, Screen, foreign
from pulse.common.text import ago, count, cut, cut_middle, duration, iso, one_line, printable
from pulse.ops.job_text import held_back, pretty, unique_text, where
from pulse.protocol.answers import JobInfo
from pulse.security.codec import shown_instead

CONCEALED: Final = "not shown: that needs the role client"
_LABEL_WIDTH: Final = 13
_MARGIN: Final = 2
_MOST_CHARACTERS: Final = 4000  # of a text on a terminal: a page or two; a pipe gets all of it
_RELATIVES: Final = 10  # jobs of each kind that are listed, and signals
_PAYLOAD_COLUMNS: Final = 200


def show_job(job: JobInfo, screen: Screen, now_s: float, *, whole_stacks: bool = False) -> None:
    """Show *job* on *screen*; of stacks all lines, or only the last."""
    screen.lines(
        [
            [Cell(str(UUID(bytes=job.id)), "bold")],
            *([Cell(f"{label:<{_LABEL_WIDTH}}", "dim"), value] for label, value in facts(job, now_s)),
        ]
    )
    if job.concealed:
        screen.lines([[Cell(f"{'args':<{_LABEL_WIDTH}}", "dim"), Cell(CONCEALED, "dim")]])
    if job.last_error:
        _show_error(screen, job.last_error.rstrip())
    for label, text in (("args", job.args), ("progress", job.progress), ("result", job.result)):
        instead = shown_instead(text)
        if instead is not None:
            _show_block(screen, label, instead)
        elif text is not None and not job.concealed:
            room = None if screen.width is None else screen.width - _MARGIN
            _show_block(screen, label, printable(pretty(text, room), keep_lines=True))
    if job.signals:
        screen.lines([[], [Cell("signals", "dim")], *_signals(job)])
    screen.lines([[], [Cell("what became of it", "dim")]])
    most = None if screen.width is None else _MOST_CHARACTERS // 4
    screen.lines([Cell(" " * _MARGIN), *line] for line in story(job, now_s, whole_stacks=whole_stacks, most=most))


def facts(job: JobInfo, now_s: float) -> Iterator[tuple[str, Cell]]:
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
    yield from _keys(job)
    for label, moment_s in (("occurrence", job.occurrence), ("submitted", job.submitted_at)):
        if moment_s is not None:
            yield label, moment(moment_s, now_s)
    yield from _relatives(job)
    waits = job.status in {"PENDING", "RETRYING"}
    held = held_back(job, now_s)
    if held is not None and job.awaited_signal is not None:
        yield "waits for", foreign(held.removeprefix("waits for "))
    for label, moment_s in (
        ("due", job.next_run_at if waits and held is None else None),
        ("expires", job.expires_at if waits else None),
        ("claimed", job.started_at),
    ):
        if moment_s is not None:
            yield label, moment(moment_s, now_s)
    if job.status == "RUNNING":
        if job.locked_by is not None:
            yield "worker", Cell(where(job.locked_by, job.hosts))
        if job.lease_until is not None:
            yield "lease until", moment(job.lease_until, now_s)
    yield from _end(job, now_s)


def _keys(job: JobInfo) -> Iterator[tuple[str, Cell]]:
    if job.group_key is not None:
        yield "group", foreign(job.group_key)
    if job.unique_key is not None:
        yield "unique key", foreign(f"{job.unique_key} ({unique_text(job)})")


def _relatives(job: JobInfo) -> Iterator[tuple[str, Cell]]:
    for label, some, total in (
        ("after", job.parents, job.parents_total),
        ("then", job.children, job.children_total),
    ):
        shown = some[:_RELATIVES]
        for place, one in enumerate(shown):
            style = STATUS_STYLES.get(one.status or "", "")
            name = "" if one.name is None else f"  {one.name}"
            how = ", even if that fails" if one.on_failure == "run" and label == "after" else ""
            yield (
                label if place == 0 else "",
                foreign(f"{UUID(bytes=one.id)}  {one.status or 'deleted'}{name}{how}", style),
            )
        if total > len(shown) > 0:
            yield "", Cell(f"and {total - len(shown)} more", "dim")


def _end(job: JobInfo, now_s: float) -> Iterator[tuple[str, Cell]]:
    if job.ran_by is not None:
        yield "ran by", Cell(where(job.ran_by, job.hosts))
    if job.completed_at is None:
        return
    ended = moment(job.completed_at, now_s)
    if job.status == "COMPLETED" and job.started_at is not None:
        ended = Cell(f"{ended.text}, {duration(job.completed_at - job.started_at)} after its claim")
    yield "ended", ended


def _signals(job: JobInfo) -> Iterator[Line]:
    """The signals that were sent to *job*, a line each, with the beginning of what they say."""
    shown = job.signals[:_RELATIVES]
    for one in shown:
        payload = "" if one.payload is None else shown_instead(one.payload) or one_line(pretty(one.payload))
        text = f"{one_line(one.signal)}  {cut(payload, _PAYLOAD_COLUMNS)}".rstrip()
        yield [Cell(f"{' ' * _MARGIN}{iso(int(one.sent_at))}  "), foreign(text)]
    if job.signals_total > len(shown):
        yield [Cell(f"{' ' * _MARGIN}and {job.signals_total - len(shown)} more", "dim")]


def moment(moment_s: float, now_s: float) -> Cell:
    """A time, absolute to the second and relative."""
    return Cell(f"{iso(int(moment_s))} ({ago(moment_s, now_s)})")


def _tries(job: JobInfo) -> str:
    notes = [count(job.attempts, "attempt")] if job.uncharged else []
    if job.uncharged:
        notes.append(f"{job.uncharged} uncharged")
    if job.crashes:
        notes.append(count(job.crashes, "crash", "crashes"))
    text = f"{job.attempts - job.uncharged} of {job.max_attempts}"
    return f"{text} ({', '.join(notes)})" if notes else text


def _show_error(screen: Screen, error: str) -> None:
    """An error, line by line; on a terminal the middle of a long one is left out."""
    shown = error if screen.width is None else cut_middle(error, _MOST_CHARACTERS)
    screen.lines([[], [Cell("last error", "dim")]])
    screen.lines([Cell(" " * _MARGIN + line, "red")] for line in printable(shown, keep_lines=True).split("\n"))
    if shown != error:
        screen.lines([[Cell(f"{' ' * _MARGIN}--json has all of it", "dim")]])


def _show_block(screen: Screen, label: str, text: str) -> None:
    shown = text if screen.width is None else text[:_MOST_CHARACTERS]
    screen.lines([[], [Cell(label, "dim")]])
    screen.lines([Cell(" " * _MARGIN + line)] for line in shown.split("\n"))
    if len(shown) < len(text):
        left = count(len(text) - len(shown), "more character")
        screen.lines([[Cell(f"{' ' * _MARGIN}… {left}; --json has all of it", "dim")]])
