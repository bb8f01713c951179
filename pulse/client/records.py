"""
The SDK's records: the server's answers with ids as UUID, times as aware datetimes, and JSON text decoded.

``pulse.protocol.answers`` declares the answers; a record takes what it has a field for, by the type of the field.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, tzinfo
from typing import Any, Final, TypeAlias, TypeVar, cast
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from msgspec import Struct
from msgspec.structs import replace

from pulse.common import json_text
from pulse.common.ids import ID_BYTES
from pulse.common.json_text import JsonValue
from pulse.common.text import one_line
from pulse.errors import ProtocolError, UnhandledNameWarning
from pulse.job import HistoryEntry, Job, RelatedJob, Schedule, Signal, Status
from pulse.limit import Limit
from pulse.protocol import answers
from pulse.protocol.answers import Stack
from pulse.protocol.limits import LimitPageAnswer, OneLimit
from pulse.protocol.schedules import PreviewAnswer, ScheduleInfo, SchedulePageAnswer
from pulse.protocol.stats import Stats
from pulse.protocol.workflows import RelatedJobInfo, SignalAnswer, SignalInfo

__all__ = ["Changed", "JobPage", "LimitPage", "Reason", "SchedulePage", "Stack", "Why"]

Body: TypeAlias = Mapping[str, object]
Reader: TypeAlias = Callable[[Any], object]
RecordT = TypeVar("RecordT")


@dataclass(frozen=True, slots=True)
class JobPage:
    """
    Jobs, newest first; ``next`` is the cursor of the page behind it, None on the last one.

    A page takes a bounded time: if matches are rare it is short, or empty, and ``next`` continues after it.
    """

    jobs: tuple[Job, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class SchedulePage:
    """Schedules, newest first; ``next`` is the cursor of the page behind it, None on the last one."""

    schedules: tuple[Schedule, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class LimitPage:
    """
    Limits and groups that differ, by name and group.

    ``next`` is the cursor of the page behind it, None on the last one.
    """

    limits: tuple[Limit, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class Changed:
    """
    What a cancel, retry, delete or change did.

    Attributes:
        done: The ids that it changed.
        refused: Those that it refused, each with an error's code.
        before: After a change: the topic and priority that each had before.

    """

    done: tuple[UUID, ...]
    refused: tuple[tuple[UUID, str], ...]
    before: tuple[tuple[UUID, str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Reason:
    """
    Something that keeps a job from running.

    Attributes:
        code: One word for it, as the protocol lists them: ``paused``, ``full``, ``back_off``...
        text: The same in plain words.
        advice: What to do about it; '': wait.
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


def job(body: Body) -> Job:
    """The answer to jobs.get."""
    return _job(answers.read(answers.OneJob, body).job)


def job_page(body: Body) -> JobPage:
    """The answer to jobs.list."""
    page = answers.read(answers.JobPageAnswer, body)
    return JobPage(tuple(map(_job, page.jobs)), page.next)


def schedule(body: Body) -> Schedule:
    """The answer to schedules.get, create, update, pause and resume."""
    return _schedule(answers.read(answers.OneSchedule, body).schedule)


def schedule_page(body: Body) -> SchedulePage:
    """The answer to schedules.list."""
    page = answers.read(SchedulePageAnswer, body)
    return SchedulePage(tuple(map(_schedule, page.schedules)), page.next)


def limit(body: Body) -> Limit:
    """The answer to limits.set and unset."""
    return _record(Limit, answers.read(OneLimit, body).limit)


def limit_page(body: Body) -> LimitPage:
    """The answer to limits.list."""
    page = answers.read(LimitPageAnswer, body)
    return LimitPage(tuple(_record(Limit, one) for one in page.limits), page.next)


def one_id(body: Body) -> UUID:
    """The answer to schedules.trigger."""
    return _uuid(answers.read(answers.Identity, body).id)


def times(body: Body) -> list[datetime]:
    """The answer to schedules.preview: in the time zone of the schedule, where this machine knows it."""
    preview = answers.read(PreviewAnswer, body)
    zone = _zone(preview.timezone)
    return [_time(one).astimezone(zone) for one in preview.times]


def is_new(body: Body) -> bool:
    """The answer to jobs.signal."""
    return answers.read(SignalAnswer, body).new


def changed(body: Body) -> Changed:
    """The answer to jobs.cancel, retry, delete and change."""
    told = answers.read(answers.ChangedAnswer, {**body, **_cut(body, "refused", 2), **_cut(body, "before", 3)})
    return Changed(
        tuple(map(_uuid, told.done)),
        tuple((_uuid(job_id), code) for job_id, code in told.refused),
        tuple((_uuid(job_id), where, priority) for job_id, where, priority in told.before),
    )


def stack(body: Body) -> Stack:
    """The answer to jobs.stack."""
    return answers.read(Stack, body)


def stats(body: Body) -> Stats:
    """The answer to stats."""
    return answers.read(Stats, body)


def why(body: Body) -> Why:
    """The answer to jobs.why."""
    told = answers.read(answers.WhyAnswer, body)
    reasons = tuple(Reason(one.code, one.text, one.advice, details=plain(one.details)) for one in told.reasons)
    return Why(_uuid(told.id), told.name, told.topic, status=Status(told.status), reasons=reasons)


def topic(body: Body) -> dict[str, JsonValue]:
    """The answer to topics.get, set and unset."""
    return plain(answers.part(body, "topic"))


def nothing(_body: Body) -> None:
    """An answer without content."""


def plain(body: Body) -> dict[str, JsonValue]:
    """An answer with ids as text, otherwise unchanged."""
    return {key: _plain(value) for key, value in body.items()}


def _plain(value: object) -> JsonValue:
    match value:
        case bytes():
            return str(UUID(bytes=value)) if len(value) == ID_BYTES else value.hex()
        case list() | tuple():
            return [_plain(one) for one in cast("list[object]", value)]
        case dict():
            return {str(key): _plain(one) for key, one in cast("dict[object, object]", value).items()}
        case _:
            return cast("JsonValue", value)


def _cut(body: Body, key: str, known: int) -> dict[str, object]:
    """The rows under *key*, each cut to the *known* elements: a newer server may add some."""
    rows = body.get(key)
    if not isinstance(rows, list):
        return {}
    return {key: [row[:known] if isinstance(row, list) else row for row in cast("list[object]", rows)]}


def _job(told: answers.JobInfo) -> Job:
    return _record(Job, replace(told, next_run_at=None) if told.is_held else told)


def _schedule(told: ScheduleInfo) -> Schedule:
    return _record(Schedule, told)


def _record(kind: type[RecordT], told: Struct) -> RecordT:
    """
    The record of an answer: field by field, each by its type.

    Raises:
        ProtocolError: A value is not of its field's type, for example an unknown status.

    """
    fields = _READERS[kind]
    try:
        values = {name: read(value) for name, read in fields if (value := getattr(told, name)) is not None}
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise ProtocolError(f"{kind.__name__.lower()}: {error}") from None


def _uuid(value: bytes) -> UUID:
    return UUID(bytes=value)


def _time(value: float) -> datetime:
    return datetime.fromtimestamp(value, UTC)


def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return UTC


def _same(value: object) -> object:
    return value


def _history(entries: list[answers.AttemptInfo]) -> tuple[HistoryEntry, ...]:
    return tuple(_record(HistoryEntry, entry) for entry in entries)


def _related(entries: list[RelatedJobInfo]) -> tuple[RelatedJob, ...]:
    return tuple(_record(RelatedJob, entry) for entry in entries)


def _signals(entries: list[SignalInfo]) -> tuple[Signal, ...]:
    return tuple(
        Signal(
            name=one.signal,
            payload=None if one.payload is None else json_text.loads(one.payload),
            sent_at=_time(one.sent_at),
        )
        for one in entries
    )


# Type of a record's field -> how it is read. A type that is missing is an error when this module is imported.
_BY_TYPE: Final[Mapping[str, Reader]] = {
    "UUID": _uuid,
    "datetime": _time,
    "JsonValue": json_text.loads,
    "Status": Status,
    "tuple[HistoryEntry, ...]": _history,
    "tuple[RelatedJob, ...]": _related,
    "tuple[Signal, ...]": _signals,
    "tuple[str, ...]": tuple,
    **dict.fromkeys(("str", "int", "float", "bool", "Mapping[str, str]"), _same),
}
_READERS: Final[Mapping[type[Any], Sequence[tuple[str, Reader]]]] = {
    kind: [(field.name, _BY_TYPE[str(field.type).removesuffix(" | None")]) for field in fields(kind)]
    for kind in (Job, HistoryEntry, RelatedJob, Schedule, Limit)
}


def warn_of_unhandled(unhandled: answers.UnhandledName) -> None:
    """Warn the caller of pulse of a name that no worker has a handler for."""
    warnings.warn(unhandled_text(unhandled), UnhandledNameWarning, stacklevel=_level_of_caller())


def unhandled_text(unhandled: answers.UnhandledName) -> str:
    """A sentence for people."""
    name, topic, similar = one_line(unhandled.name), one_line(unhandled.topic), map(one_line, unhandled.similar)
    others = f"; similar: {', '.join(similar)}" if unhandled.similar else ""
    return f"no worker that serves topic {topic} has a handler named {name}{others}. Such jobs wait until one comes"


def _level_of_caller() -> int:
    """How far up the stack the code is that uses pulse: a warning names its line."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("pulse."):
        frame, level = frame.f_back, level + 1
    return level
