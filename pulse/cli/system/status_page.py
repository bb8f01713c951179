"""The state of the whole system for people: a few lines, and below them what is wrong."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from pulse.cli.control.dispatch import gate_lines
from pulse.cli.output.render import ACTOR_STYLES, STATUS_STYLES, Cell, Line, Screen, foreign
from pulse.common.text import count, duration
from pulse.ops.doctor.finding import Finding
from pulse.ops.doctor.running import starting
from pulse.ops.worker_text import places_of
from pulse.protocol.answers import Process, StatusAnswer, SupervisorInfo, Worker
from pulse.protocol.stats import LimitStats
from pulse.security.schema_name import DEFAULT, quoted

_LABEL_WIDTH: Final = 12
_LIMITS_SHOWN: Final = 5
_PAUSED_SHOWN: Final = 5  # topics; there may be thousands
STATE_STYLES: Final = {"ok": "green", "warning": "yellow", "wrong": "bold red", "skipped": "dim"}
_STATE_WIDTH: Final = 9
_WAITING: Final = frozenset({"PENDING", "RETRYING"})
_WAITS: Final = (
    ("ready", "waiting", "cyan"),
    ("scheduled", "scheduled", ""),
    ("retrying", "retrying", "yellow"),
    ("unhandled", "unhandled", "bold red"),
)
_UNKNOWN: Final = Cell("unknown", "dim")


def show_status(status: StatusAnswer, found: Sequence[Finding], screen: Screen, now_s: float) -> None:
    """
    Show *status* on *screen*.

    Args:
        status: The answers so far.
        found: What is wrong, and the warnings.
        screen: Where.
        now_s: Unix seconds.
    """
    screen.lines(overview(status, now_s))
    if found:
        screen.lines([[]])
    for one in found:
        screen.lines(finding_lines(one))


def finding_lines(finding: Finding) -> Iterator[Line]:
    """A finding of the doctor: a line, and below it what is the matter and what helps."""
    yield [
        Cell(f"{finding.state.value:<{_STATE_WIDTH}}", STATE_STYLES[finding.state.value]),
        Cell(f"{finding.check}: ", "bold"),
        foreign(finding.text),
    ]
    if finding.state.value in {"ok", "skipped"} and not finding.details:
        return
    margin = Cell(" " * _STATE_WIDTH)
    yield from ([margin, foreign(text)] for text in finding.details)
    yield from ([margin, Cell("-> ", "dim"), foreign(text, "cyan")] for text in finding.advice)


def overview(status: StatusAnswer, now_s: float) -> Iterator[Line]:
    """The lines of the overview, each part with its label."""
    yield from _labelled("supervisor", [_supervisor_line(status.supervisor)])
    yield from _labelled("database", [_database_line(status)])
    gate = [[_UNKNOWN]] if status.gate is None else [*gate_lines(status.gate, now_s, most=_PAUSED_SHOWN)]
    yield from _labelled("gate", gate)
    for label, processes in (("actors", status.actors), ("pools", status.pools), ("services", status.services)):
        if processes:
            yield from _labelled(label, _process_lines(processes))
    yield from _labelled("workers", [_workers_line(status.workers)])
    yield from _labelled("jobs", [_jobs_line(status)])
    if status.limits:
        yield from _labelled("full limits", [_limit_line(one) for one in status.limits[:_LIMITS_SHOWN]])
        if len(status.limits) > _LIMITS_SHOWN:
            yield from _labelled("", [[Cell(f"and {len(status.limits) - _LIMITS_SHOWN:,} more")]])


def _labelled(label: str, lines: Sequence[Line]) -> Iterator[Line]:
    for index, line in enumerate(lines):
        yield [Cell(f"{'' if index else label:<{_LABEL_WIDTH}}", "dim"), *line]


def _supervisor_line(supervisor: SupervisorInfo | None) -> Line:
    if supervisor is None:
        return [_UNKNOWN]
    parts = [f"pulse {supervisor.version}", f"pid {supervisor.pid}"]
    if supervisor.uptime_s is not None:
        parts.append(f"up {duration(supervisor.uptime_s)}")
    return [foreign(", ".join(parts))]


def _database_line(status: StatusAnswer) -> Line:
    database = status.database
    if database is None:
        why = "the server is starting" if starting(status) else "no actor told in time"
        return [Cell(f"unknown: {why}", "yellow")]
    where = database.dsn if database.schema == DEFAULT else f"{database.dsn}  schema {quoted(database.schema)}"
    if not database.ok:
        return [Cell("away", "bold red"), foreign(f"  {where}")]
    return [Cell("ok", "green"), foreign(f"  PostgreSQL {database.server_version}  {where}")]


def _process_lines(processes: Sequence[Process]) -> list[Line]:
    width = max(len(process.name) for process in processes)
    return [_process_line(process, width) for process in processes]


def _process_line(process: Process, width: int) -> Line:
    line = [
        foreign(f"{process.name:<{width}}  "),
        foreign(f"{process.state:<8}", ACTOR_STYLES.get(process.state, "yellow")),
    ]
    if process.pid is not None:
        line.append(Cell(f"  pid {process.pid}"))
    if process.uptime_s is not None:
        line.append(Cell(f", up {duration(process.uptime_s)}"))
    return [*line, Cell(f", {count(process.restarts, 'restart')}")] if process.restarts else line


def _workers_line(workers: Sequence[Worker] | None) -> Line:
    if workers is None:
        return [_UNKNOWN]
    if not workers:
        return [Cell("none connected")]
    return [Cell(f"{len(workers)} connected, {places_of(workers).text}")]


def _jobs_line(status: StatusAnswer) -> Line:
    if status.jobs is None:
        return [_UNKNOWN]
    parts = [*_waiting_parts(status), *_ended_parts(status.jobs, leave_out=_WAITING if status.waiting else ())]
    line = [cell for part in parts for cell in (Cell(", "), part)][1:]
    if line and status.jobs_exact is False:
        line.append(Cell(" (ended ones estimated)", "dim"))
    return line or [Cell("none")]


def _limit_line(limit: LimitStats) -> Line:
    return [foreign(f"{limit.name}  "), Cell(f"{limit.running:,} of {limit.concurrency or 0:,} run", "yellow")]


def _waiting_parts(status: StatusAnswer) -> Iterator[Cell]:
    """What waits, and for what."""
    if status.waiting is not None:
        mark = "" if status.waiting.exact else "~"
        for state, word, style in _WAITS:
            number = getattr(status.waiting, state)
            if number:
                yield Cell(f"{mark}{number:,} {word}", style)


def _ended_parts(jobs: Mapping[str, int], leave_out: Collection[str]) -> Iterator[Cell]:
    for name in (*STATUS_STYLES, *(jobs.keys() - STATUS_STYLES.keys())):
        number = jobs.get(name, 0)
        if number and name not in leave_out:
            yield foreign(f"{number:,} {name.lower().replace('_', ' ')}", STATUS_STYLES.get(name, ""))
