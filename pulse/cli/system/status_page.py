"""The state of the whole for people: a few lines, and below them in words what is not as it should be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from pulse.cli.control.dispatch import gate_lines
from pulse.cli.output.render import Cell, Line, Screen, foreign
from pulse.cli.output.styles import ACTOR_STYLES, STATUS_STYLES
from pulse.common.text import count, duration, iso, one_line
from pulse.ops.doctor.live import Problem, live_problems
from pulse.protocol.answers import Database, Gate, Pause, Process, Status, Supervisor, Worker

__all__ = ["overview", "paused_by", "problems", "process_problems", "show_status"]

_LABEL_WIDTH: Final = 12
_PAUSED_SHOWN: Final = 5  # topics; there may be thousands
_YOUNG_S: Final = 60.0  # a process that restarted within it may still be in trouble
_UNKNOWN: Final = Cell("unknown", "dim")
_WAITING: Final = ("PENDING", "RETRYING")


def show_status(status: Status, silent: Mapping[str, str], screen: Screen, now_s: float) -> None:
    """
    Show *status* on *screen*.

    Args:
        status: What is known.
        silent: Who did not answer, and why: ``supervisor``, ``dispatcher``.
        screen: Where.
        now_s: Unix seconds.

    """
    screen.lines(overview(status, now_s))
    found = [*map(Problem, problems(status, silent)), *live_problems(status)]
    if found:
        screen.lines([[]])
    for problem in found:
        title = f"{problem.title}: " if problem.title else ""
        screen.lines([[Cell("! ", "yellow"), foreign(title, "bold yellow"), foreign(problem.text, "yellow")]])
        screen.lines([Cell("  "), foreign(text, "yellow")] for text in problem.more)
        screen.lines([Cell("  -> ", "dim"), foreign(line, "cyan")] for line in problem.advice)


def overview(status: Status, now_s: float) -> Iterator[Line]:
    """The lines of the overview, each part with its label."""
    yield from _labelled("supervisor", [_supervisor_line(status.supervisor)])
    yield from _labelled("database", [_database_line(status.database)])
    gate = [[_UNKNOWN]] if status.gate is None else [*gate_lines(status.gate, now_s, most=_PAUSED_SHOWN)]
    yield from _labelled("gate", gate)
    for label, processes in (("actors", status.actors), ("pools", status.pools), ("services", status.services)):
        if processes:
            yield from _labelled(label, _process_lines(processes))
    yield from _labelled("workers", [_workers_line(status.workers)])
    yield from _labelled("jobs", [_jobs_line(status)])


def problems(status: Status, silent: Mapping[str, str]) -> Iterator[str]:
    """What is not as it should be, a sentence each."""
    for who, why in silent.items():
        yield f"the {who} does not answer: {one_line(why)}"
    if status.database is not None and not status.database.ok:
        yield f"the database is away: {one_line(status.database.error or 'no reason was told')}"
    if status.gate is not None and status.gate.as_of is not None:
        yield f"the gate is shown as it was at {iso(int(status.gate.as_of))}"
    yield from process_problems(status)
    waiting = sum((status.jobs or {}).get(name, 0) for name in _WAITING)
    if status.gate is not None and status.gate.paused and waiting:
        jobs = f"{count(waiting, 'job')} will not start before `pulse ctl dispatch resume`"
        yield f"dispatch is paused{paused_by(status.gate)}: {jobs}"
    if status.workers == [] and waiting:
        wait = "waits" if waiting == 1 else "wait"
        yield f"no workers are connected: {count(waiting, 'job')} {wait}"


def paused_by(pause: Gate | Pause) -> str:
    """Since when, by whom and why something is paused."""
    since = "" if pause.paused_at is None else f" since {iso(int(pause.paused_at))}"
    until = "" if pause.paused_until is None else f" until {iso(int(pause.paused_until))}"
    who = "" if pause.paused_by is None else f" by {one_line(pause.paused_by)}"
    reason = "" if pause.reason is None else f" ({one_line(pause.reason)})"
    return f"{since}{until}{who}{reason}"


def process_problems(status: Status) -> Iterator[str]:
    """The part of it that is about actors, pools and services."""
    for process in (*(status.actors or ()), *(status.pools or ()), *(status.services or ())):
        if process.state != "running":
            yield f"{one_line(process.name)} is {one_line(process.state)}{_restarts(process)}"
        elif process.restarts and process.uptime_s is not None and process.uptime_s < _YOUNG_S:
            yield f"{one_line(process.name)} was restarted {duration(process.uptime_s)} ago{_restarts(process)}"


def _labelled(label: str, lines: Sequence[Line]) -> Iterator[Line]:
    for index, line in enumerate(lines):
        yield [Cell(f"{'' if index else label:<{_LABEL_WIDTH}}", "dim"), *line]


def _supervisor_line(supervisor: Supervisor | None) -> Line:
    if supervisor is None:
        return [_UNKNOWN]
    parts = [f"pulse {supervisor.version}", f"pid {supervisor.pid}"]
    if supervisor.uptime_s is not None:
        parts.append(f"up {duration(supervisor.uptime_s)}")
    return [foreign(", ".join(parts))]


def _database_line(database: Database | None) -> Line:
    if database is None:
        return [Cell("unknown: no actor told in time", "yellow")]
    if not database.ok:
        return [Cell("away", "bold red"), foreign(f"  {database.dsn}")]
    return [Cell("ok", "green"), foreign(f"  PostgreSQL {database.server_version}  {database.dsn}")]


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
    held, places = sum(worker.held for worker in workers), sum(worker.capacity for worker in workers)
    return [Cell(f"{len(workers)} connected, {held:,} of {count(places, 'place')} taken")]


def _jobs_line(status: Status) -> Line:
    if status.jobs is None:
        return [_UNKNOWN]
    line: list[Cell] = []
    for name in (*STATUS_STYLES, *(status.jobs.keys() - STATUS_STYLES.keys())):
        number = status.jobs.get(name, 0)
        if number:
            shown = f"{number:,} {name.lower().replace('_', ' ')}"
            line += [Cell(", ")] if line else []
            line.append(foreign(shown, STATUS_STYLES.get(name, "")))
    if line and status.jobs_exact is False:
        line.append(Cell(" (ended ones estimated)", "dim"))
    return line or [Cell("none")]


def _restarts(process: Process) -> str:
    return f" ({count(process.restarts, 'restart')} so far)" if process.restarts else ""
