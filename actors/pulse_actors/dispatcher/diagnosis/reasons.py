"""What a reason is, what is known of a job that does not run, and words that all reasons share. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from pulse.common.text import ago, cut, iso, one_line
from pulse_actors.dispatcher.workers.health import Condition

_ERROR_COLUMNS: Final = 200


@dataclass(frozen=True, slots=True)
class Cause:
    """
    One thing that is in the way.

    Attributes:
        code: For programs.
        text: For people, a sentence or two.
        advice: What to do, or what to look at; '': wait.
        details: The values in the text.
    """

    code: str
    text: str
    advice: str = ""
    details: Mapping[str, object] = field(default_factory=dict[str, object])


@dataclass(frozen=True, slots=True)
class Candidate:
    """
    A worker that serves the topic of a job.

    Attributes:
        is_able: It has a handler of the job's name.
        held: Names of what it holds.
        stopped: Why it gets no more jobs: draining, hung, silent or busy; None: it does.
    """

    name: str
    names: frozenset[str]
    is_able: bool
    capacity: int
    held: tuple[str, ...] = ()
    stopped: str | None = None


@dataclass(frozen=True, slots=True)
class Holder:
    """
    The worker that has a job, as this dispatcher knows it.

    Attributes:
        heard_ago_s: None: it has not been heard of yet.
        is_connected: False: its process lives, and is not connected now.
        condition: Why it says nothing, if it does not.
        quiet_s: For how long it has said nothing itself.
        calls: The handlers that it has called, names.
        started: Whether its handler was called; None: it is not in the book.
        waiting: How many others it holds that are not started.
        timeout_s: The longest time that its handler may take; None: any.
        stall_s: Without progress; None: any.
        progress_ago_s: When it last told progress; None: it has not.
    """

    heard_ago_s: float | None
    is_connected: bool = True
    condition: Condition = Condition.WELL
    quiet_s: float = 0.0
    calls: tuple[str, ...] = ()
    started: bool | None = None
    waiting: int = 0
    timeout_s: float | None = None
    stall_s: float | None = None
    progress_ago_s: float | None = None


@dataclass(frozen=True, slots=True)
class JobFacts:
    """
    What a dispatcher knows by itself of a job.

    Attributes:
        host: Its own.
        poll_s: How soon something that is due is found.
        candidates: Workers connected here that serve the job's topic.
        topics: All that are served here.
        holder: Who has it; None: nobody who is known here.
        is_stopping: This dispatcher hands out nothing more.
        is_unreadable: Claims of the topic fail, since the database cannot read a job.
        earlier: The worker that may run an earlier attempt yet.
        is_ageing: Waiting counts in the order of the topic.
        slow: What slows the whole database down: a sentence, and what to do about it.
    """

    host: str
    poll_s: float
    candidates: Sequence[Candidate] = ()
    topics: Sequence[str] = ()
    holder: Holder | None = None
    is_stopping: bool = False
    is_unreadable: bool = False
    earlier: str | None = None
    is_ageing: bool = False
    slow: tuple[str, str] | None = None


def moment(moment_s: float, now_s: float) -> str:
    """A time, exact and relative."""
    return f"{iso(int(moment_s))} ({ago(moment_s, now_s)})"


def short(text: str | None) -> str:
    """What others wrote, on one line that is not too long."""
    return cut(one_line(text or ""), _ERROR_COLUMNS)


def job_id(identity: bytes) -> str:
    """An id as people copy it."""
    return str(UUID(bytes=identity))
