"""What a row says of a job: for how long it runs or waits, how far it is, and which worker has it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec
from markupsafe import Markup

from pulse.common.text import duration
from pulse.protocol.answers import JobInfo, Worker
from pulse.ui.view.formatting import foreign, lasting, stamp

WAITING: Final = frozenset({"PENDING", "RETRYING"})
_IDENTITY: Final = re.compile(r"(?P<host>[^/]+)/[^/]+/[^/]+/(?P<pid>\d+)\.\d+/(?P<name>.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class JobProgress:
    """How far a handler says that it is; ``share``: from 0 to 1, ``text``: its words."""

    share: float
    text: str


def when(job: JobInfo, now_s: float) -> Markup:
    """For how long *job* runs or waits, or when it will run; of one that has ended how long it took, and when."""
    if job.status == "RUNNING":
        return lasting(job.started_at, now_s)
    if job.status in WAITING:
        is_due = (job.next_run_at or 0) <= now_s
        return (lasting if is_due else stamp)(job.next_run_at, now_s)
    took = took_s(job.started_at, job.completed_at)
    words = "" if took is None or job.status != "COMPLETED" else f"took {duration(took)}, "
    return Markup("{}{}").format(words, stamp(job.completed_at, now_s))


def took_s(began_s: float | None, ended_s: float | None) -> float | None:
    """How long something took; None: not known."""
    return None if began_s is None or ended_s is None else max(0.0, ended_s - began_s)


def progress_of(text: str | None) -> JobProgress | None:
    """The progress that a handler has told; None: it has told none, or nothing that is a share."""
    try:
        told = msgspec.json.decode(text or "null")
    except (msgspec.DecodeError, RecursionError):
        return None
    value = told.get("value") if isinstance(told, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        return None
    return JobProgress(float(value), foreign(told.get("text") or "", 80))


def worker_name(identity: str | None, workers: Iterable[Worker] | None) -> str:
    """A worker by name, pid and host: the host's name where it is connected, else its id."""
    parts = _IDENTITY.fullmatch(identity or "")
    if parts is None:
        return identity or ""
    known = next((one.host for one in workers or () if one.identity == identity), None)
    return f"{parts['name']} (pid {parts['pid']} on {known or parts['host']})"
