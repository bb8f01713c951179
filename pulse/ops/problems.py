"""Lists what is wrong in a running system, from its status, and what to do about it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from pulse.common.text import count, cut, duration, iso, one_line
from pulse.protocol.answers import Gate, Incident, PauseInfo, Process, StatusAnswer, Worker

_NAMES: Final = 60  # columns of the handlers that are named
_YOUNG_S: Final = 60.0  # a process that restarted within it may still be in trouble
_WAITING: Final = ("PENDING", "RETRYING")
# Check of an incident -> its title; the page of the dashboard that shows more.
_CHECKS: Final[Mapping[str, tuple[str, str]]] = {
    "hosts": ("A host is gone", "/workers"),
    "unhandled": ("No worker handles these jobs", "/jobs"),
    "crashes": ("A job kills its workers", "/dead"),
    "hung": ("Attempts ran out of time", "/jobs?status=RETRYING"),
    "xmin": ("The database is held back", "/actors"),
    "epochs": ("The database went back", "/jobs"),
    "statements": ("The database refuses statements", "/actors"),
    "set-aside": ("The database refuses a job", "/jobs"),
    "timeline": ("An old database answers", "/actors"),
    "memory": ("Nothing is kept beside the database", "/actors"),
}


@dataclass(frozen=True, slots=True)
class Problem:
    """
    Something that is wrong.

    Attributes:
        text: It in a sentence.
        title: It in a few words; '': the text is short.
        more: Others of the same kind, a sentence each.
        advice: What to do; a command is a line of its own.
        page: Where the dashboard shows more of it.
    """

    text: str
    title: str = ""
    more: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    page: str = ""


def problems(status: StatusAnswer, silent: Mapping[str, str]) -> Iterator[str]:
    """What is wrong, a sentence each."""
    for who, why in silent.items():
        yield f"the {who} does not answer: {one_line(why)}"
    if status.database is not None and not status.database.ok:
        yield f"the database is away: {one_line(status.database.error or 'no reason was given')}"
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


def paused_by(pause: Gate | PauseInfo) -> str:
    """Since when, by whose order, and why something is paused."""
    since = "" if pause.paused_at is None else f" since {iso(int(pause.paused_at))}"
    until = "" if pause.paused_until is None else f" until {iso(int(pause.paused_until))}"
    who = "" if pause.paused_by is None else f" by {one_line(pause.paused_by)}"
    reason = "" if pause.reason is None else f" ({one_line(pause.reason)})"
    return f"{since}{until}{who}{reason}"


def process_problems(status: StatusAnswer) -> Iterator[str]:
    """Problems of actors, pools and services."""
    for process in (*(status.actors or ()), *(status.pools or ()), *(status.services or ())):
        if process.state != "running":
            yield f"{one_line(process.name)} is {one_line(process.state)}{_restarts(process)}"
        elif process.restarts and process.uptime_s is not None and process.uptime_s < _YOUNG_S:
            yield f"{one_line(process.name)} was restarted {duration(process.uptime_s)} ago{_restarts(process)}"


def live_problems(status: StatusAnswer) -> Iterator[Problem]:
    """Workers first: a stopped or hanging one explains the rest."""
    yield from (found for worker in status.workers or () if (found := trouble_of(worker)) is not None)
    yield from map(_of_incident, status.incidents or ())


def trouble_of(worker: Worker) -> Problem | None:
    """Why *worker* does nothing; None: it works."""
    who = f"worker {one_line(worker.name)} (pid {worker.pid})"
    quiet = "" if worker.quiet_s is None else f" for {duration(worker.quiet_s)}"
    holds = f"{worker.held} job{'' if worker.held == 1 else 's'}"
    if worker.condition == "stopped":
        text = (
            f"{who} is frozen: its process is stopped, by SIGSTOP, Ctrl-Z or a debugger, and has said nothing{quiet}; "
            f"it holds {holds}"
        )
        killed = "Else it is killed when its leases are over, and its jobs are tried again."
        return Problem(text, "A worker is frozen", (), advice=(f"kill -CONT {worker.pid}", killed), page="/workers")
    if worker.condition == "blocked":
        first = str(UUID(bytes=worker.running[0])) if worker.running else "ID"
        called = cut(", ".join(f"{number} {one_line(name)}" for name, number in worker.calls.items()), _NAMES)
        text = (
            f"{who} hangs: a handler blocks its event loop, or holds the interpreter; it has not answered{quiet}. "
            f"Called there: {called or 'nothing'}"
        )
        limits = "timeout_s or stall_s in the handler ends the next one that hangs."
        page = f"/jobs/{first}" if worker.running else "/workers"
        return Problem(text, "A worker hangs", (), advice=(f"pulse ctl jobs stack {first}", limits), page=page)
    if worker.silent:
        text = f"{who} has let a lease pass without a word: it is stopped or hangs; it holds {holds}"
        killed = "It is killed when it does not answer, and its jobs are tried again."
        return Problem(text, "A worker is silent", (), advice=(killed,), page="/workers")
    return None


def _of_incident(incident: Incident) -> Problem:
    title, page = _CHECKS.get(incident.check, ("", ""))
    return Problem(incident.text, title, tuple(incident.details), advice=tuple(incident.advice), page=page)


def _restarts(process: Process) -> str:
    return f" ({count(process.restarts, 'restart')} so far)" if process.restarts else ""
