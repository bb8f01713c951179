"""What is thought of what a running server tells of itself: workers that say nothing, and incidents. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from pulse.common.text import cut, duration, one_line
from pulse.protocol.answers import Incident, Status, Worker

__all__ = ["Problem", "live_problems", "trouble_of"]

_NAMES: Final = 60  # columns of the handlers that are named
# Check of an incident -> what it is, in the fewest words; the page of the dashboard that shows more.
_CHECKS: Final[Mapping[str, tuple[str, str]]] = {
    "hosts": ("A host is gone", "/workers"),
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
    Something that is not as it should be.

    Attributes:
        text: A sentence that says so.
        title: What it is, in the fewest words; '': the text is short.
        more: Others of the same kind, a sentence each.
        advice: What to do; a command stands alone.
        page: Where the dashboard shows more of it.
    """

    text: str
    title: str = ""
    more: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    page: str = ""


def live_problems(status: Status) -> Iterator[Problem]:
    """Workers first: who is stopped or hangs is what the rest follows from."""
    yield from (found for worker in status.workers or () if (found := trouble_of(worker)) is not None)
    yield from map(_of_incident, status.incidents or ())


def trouble_of(worker: Worker) -> Problem | None:
    """Why *worker* does nothing; None: it does."""
    who = f"worker {one_line(worker.name)} (pid {worker.pid})"
    quiet = "" if worker.quiet_s is None else f" for {duration(worker.quiet_s)}"
    holds = f"{worker.held} job{'' if worker.held == 1 else 's'}"
    if worker.condition == "stopped":
        text = (
            f"{who} is frozen: its process is stopped, by SIGSTOP, Ctrl-Z or a debugger, and has said nothing{quiet}; "
            f"it holds {holds}"
        )
        killed = "Else it is killed when its leases are over, and its jobs are tried again."
        return Problem(text, "A worker is frozen", (), (f"kill -CONT {worker.pid}", killed), "/workers")
    if worker.condition == "blocked":
        first = str(UUID(bytes=worker.running[0])) if worker.running else "ID"
        called = cut(", ".join(f"{number} {one_line(name)}" for name, number in worker.calls.items()), _NAMES)
        text = (
            f"{who} hangs: a handler blocks its event loop, or holds the interpreter; it has not answered{quiet}. "
            f"Called there: {called or 'nothing'}"
        )
        limits = "timeout_s or stall_s in the handler ends the next one that hangs."
        page = f"/jobs/{first}" if worker.running else "/workers"
        return Problem(text, "A worker hangs", (), (f"pulse ctl jobs stack {first}", limits), page)
    if worker.silent:
        text = f"{who} has let a lease pass without a word: it is stopped or hangs; it holds {holds}"
        killed = "It is killed when it does not answer, and its jobs are tried again."
        return Problem(text, "A worker is silent", (), (killed,), "/workers")
    return None


def _of_incident(incident: Incident) -> Problem:
    title, page = _CHECKS.get(incident.check, ("", ""))
    return Problem(incident.text, title, tuple(incident.details), tuple(incident.advice), page)
