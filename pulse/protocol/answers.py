"""
The body of each ``ok`` frame; the longest one is in ``stats``.

The dispatcher and the supervisor answer with dicts, which a test compares with these Structs; the SDK's records, the
command line and the dashboard read answers as these. Ids are 16 bytes, times Unix seconds; args, results, progress and
checkpoints are JSON text, None if it is too long for a frame. Nearly every field may be missing: servers of other
versions send more, or fewer. JSON output is not made from these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeVar, cast

import msgspec
from msgspec import Struct

from pulse.common.invalid_field import invalid_field
from pulse.common.json_text import learn
from pulse.common.text import count
from pulse.errors import ProtocolError
from pulse.protocol.fields import Id
from pulse.protocol.schedules import ScheduleInfo
from pulse.protocol.stats import JobCounts, LimitStats
from pulse.protocol.workflows import RelatedJobInfo, SignalInfo

KindT = TypeVar("KindT", bound=Struct)


class AttemptInfo(Struct, frozen=True):
    """A row of pulse.attempts."""

    attempt: int = 0
    outcome: str = ""
    worker: str | None = None
    started_at: float | None = None
    ended_at: float | None = None
    error: str | None = None
    exit_code: int | None = None
    cpu_s: float | None = None
    peak_rss_bytes: int | None = None
    stack: str | None = None
    progress: str | None = None
    job_id: Id | None = None


class Stack(Struct, frozen=True):
    """
    The stacks of a running job's process.

    Attributes:
        worker: Identity of the worker that holds the job, as the dispatcher sees it; ``pid`` is its process.
        stack: The stacks of all threads of that process, as faulthandler prints them.
    """

    worker: str
    pid: int
    attempt: int
    stack: str


class ReasonInfo(Struct, frozen=True):
    """Something that keeps a job from running, and what to do about it."""

    code: str
    text: str
    advice: str = ""
    details: dict[str, object] = {}


class WhyAnswer(Struct, frozen=True):
    """The answer to jobs.why."""

    id: Id
    name: str
    topic: str
    status: str
    reasons: list[ReasonInfo]


HELD_S: Final = 253402128000.0  # 9999-12-30: due when an earlier job of its schedule has ended


class JobInfo(Struct, frozen=True):
    """A row of pulse.jobs; ``omitted``: None since it is too long, or cannot be read; ``hosts``: names by id."""

    id: Id
    name: str = ""
    topic: str = ""
    status: str = ""
    priority: int = 0
    attempts: int = 0
    uncharged: int = 0
    max_attempts: int = 0
    crashes: int = 0
    args: str | None = None
    concealed: bool = False  # args are hidden from the reader
    omitted: list[str] = []
    result: str | None = None
    progress: str | None = None
    last_error: str | None = None
    submitted_at: float | None = None
    next_run_at: float | None = None
    started_at: float | None = None
    completed_at: float | None = None
    occurrence: float | None = None
    expires_at: float | None = None
    lease_until: float | None = None
    timeout_s: float | None = None
    locked_by: str | None = None
    ran_by: str | None = None
    schedule_id: Id | None = None
    group_key: str | None = None
    unique_key: str | None = None
    unique_until: str | None = None
    waiting_on: int | None = None  # jobs that have not ended, of those it was to wait for
    parents: list[RelatedJobInfo] = []
    parents_total: int = 0
    children: list[RelatedJobInfo] = []
    children_total: int = 0
    awaited_signal: str | None = None  # its handler waits for a signal of that name, at most until it is due
    signals: list[SignalInfo] = []
    signals_total: int = 0
    history: list[AttemptInfo] = []
    hosts: dict[str, str] = {}

    @property
    def tries(self) -> str:
        """Charged tries, and how many are allowed."""
        return f"{self.attempts - self.uncharged}/{self.max_attempts}"

    @property
    def held_back(self) -> str | None:
        """What it has to wait for before it is due, whatever its time; None: for nothing."""
        if self.status not in {"PENDING", "RETRYING"}:
            return None
        if self.waiting_on:
            return f"waits for {count(self.waiting_on, 'other job')} to end"
        if self.awaited_signal is not None:
            return f'waits for the signal "{self.awaited_signal}"'
        return "held back behind an earlier job of its schedule" if self.is_held else None

    @property
    def is_held(self) -> bool:
        """Whether it is due when an earlier job of its schedule has ended."""
        return self.next_run_at is not None and self.next_run_at >= HELD_S


class JobPageAnswer(Struct, frozen=True):
    """Some jobs, the cursor after them, and how far the search got."""

    jobs: list[JobInfo]
    next: str | None = None
    reached: float | None = None


class ChangedAnswer(Struct, frozen=True):
    """What a cancel, retry, delete or change did; ``before``: former topics, priorities; ``completed``: run again."""

    done: list[Id]
    refused: list[tuple[Id, str]]
    before: list[tuple[Id, str, int]] = []
    completed: list[Id] = []


class Action(Struct, frozen=True):
    """An entry of the audit; ``uid`` and ``pid`` are of the process that sent the request."""

    id: int = 0
    at: float = 0.0
    action: str = ""
    uid: int | None = None
    pid: int | None = None
    user_name: str | None = None
    behalf: str | None = None
    host: str | None = None
    topic: str | None = None
    schedule_id: Id | None = None
    job_id: Id | None = None
    jobs: int | None = None
    detail: str = "{}"


class ActionPage(Struct, frozen=True):
    """Some audit entries, and the cursor after them."""

    audit: list[Action]
    next: str | None = None


class Identity(Struct, frozen=True):
    """The id of what was made, or deleted."""

    id: Id


class PauseInfo(Struct, frozen=True):
    """A pause of a topic: reason, begin, end and operator."""

    reason: str | None = None
    paused_at: float | None = None
    paused_by: str | None = None
    paused_until: float | None = None


class Gate(Struct, frozen=True):
    """What is paused; ``topics_omitted``: and so many more; ``as_of``: when this was known, if not now."""

    paused: bool = False
    reason: str | None = None
    paused_at: float | None = None
    paused_by: str | None = None
    paused_until: float | None = None
    topics: dict[str, PauseInfo] = {}
    topics_omitted: int = 0
    as_of: float | None = None


class Option(Struct, frozen=True):
    """An option's value in force, and where it is set: for the topic, for the server, or nowhere."""

    value: int | float | str | bool | None = None
    source: str | None = None


class Retention(Struct, frozen=True):
    """How far the deletion of old jobs has got, in all topics."""

    stepped_at: float | None = None
    began_at: float | None = None
    ended_at: float | None = None
    walked: int = 0
    gone: int = 0
    last_began_at: float | None = None
    last_walked: int = 0
    last_gone: int = 0
    total_gone: int = 0


class Topic(Struct, frozen=True):
    """The policy of a topic; '' is the server. ``handlers``: options that its handlers declare, which win."""

    topic: str = ""
    policy: dict[str, Option] = {}
    handlers: list[dict[str, int | float | str]] = []
    retention: Retention | None = None


class TopicPage(Struct, frozen=True):
    """The policies of some topics, and the cursor after them."""

    topics: list[dict[str, int | float | str | bool | None]]
    next: str | None = None


class Worker(Struct, frozen=True):
    """A handler process; ``running``: jobs that it holds, ``started``: how many have, ``taken``: in how many calls."""

    identity: str = ""
    name: str = ""
    pid: int | None = None
    host: str | None = None
    topics: list[str] = []
    names: list[str] = []
    capacity: int = 0
    concurrency: int = 0
    running: list[Id] = []
    started: int = 0
    draining: bool = False
    silent: bool = False
    recovery: str = ""
    condition: str = ""
    quiet_s: float | None = None
    calls: dict[str, int] = {}
    cpu_s: float | None = None
    rss_bytes: int | None = None
    uptime_s: float | None = None
    taken: int | None = None

    @property
    def held(self) -> int:
        """How many jobs it holds."""
        return len(self.running)


class WorkerList(Struct, frozen=True):
    """The answer to workers.list."""

    workers: list[Worker] = []


class Process(Struct, frozen=True):
    """A child of the supervisor: an actor or a pool."""

    name: str = ""
    pid: int | None = None
    state: str = ""
    restarts: int = 0
    uptime_s: float | None = None


class SupervisorInfo(Struct, frozen=True):
    """The supervisor itself."""

    pid: int | None = None
    uptime_s: float | None = None
    version: str = ""


class Database(Struct, frozen=True):
    """The database, as the actor sees it that answered first."""

    ok: bool = False
    dsn: str = ""
    schema: str = "pulse"
    server_version: str | None = None
    error: str | None = None


class FindingInfo(Struct, frozen=True):
    """Something wrong: the check of the doctor, ``wrong`` or ``warning``, its words, and what to do, a line each."""

    id: str = ""
    severity: str = "warning"
    text: str = ""
    details: list[str] = []
    do: str = ""


class StatusAnswer(Struct, frozen=True):
    """Everything at a glance; None: unknown."""

    supervisor: SupervisorInfo | None = None
    actors: list[Process] | None = None
    pools: list[Process] | None = None
    services: list[Process] | None = None
    database: Database | None = None
    gate: Gate | None = None
    workers: list[Worker] | None = None
    jobs: dict[str, int] | None = None
    jobs_exact: bool | None = None
    waiting: JobCounts | None = None
    findings: list[FindingInfo] | None = None
    limits: list[LimitStats] | None = None


class UnhandledName(NamedTuple):
    """A name that no connected worker has a handler for, the topic, and handlers of that topic with a similar name."""

    name: str
    topic: str
    similar: list[str]


class Submitted(Struct, frozen=True):
    """The ids of what was submitted, in the order of the jobs; ``unhandled``: which names will wait for a worker."""

    ids: list[Id]
    unhandled: list[UnhandledName] = []


class OneJob(Struct, frozen=True):
    """A job with its history."""

    job: JobInfo


class OneSchedule(Struct, frozen=True):
    """A schedule as it is now."""

    schedule: ScheduleInfo


class OneTopic(Struct, frozen=True):
    """The policy of a topic as it is now."""

    topic: Topic


class DeclaredAnswer(Struct, frozen=True):
    """The result of declaring schedules: keys of those changed, and of those no longer declared."""

    ids: list[Id]
    changed: list[str]
    not_declared: list[str]


class Restarted(Struct, frozen=True):
    """The new process of an actor."""

    name: str
    pid: int


class LogPage(Struct, frozen=True):
    """Lines of the log, each a JSON object; ``lost``: how many before them are not kept any more."""

    lines: list[str] = []
    next: int = 0
    more: bool = False
    lost: int = 0


class Done(Struct, frozen=True):
    """An answer without content."""


def read(kind: type[KindT], body: object) -> KindT:
    """
    *body* as *kind*.

    Raises:
        ProtocolError: It does not fit.
    """
    learn(kind)
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"the answer is not understood: {invalid_field(kind, body, error)}") from None


def part(body: Mapping[str, object], key: str) -> Mapping[str, object]:
    """
    The object under *key* of an answer.

    Raises:
        ProtocolError: There is none.
    """
    value = body.get(key)
    if not isinstance(value, dict):
        raise ProtocolError(f"the answer has no object {key!r}")
    return cast("dict[str, object]", value)
