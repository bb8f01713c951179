"""A reason why a job does not run, the facts for it, and words that reasons share. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from pulse.common.text import ago, cut, headline, iso, one_line
from pulse_actors.dispatcher.workers.health import Condition

_ERROR_COLUMNS: Final = 200


@dataclass(frozen=True, slots=True)
class Cause:
    """
    One reason why a job does not run.

    Attributes:
        code: For programs.
        text: For people, a sentence or two.
        advice: What to do or to look at; '': wait.
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
        capacity: How many jobs it holds at most, with those that are sent ahead.
        places: How many it runs at once.
        held: How many it holds.
        started: How many of these have started.
        calls: Names of the handlers that it runs: one for each call.
        stopped: Why it starts no more jobs: stopped, draining, hung, silent or busy; None: it does.
    """

    name: str
    names: frozenset[str]
    is_able: bool
    capacity: int
    places: int
    held: int = 0
    started: int = 0
    calls: tuple[str, ...] = ()
    stopped: str | None = None


@dataclass(frozen=True, slots=True)
class Holder:
    """
    The worker that holds a job, as this dispatcher knows it.

    Attributes:
        heard_ago_s: Seconds since its last frame; None: it has sent none yet.
        is_connected: False: its process lives, but is not connected now.
        condition: Why it is silent, if it is.
        quiet_s: For how long it has sent nothing itself.
        left_s: How long it may still be silent before it is killed; None: this server cannot kill it.
        calls: Names of the handlers that it has called.
        started: Whether the handler was called; None: unknown.
        waiting: How many other jobs it holds that have not started.
        timeout_s: The handler's longest time; None: no limit.
        stall_s: Longest time without progress; None: no limit.
        progress_ago_s: Seconds since it reported progress; None: it has not.
    """

    heard_ago_s: float | None
    is_connected: bool = True
    condition: Condition = Condition.WELL
    quiet_s: float = 0.0
    left_s: float | None = None
    calls: tuple[str, ...] = ()
    started: bool | None = None
    waiting: int = 0
    timeout_s: float | None = None
    stall_s: float | None = None
    progress_ago_s: float | None = None


@dataclass(frozen=True, slots=True)
class JobFacts:
    """
    What a dispatcher knows of a job without the database.

    Attributes:
        host: This host.
        poll_s: How soon due jobs are found.
        candidates: Workers connected here that serve the job's topic.
        topics: All topics that are served here.
        holder: The worker that has it; None: none that is known here.
        is_stopping: Whether this dispatcher hands out no more jobs.
        is_unreadable: Whether claims of the topic fail, since the database cannot read a job.
        earlier: The worker that may still run an earlier attempt.
        is_ageing: Whether waiting counts in the order of the topic.
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
    """Foreign text, on one line of bounded length."""
    return cut(one_line(text or ""), _ERROR_COLUMNS)


def short_error(error: str | None) -> str:
    """The line of an error that says what happened, of bounded length."""
    return short(headline(error or ""))


def job_id(identity: bytes) -> str:
    """An id as people copy it."""
    return str(UUID(bytes=identity))
