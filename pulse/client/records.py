"""The server's answers as Python values: ids as UUID, times as aware datetimes, JSON text as what it stands for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pulse.common import json_text
from pulse.common.json_text import JsonValue
from pulse.errors import ProtocolError, error_from_code
from pulse.job import HistoryEntry, Job, Schedule, Status
from pulse.protocol import PROTOCOL_VERSION, ErrorBody, Frame, Welcome, decode_any, decode_body

__all__ = ["Changed", "JobPage", "Reason", "SchedulePage", "Stack", "Why"]

_ID_BYTES: Final = 16
Columns = Mapping[str, object]
Readers = Mapping[str, Callable[[Any], object]]
RecordT = TypeVar("RecordT")


@dataclass(frozen=True, slots=True)
class JobPage:
    """
    Jobs, newest first; ``next`` is the cursor of the page behind it, None on the last one.

    A page takes a bounded time: where little is found it is short, or empty, and ``next`` goes on behind it.
    """

    jobs: tuple[Job, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class SchedulePage:
    """Schedules, newest first; ``next`` is the cursor of the page behind it, None on the last one."""

    schedules: tuple[Schedule, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class Changed:
    """
    What a cancel, retry, delete or change did.

    Attributes:
        done: The ids that it changed.
        refused: Those that it refused, each with an error's code.
        before: Of a change: the topic and priority that each had before.

    """

    done: tuple[UUID, ...]
    refused: tuple[tuple[UUID, str], ...]
    before: tuple[tuple[UUID, str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Stack:
    """
    Where a running job is.

    Attributes:
        worker: Identity of the worker that holds it, as the dispatcher sees it.
        pid: Of its process.
        attempt: Which attempt of the job it is.
        stack: What every thread of that process is doing, as faulthandler prints it.

    """

    worker: str
    pid: int
    attempt: int
    stack: str


@dataclass(frozen=True, slots=True)
class Reason:
    """
    Something that keeps a job from running.

    Attributes:
        code: One word for it, as the protocol lists them: ``paused``, ``full``, ``back_off``...
        text: The same in plain words.
        advice: What to do about it; '' where there is nothing but to wait.
        details: The values behind the words; times in Unix seconds, ids as text.

    """

    code: str
    text: str
    advice: str
    details: Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True)
class Why:
    """Why a job does not run; of the reasons the first one decides."""

    id: UUID
    name: str
    topic: str
    status: Status
    reasons: tuple[Reason, ...]


def body_of(frame: Frame) -> dict[str, object]:
    """
    The body of an ``ok`` frame.

    Raises:
        RefusedError: It is an ``error`` frame; the class says which.
        ProtocolError: It is neither.

    """
    if frame.kind == "ok":
        return decode_any(frame)
    if frame.kind == "error":
        refusal = decode_body(ErrorBody, frame)
        raise error_from_code(refusal.code, refusal.message)
    raise ProtocolError(f"an answer of kind {frame.kind!r:.80}; ok and error are known")


def welcome_of(frame: Frame) -> Welcome:
    """
    The server's answer to hello.

    Raises:
        RefusedError: The server does not want this peer.
        ProtocolError: It is no welcome, or of another version.

    """
    if frame.kind != "welcome":
        body_of(frame)
        raise ProtocolError("hello was answered with 'ok'; a welcome was expected")
    welcome = decode_body(Welcome, frame)
    if welcome.protocol != PROTOCOL_VERSION:
        message = f"the server speaks version {welcome.protocol} of the protocol, this is version {PROTOCOL_VERSION}"
        raise ProtocolError(message, "unsupported_version")
    return welcome


def ids(body: Columns) -> list[UUID]:
    """The answer to submit."""
    return [_uuid(one) for one in _list(body, "ids")]


def job(body: Columns) -> Job:
    """The answer to jobs.get."""
    return job_of(_map(body.get("job")))


def job_page(body: Columns) -> JobPage:
    """The answer to jobs.list."""
    return JobPage(tuple(job_of(_map(one)) for one in _list(body, "jobs")), _cursor(body))


def schedule(body: Columns) -> Schedule:
    """The answer to schedules.get, create, update, pause and resume."""
    return _record(Schedule, _SCHEDULE_COLUMNS, _map(body.get("schedule")))


def schedule_page(body: Columns) -> SchedulePage:
    """The answer to schedules.list."""
    found = tuple(_record(Schedule, _SCHEDULE_COLUMNS, _map(one)) for one in _list(body, "schedules"))
    return SchedulePage(found, _cursor(body))


def one_id(body: Columns) -> UUID:
    """The answer to schedules.trigger."""
    return _uuid(body.get("id"))


def times(body: Columns) -> list[datetime]:
    """The answer to schedules.preview: in the time zone of the schedule, where this machine knows it."""
    zone = _zone(str(body.get("timezone")))
    return [_time(float(str(one))).astimezone(zone) for one in _list(body, "times")]


def changed(body: Columns) -> Changed:
    """The answer to jobs.cancel, retry, delete and change."""
    refused: list[tuple[UUID, str]] = []
    for pair in _list(body, "refused"):
        job_id, code, *_ = cast("list[object]", pair)
        refused.append((_uuid(job_id), str(code)))
    before: list[tuple[UUID, str, int]] = []
    for row in _list(body, "before") if "before" in body else ():
        job_id, where, priority, *_ = cast("list[object]", row)
        before.append((_uuid(job_id), str(where), int(str(priority))))
    return Changed(tuple(_uuid(one) for one in _list(body, "done")), tuple(refused), tuple(before))


def stack(body: Columns) -> Stack:
    """The answer to jobs.stack."""
    try:
        return Stack(str(body["worker"]), int(str(body["pid"])), int(str(body["attempt"])), str(body["stack"]))
    except (KeyError, ValueError) as error:
        raise ProtocolError(f"the answer is no stack: {error}") from None


def why(body: Columns) -> Why:
    """
    The answer to jobs.why.

    Raises:
        ProtocolError: It is something else.

    """
    try:
        reasons = tuple(map(_reason, cast("list[Mapping[str, object]]", body["reasons"])))
        job_id = UUID(bytes=cast("bytes", body["id"]))
        return Why(job_id, str(body["name"]), str(body["topic"]), Status(str(body["status"])), reasons)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"the answer does not tell why: {error}") from None


def _reason(body: Mapping[str, object]) -> Reason:
    details = plain(cast("Mapping[str, object]", body.get("details", {})))
    return Reason(str(body["code"]), str(body["text"]), str(body.get("advice", "")), details)


def topic(body: Columns) -> dict[str, JsonValue]:
    """The answer to topics.get, set and unset."""
    return plain(_map(body.get("topic")))


def nothing(_body: Columns) -> None:
    """An answer that says no more than ok."""


def plain(body: Columns) -> dict[str, JsonValue]:
    """An answer that is shown as it is: only ids become text."""
    return {key: _plain(value) for key, value in body.items()}


def job_of(columns: Columns) -> Job:
    """
    A job of its columns by name; unknown ones are ignored.

    Raises:
        ProtocolError: Columns are missing or of another kind.

    """
    return _record(Job, _JOB_COLUMNS, columns)


def _record(kind: type[RecordT], readers: Readers, columns: Columns) -> RecordT:
    try:
        return kind(
            **{name: readers[name](value) for name, value in columns.items() if name in readers and value is not None}
        )
    except (TypeError, ValueError, KeyError) as error:
        raise ProtocolError(f"{kind.__name__.lower()}: {error}") from None


def _uuid(value: object) -> UUID:
    if isinstance(value, bytes) and len(value) == _ID_BYTES:
        return UUID(bytes=value)
    if isinstance(value, str):
        return UUID(value)
    raise ProtocolError(f"an id of 16 bytes was expected, not {value!r:.80}")


def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return UTC


def _time(value: float) -> datetime:
    return datetime.fromtimestamp(value, UTC)


def _json(value: object) -> JsonValue:
    return json_text.loads(value) if isinstance(value, str) else cast("JsonValue", value)


def _history(entries: list[Mapping[str, object]]) -> tuple[HistoryEntry, ...]:
    return tuple(_record(HistoryEntry, _HISTORY_COLUMNS, entry) for entry in entries)


def _cursor(body: Columns) -> str | None:
    value = body.get("next")
    return None if value is None else str(value)


def _list(body: Columns, key: str) -> list[object]:
    value = body.get(key)
    if not isinstance(value, list):
        raise ProtocolError(f"the answer has no list {key!r}")
    return cast("list[object]", value)


def _map(value: object) -> Columns:
    if not isinstance(value, dict):
        raise ProtocolError("the answer is not an object")
    return cast("Columns", value)


def _plain(value: object) -> JsonValue:
    match value:
        case bytes():
            return str(UUID(bytes=value)) if len(value) == _ID_BYTES else value.hex()
        case list() | tuple():
            return [_plain(one) for one in cast("list[object]", value)]
        case dict():
            return {str(key): _plain(one) for key, one in cast("dict[object, object]", value).items()}
        case _:
            return cast("JsonValue", value)


_JOB_COLUMNS: Final[Readers] = MappingProxyType(
    {
        "id": _uuid,
        "name": str,
        "topic": str,
        "status": Status,
        "args": _json,
        "result": _json,
        "progress": _json,
        "last_error": str,
        "priority": int,
        "attempts": int,
        "uncharged": int,
        "max_attempts": int,
        "crashes": int,
        "timeout_s": float,
        "submitted_at": _time,
        "next_run_at": _time,
        "started_at": _time,
        "completed_at": _time,
        "occurrence": _time,
        "expires_at": _time,
        "lease_until": _time,
        "locked_by": str,
        "schedule_id": _uuid,
        "history": _history,
        "concealed": bool,
    }
)
_HISTORY_COLUMNS: Final[Readers] = MappingProxyType(
    {
        "attempt": int,
        "outcome": str,
        "worker": str,
        "started_at": _time,
        "ended_at": _time,
        "error": str,
        "exit_code": int,
        "progress": _json,
        "cpu_s": float,
        "peak_rss_bytes": int,
        "stack": str,
    }
)
_SCHEDULE_COLUMNS: Final[Readers] = MappingProxyType(
    {
        "concealed": bool,
        "id": _uuid,
        "name": str,
        "kind": str,
        "topic": str,
        "args": _json,
        "cron": str,
        "timezone": str,
        "every_s": float,
        "run_at": _time,
        "next_run_at": _time,
        "last_run_at": _time,
        "created_at": _time,
        "due_at": _time,
        "following_run_at": _time,
        "starts_at": _time,
        "ends_at": _time,
        "undeclared_at": _time,
        "jitter_s": float,
        "catch_up": str,
        "overlap": str,
        "key": str,
        "declared_by": str,
        "waiting": int,
        "error": str,
        "paused": bool,
        "priority": int,
        "max_attempts": int,
        "timeout_s": float,
    }
)
