"""Parts of a job for people, on the command line and on the dashboard: its JSON, and how its attempts ended. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from pulse.common.text import ago, iso, printable
from pulse.job import TERMINAL, handler_process, is_endless, keeps_unique_key
from pulse.protocol.answers import AttemptInfo, JobInfo
from pulse.protocol.schedules import ScheduleInfo

_INDENT: Final = 2


def pretty(text: str, width: int | None = None) -> str:
    """JSON *text* for people: on one line when it fits into *width* columns, else indented."""
    line = msgspec.json.format(text, indent=0)
    if width is None or len(line) <= width:
        return line
    return msgspec.json.format(text, indent=_INDENT)


def outcome_of(attempt: AttemptInfo) -> str:
    """How an attempt ended, with the signal or exit code of a worker that died."""
    if attempt.exit_code is None:
        return attempt.outcome
    what = f"exit code {attempt.exit_code}" if attempt.exit_code >= 0 else _signal_name(-attempt.exit_code)
    return f"{attempt.outcome} ({what})"


def where(identity: str, hosts: Mapping[str, str] = MappingProxyType({})) -> str:
    """A worker's identity for people: its name, host and process; *hosts*: names of hosts by id."""
    process = handler_process(identity, hosts)
    return printable(identity if process is None else f"{process.worker} on {process.host}, pid {process.pid}")


def held_back(job: JobInfo, now_s: float) -> str | None:
    """What *job* has to wait for before it is due, for a signal with the time limit; None: for nothing."""
    text, due_s = job.held_back, job.next_run_at or 0.0
    if text is None or job.waiting_on:
        return text
    if due_s <= now_s:
        return None
    return text if is_endless(due_s, now_s) else f"{text}, until {iso(int(due_s))} ({ago(due_s, now_s)})"


def unique_text(job: JobInfo) -> str:
    """How long no other job gets the unique key of *job*."""
    if job.status in TERMINAL or not keeps_unique_key(job.unique_until, job.attempts):
        return "given away"
    return f"until it {job.unique_until}s"


def key_words(schedule: ScheduleInfo) -> str:
    """What the unique key of *schedule* does."""
    return f"until a job {schedule.unique_until or 'end'}s, else {schedule.on_conflict or 'skip'}"


def _signal_name(number: int) -> str:
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
