"""
The server's answers as typed records, for showing them to people.

Everything but an id may be missing: a server of another version says more, or less, and is shown all the same. JSON
output never goes through here, so that nothing is lost in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar, cast

import msgspec
from msgspec import Struct

from pulse.errors import ProtocolError

__all__ = [
    "Action",
    "ActionPage",
    "Attempt",
    "Changed",
    "Connected",
    "Database",
    "Gate",
    "Incident",
    "Job",
    "JobPage",
    "Option",
    "Pause",
    "Process",
    "Schedule",
    "SchedulePage",
    "Status",
    "Supervisor",
    "Topic",
    "TopicPage",
    "Why",
    "Worker",
    "part",
    "read",
]

KindT = TypeVar("KindT", bound=Struct)


class Attempt(Struct, frozen=True):
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


class Stack(Struct, frozen=True):
    """The answer to jobs.stack."""

    worker: str = ""
    pid: int = 0
    attempt: int = 0
    stack: str = ""


class Reason(Struct, frozen=True):
    """Something that keeps a job from running, and what to do about it."""

    text: str = ""
    advice: str = ""
    code: str = ""


class Why(Struct, frozen=True):
    """The answer to jobs.why."""

    reasons: list[Reason] = []


class Job(Struct, frozen=True):
    """A row of pulse.jobs; args, result and progress are JSON text."""

    id: bytes
    name: str = ""
    topic: str = ""
    status: str = ""
    priority: int = 0
    attempts: int = 0
    uncharged: int = 0
    max_attempts: int = 0
    crashes: int = 0
    args: str = "{}"
    concealed: bool = False  # args and the like are not for who asks
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
    schedule_id: bytes | None = None
    history: list[Attempt] = []

    @property
    def tries(self) -> str:
        """The tries that count, of those allowed."""
        return f"{self.attempts - self.uncharged}/{self.max_attempts}"


class JobPage(Struct, frozen=True):
    """Some jobs, the cursor behind them, and how far was looked for them."""

    jobs: list[Job]
    next: str | None = None
    reached: float | None = None


class Changed(Struct, frozen=True):
    """What a cancel, retry, delete or change did; ``before``: topic and priority of those that were moved."""

    done: list[bytes]
    refused: list[tuple[bytes, str]] = []
    before: list[tuple[bytes, str, int]] = []


class Action(Struct, frozen=True):
    """Something that an operator did."""

    at: float = 0.0
    action: str = ""
    uid: int | None = None
    user_name: str | None = None
    behalf: str | None = None
    host: str | None = None
    topic: str | None = None
    schedule_id: bytes | None = None
    job_id: bytes | None = None
    jobs: int | None = None
    detail: str = "{}"


class ActionPage(Struct, frozen=True):
    """Some of what operators did, and the cursor behind it."""

    audit: list[Action]
    next: str | None = None


class Schedule(Struct, frozen=True):
    """A row of pulse.schedules."""

    id: bytes
    name: str = ""
    kind: str = ""
    topic: str | None = None
    args: str = "{}"
    concealed: bool = False  # args and the like are not for who asks
    cron: str | None = None
    timezone: str | None = None
    every_s: float | None = None
    run_at: float | None = None
    next_run_at: float | None = None
    last_run_at: float | None = None
    created_at: float | None = None
    paused: bool = False
    priority: int = 0
    max_attempts: int | None = None
    timeout_s: float | None = None
    due_at: float | None = None
    starts_at: float | None = None
    ends_at: float | None = None
    jitter_s: float = 0.0
    catch_up: str = "latest"
    overlap: str = "allow"
    key: str | None = None
    declared_by: str | None = None
    undeclared_at: float | None = None
    waiting: int = 0
    error: str | None = None


class Identity(Struct, frozen=True):
    """The id of what was made."""

    id: bytes


class SchedulePreview(Struct, frozen=True):
    """When a schedule occurs next."""

    times: list[float]
    timezone: str = "UTC"


class SchedulePage(Struct, frozen=True):
    """Some schedules, and the cursor behind them."""

    schedules: list[Schedule]
    next: str | None = None


class Pause(Struct, frozen=True):
    """Why, since when, by whom and until when a topic is paused."""

    reason: str | None = None
    paused_at: float | None = None
    paused_by: str | None = None
    paused_until: float | None = None


class Gate(Struct, frozen=True):
    """What is paused; ``topics_omitted``: and so many more; ``as_of``: when that was known, where it is not now."""

    paused: bool = False
    reason: str | None = None
    paused_at: float | None = None
    paused_by: str | None = None
    paused_until: float | None = None
    topics: dict[str, Pause] = {}
    topics_omitted: int = 0
    as_of: float | None = None


class Option(Struct, frozen=True):
    """A value of a policy that counts, and whose it is: the topic's, the server's, or nobody's."""

    value: int | float | str | None = None
    source: str | None = None


class Retention(Struct, frozen=True):
    """How far the deleting of old jobs has got, in all topics."""

    stepped_at: float | None = None
    ended_at: float | None = None
    walked: int = 0
    gone: int = 0
    last_gone: int = 0
    total_gone: int = 0


class Topic(Struct, frozen=True):
    """The policy of a topic; '' is the server. ``handlers``: what handlers of it declare, which goes before."""

    topic: str = ""
    policy: dict[str, Option] = {}
    handlers: list[dict[str, int | float | str]] = []
    retention: Retention | None = None


class TopicPage(Struct, frozen=True):
    """What is set for some topics, and the cursor behind them."""

    topics: list[dict[str, int | float | str | None]]
    next: str | None = None


class Worker(Struct, frozen=True):
    """A handler process; ``running``: ids of what it holds; ``calls``: started; ``recovery``: who sees its death."""

    identity: str = ""
    name: str = ""
    pid: int | None = None
    host: str | None = None
    topics: list[str] = []
    names: list[str] = []
    capacity: int = 0
    running: list[bytes] = []
    draining: bool = False
    silent: bool = False
    recovery: str = ""
    condition: str = ""
    quiet_s: float | None = None
    calls: dict[str, int] = {}

    @property
    def held(self) -> int:
        """How many jobs it holds."""
        return len(self.running)


class Connected(Struct, frozen=True):
    """The answer to workers.list."""

    workers: list[Worker] = []


class Process(Struct, frozen=True):
    """A child of the supervisor: an actor or a pool."""

    name: str = ""
    pid: int | None = None
    state: str = ""
    restarts: int = 0
    uptime_s: float | None = None


class Supervisor(Struct, frozen=True):
    """The supervisor itself."""

    pid: int | None = None
    uptime_s: float | None = None
    version: str = ""


class Database(Struct, frozen=True):
    """The database, as the actor sees it that answered first."""

    ok: bool = False
    dsn: str = ""
    server_version: str | None = None
    error: str | None = None


class Incident(Struct, frozen=True):
    """Something that is wrong now, in the doctor's words."""

    check: str = ""
    state: str = ""
    text: str = ""
    details: list[str] = []
    advice: list[str] = []


class Status(Struct, frozen=True):
    """Everything at a glance; None: nobody told."""

    supervisor: Supervisor | None = None
    actors: list[Process] | None = None
    pools: list[Process] | None = None
    services: list[Process] | None = None
    database: Database | None = None
    gate: Gate | None = None
    workers: list[Worker] | None = None
    jobs: dict[str, int] | None = None
    jobs_exact: bool | None = None
    incidents: list[Incident] | None = None


def read(kind: type[KindT], body: object) -> KindT:
    """
    *body* as *kind*.

    Raises:
        ProtocolError: It is something else.

    """
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"the answer is not understood: {error}") from None


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
