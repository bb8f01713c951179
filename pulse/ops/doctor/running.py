"""Verdicts on the running system, from its answers to ``status``, and the list of all that is wrong in it. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final
from uuid import UUID

from pulse.common.text import count, cut, duration, one_line
from pulse.common.version import VERSION
from pulse.ops.doctor.finding import MAX_SHOWN, Finding, State, bad_of, list_some, verdict_of
from pulse.ops.worker_text import STATES, places_of
from pulse.protocol.answers import Database, FindingInfo, Process, StatusAnswer, Worker

_NAMES: Final = 60  # columns of the handlers that are named
_YOUNG_S: Final = 60.0  # a process that restarted within it may still be in trouble
ARRIVE_S: Final = 15.0  # after the dispatcher's start: its workers may still be on their way
_KILLED: Final = "Else it is killed when its leases are over, and its jobs are tried again."
AWAY: Final = (
    "Look whether the server runs and lets you in: psql with the same DSN; PULSE_DSN is what counts.",
    "pulse goes on by itself when it is back; running jobs are not lost.",
)


def findings(status: StatusAnswer, silent: Mapping[str, str]) -> list[Finding]:
    """
    All that is wrong in a running system, and its warnings; the worst first.

    Args:
        status: What supervisor and dispatcher answered, together.
        silent: Which of them did not answer, and why.
    """
    told = list(map(finding_of, status.findings or ()))
    known = {one.check for one in told}
    of_database = () if "database" in known else database(status.database)
    return bad_of([processes(status, silent), *of_database, *told])


def finding_of(told: FindingInfo) -> Finding:
    """A finding that the dispatcher has sent."""
    advice = told.do.split("\n") if told.do else []
    return Finding(told.id, State(told.severity), told.text, details=tuple(told.details), advice=tuple(advice))


def processes(status: StatusAnswer, silent: Mapping[str, str]) -> Finding:
    """Supervisor, actors, pools and services."""
    starts = starting(status)
    wrong = [f"the {who} does not answer: {one_line(why)}" for who, why in silent.items() if who not in starts]
    warnings: list[str] = []
    for process in (*(status.actors or ()), *(status.pools or ()), *(status.services or ())):
        restarts = f" ({count(process.restarts, 'restart')} so far)" if process.restarts else ""
        if process.name in starts:
            continue
        if process.state != "running":
            said = f"{one_line(process.name)} is {one_line(process.state)}{restarts}"
            (wrong if process.state == "failed" else warnings).append(said)
        elif _is_young(process):
            warnings.append(f"{one_line(process.name)} was restarted {duration(process.uptime_s or 0)} ago{restarts}")
    supervisor = status.supervisor
    if supervisor is not None and supervisor.version != VERSION:
        warnings.append(f"the server is pulse {one_line(supervisor.version)}, this is {VERSION}")
    known = "nobody answers" if supervisor is None else _at_work(supervisor.pid, starts)
    advice: Sequence[str] = (
        "pulse ctl status",
        "pulse ctl logs",
        "A dispatcher that hangs is restarted within seconds.",
    )
    if len(silent) > 1:  # neither supervisor nor dispatcher
        advice = ("pulse-supervisor starts a server.",)
    return verdict_of("processes", wrong, warnings, known, *advice)


def starting(status: StatusAnswer) -> Sequence[str]:
    """
    The processes that start for the first time: an ordinary start is no incident, and the supervisor limits its time.

    A process that died, and starts again, is not among them.
    """
    every = (*(status.actors or ()), *(status.pools or ()), *(status.services or ()))
    return [one.name for one in every if one.state == "starting" and not one.restarts]


def dispatcher_up_s(status: StatusAnswer) -> float:
    """For how long the dispatcher has been there; infinite where nobody knows."""
    found = (one.uptime_s for one in status.actors or () if one.name == "dispatcher" and one.uptime_s is not None)
    return next(found, math.inf)


def _at_work(supervisor_pid: int | None, starts: Sequence[str]) -> str:
    if starts:
        return f"the supervisor (pid {supervisor_pid}) is starting {', '.join(map(one_line, starts))}"
    return f"the supervisor (pid {supervisor_pid}), its actors and pools are at work"


def database(seen: Database | None) -> Iterator[Finding]:
    """That the database is away, if it is."""
    if seen is not None and not seen.ok:
        text = f"the database is away: {one_line(seen.error or 'no reason was given')}"
        yield Finding("database", State.WRONG, text, advice=AWAY)


def workers(connected: Sequence[Worker], up_s: float) -> Finding:
    """Whether workers are there, and can work; *up_s*: how long they have had to connect."""
    troubled = [found for worker in connected if (found := _trouble_of(worker)) is not None]
    warnings = [] if connected or up_s < ARRIVE_S else ["no worker is connected: no job is started"]
    if connected and all(worker.draining for worker in connected):
        warnings.append("all workers drain: they take no more jobs")
    return verdict_of(
        "workers",
        list(list_some([text for text, _ in troubled])),
        warnings,
        f"{len(connected)} connected, {places_of(connected).text}",
        *dict.fromkeys(line for _, advice in troubled[:MAX_SHOWN] for line in advice),
        *(["More of them: pulse worker MODULE:APP"] if warnings else []),
    )


def _trouble_of(worker: Worker) -> tuple[str, Sequence[str]] | None:
    """Why *worker* does nothing, and what to do; None: it works."""
    who = f"worker {one_line(worker.name)} (pid {worker.pid})"
    quiet = "" if worker.quiet_s is None else f" for {duration(worker.quiet_s)}"
    holds = f"it holds {count(worker.held, 'job')}"
    if worker.condition == "stopped":
        stopped = f"{who} is {STATES['stopped']}, and has said nothing{quiet}"
        return f"{stopped}; {holds}", (f"kill -CONT {worker.pid}", *([_KILLED] if worker.held else []))
    if worker.condition == "blocked":
        first = str(UUID(bytes=worker.running[0])) if worker.running else "ID"
        called = cut(", ".join(f"{number} {one_line(name)}" for name, number in worker.calls.items()), _NAMES)
        hangs = f"{who} hangs: a handler blocks its event loop, or holds the interpreter; it has not answered{quiet}"
        limits = "timeout_s or stall_s in the handler ends the next one that hangs."
        return f"{hangs}. Called there: {called or 'nothing'}", (f"pulse ctl jobs stack {first}", limits)
    if worker.silent:
        text = f"{who} has let a lease pass without a word: it is stopped or hangs; {holds}"
        return text, ("It is killed when it does not answer, and its jobs are tried again.",)
    return None


def _is_young(process: Process) -> bool:
    return bool(process.restarts) and process.uptime_s is not None and process.uptime_s < _YOUNG_S
