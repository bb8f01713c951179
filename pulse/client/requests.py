"""
The requests of a client and how it reads the answers, without IO: async and blocking client differ only in waiting.

Each function here makes one ``Request``: the kind and body of the frame, how its answer is read, and whether it may be
sent again when the connection broke before the answer came.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final, Generic, Literal, TypedDict, TypeVar, cast
from uuid import UUID, uuid4

from pulse.app.call import Call, HandlerRef, resolve_call
from pulse.app.handler import name_of
from pulse.app.tracing import current_traceparent
from pulse.client import records
from pulse.client.records import Changed, JobPage, Stack, Why
from pulse.common import json_text
from pulse.common.ids import submitted_ids, uuid7s
from pulse.common.wire_values import IdLike, TimeLike, args_text, as_id, unix_time, why_unsendable
from pulse.errors import (
    BadRequestError,
    NobodyAnswersError,
    ProtocolError,
    TooLargeError,
    error_from_code,
)
from pulse.job import Job
from pulse.protocol import PROTOCOL_VERSION, ErrorBody, Frame, Welcome, answers, decode_any, decode_body, encode

__all__ = ["JobFilters", "JobOptions", "NewJob", "Request"]

AnswerT = TypeVar("AnswerT")

_FIRST_PAUSE_S: Final = 0.01  # a short job is done by then
_LAST_PAUSE_S: Final = 0.5  # as the server's own poll; 2 requests a second cost nothing
_PAUSE_GROWTH: Final = 1.5


class JobOptions(TypedDict, total=False):
    """
    Options of a submit; for each that is missing the handler, else the topic, else the server decides.

    Keys:
        topic: Queue to wait in.
        priority: -100 ... 100, higher first.
        delay_s: Seconds to wait before the first try.
        run_at: Time of the first try instead: an aware datetime, or Unix seconds.
        max_attempts: Charged tries before the dead letter.
        timeout_s: Longest run of one attempt, seconds.
        expires_in_s: If it has not started after so many seconds, it becomes a dead letter.
        expires_at: That time instead: an aware datetime, or Unix seconds.
        id: UUID to submit under; the same id with the same name, topic and args is the same job.
        traceparent: W3C Trace Context that its attempts belong to; by default the current OpenTelemetry span's.
        group_key: Group that it belongs to: limits per group, fair turns and sequences go by topic and group.
        unique: Key that one job has at a time: while it does, others with the same key are not made.
        unique_until: When the job gives its key away: "end", or already at its "start".
        on_conflict: If another job has the key: "skip" keeps that one; "replace" gives it these args and times, if it
            waits; "error" raises.
        after: Jobs to wait for, by their ids: it is due when all of them have ended.
        on_failure: If one of these fails or is canceled: "cancel" cancels it, too; "run" lets it run all the same.
    """

    topic: str | None
    priority: int
    delay_s: float | None
    run_at: TimeLike | None
    max_attempts: int | None
    timeout_s: float | None
    expires_in_s: float | None
    expires_at: TimeLike | None
    id: IdLike | None
    traceparent: str | None
    group_key: str | None
    unique: str | None
    unique_until: Literal["start", "end"] | None
    on_conflict: Literal["skip", "replace", "error"] | None
    after: Iterable[IdLike] | None
    on_failure: Literal["cancel", "run"] | None


class _JobName(TypedDict):
    name: HandlerRef


class NewJob(_JobName, JobOptions, total=False):
    """One job of ``submit_many``: the options of a submit plus ``name`` and ``args``."""

    args: Mapping[str, object] | None


@dataclass(frozen=True, slots=True)
class Request(Generic[AnswerT]):
    """
    One request to the server.

    Attributes:
        read: Converts the answer's body for the caller.
        repeatable: Whether sending it twice does no more than once.
        meanwhile: What a transport calls once the request is sent: work on the answer that need not wait for it.

    """

    kind: str
    body: Mapping[str, object]
    read: Callable[[Mapping[str, object]], AnswerT]
    repeatable: bool = True
    meanwhile: Callable[[], object] = lambda: None

    def encode(self, number: int, max_frame_bytes: int) -> bytes:
        """
        The frame, as request *number*.

        Raises:
            BadRequestError: A value cannot be sent at all.
            TooLargeError: The frame is longer than the server accepts.

        """
        try:
            data = encode(self.kind, number, self.body)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise BadRequestError(f"{self.kind}: {why_unsendable(self.body, error)}") from None
        size = len(data) - 4
        if size > max_frame_bytes:
            raise TooLargeError(f"{self.kind}: the request has {size} bytes; the server accepts {max_frame_bytes}")
        return data

    def understood(self, body: Mapping[str, object]) -> AnswerT:
        """
        The answer's *body*, converted for the caller.

        Raises:
            ProtocolError: It is no answer to this request.

        """
        try:
            return self.read(body)
        except (ArithmeticError, AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError) as error:
            raise ProtocolError(f"{self.kind}: the answer cannot be read: {error!r:.200}") from None


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
        RefusedError: The server refuses this peer.
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


def submit(jobs: Iterable[NewJob | Call[Any]]) -> Request[list[UUID]]:
    """Submit all of *jobs*, or none. Each has an id before it is sent, so that the request can be repeated."""
    check_list(jobs)
    bodies = [job_body(job) for job in jobs]
    if not bodies:
        raise BadRequestError("submit: no jobs")
    traceparent = current_traceparent()
    if traceparent is not None:
        for body in bodies:
            body.setdefault("traceparent", traceparent)
    nameless = [body for body in bodies if "id" not in body]
    for body, job_id in zip(nameless, uuid7s(len(nameless)), strict=True):
        body["id"] = job_id
    sent = [cast("bytes", body["id"]) for body in bodies]
    ids = cache(partial(submitted_ids, sent, sent))
    return Request("submit", {"jobs": bodies}, partial(submitted, sent, ids), meanwhile=ids)


def check_list(jobs: object) -> None:
    """Refuse what is no list of jobs, such as one alone."""
    kind = type(jobs)
    if not issubclass(kind, Iterable) or issubclass(kind, str | bytes | Mapping):
        raise BadRequestError(f"submit: jobs must be a list of calls or mappings, not {kind.__name__}")


def submitted(sent: Sequence[bytes], ids: Callable[[], list[UUID]], body: Mapping[str, object]) -> list[UUID]:
    """
    The ids in the answer to a submit of the ids *sent*; warns of names that no worker has a handler for.

    Args:
        sent: The ids that were sent.
        ids: Makes them what the caller gets, for the answer has no others unless jobs have unique keys.
        body: The answer.

    """
    answer = answers.read(answers.Submitted, body)
    for unhandled in answer.unhandled:
        records.warn_of_unhandled(unhandled)
    return ids() if answer.ids == sent else submitted_ids(sent, answer.ids)


def get(job_id: IdLike) -> Request[Job]:
    """One job with its history."""
    return Request("jobs.get", {"id": as_id(job_id)}, records.job)


class ListPage(TypedDict, total=False):
    """A page of a list, newest first, or ``oldest``; at most ``limit``, ``after`` the last page's ``next``."""

    oldest: bool
    limit: int
    after: str | None


class JobFilters(ListPage, total=False):
    """
    Which jobs to list.

    Keys:
        status: One status, or several.
        topic, name, schedule: The topic, the handler, the schedule that fired them.
        error: A part of the last error, in upper or lower case.
        worker: A part of the identity of the worker that runs them.
        older_s, newer_s: They were submitted longer ago than that, or no longer ago.
        prefix: The first hexadecimal digits of their ids.
        due: Whether their time has come; False: they are to run later.
    """

    status: str | Sequence[str] | None
    topic: str | None
    name: str | Callable[..., Any] | None
    schedule: IdLike | None
    error: str | None
    worker: str | None
    older_s: float | None
    newer_s: float | None
    prefix: str | None
    due: bool | None


def list_jobs(filters: JobFilters) -> Request[JobPage]:
    """A page of jobs, newest first."""
    body = given(filters)
    status, name, schedule = filters.get("status"), filters.get("name"), filters.get("schedule")
    if status is not None:
        body["status"] = [str(status)] if isinstance(status, str) else [str(one) for one in status]
    if name is not None:
        body["name"] = name_of(name)
    if schedule is not None:
        body["schedule"] = as_id(schedule)
    return Request("jobs.list", body, records.job_page)


def parents(job_id: IdLike, limit: int, after: str | None) -> Request[JobPage]:
    """A page of the jobs that this one waits for, or has waited for."""
    return Request("jobs.parents", {**given({"limit": limit, "after": after}), "id": as_id(job_id)}, records.job_page)


def signal(job_id: IdLike, name: str, payload: object, key: str | None) -> Request[bool]:
    """Tell this job something; with a key, so that the request can be repeated."""
    if not isinstance(cast("object", name), str):
        raise BadRequestError(f"signal: name must be text, not {type(name).__name__}")
    try:
        text = json_text.dumps(payload)
    except ValueError as error:
        raise BadRequestError(f"signal {name!r:.100}: the payload is not JSON: {error}") from None
    body = {"id": as_id(job_id), "name": name, "payload": text, "key": str(uuid4()) if key is None else key}
    return Request("jobs.signal", body, records.is_new)


def cancel(job_ids: Iterable[IdLike], *, with_dependents: bool = False) -> Request[Changed]:
    """Cancel these; of each: done, or refused with a code."""
    return Request("jobs.cancel", _with_dependents(job_ids, with_dependents), records.changed, repeatable=False)


def retry(job_ids: Iterable[IdLike], *, with_dependents: bool = False) -> Request[Changed]:
    """Run these ended jobs again; each is done, or refused with a code."""
    return Request("jobs.retry", _with_dependents(job_ids, with_dependents), records.changed, repeatable=False)


def _with_dependents(job_ids: Iterable[IdLike], wanted: object) -> dict[str, object]:
    return {"ids": as_ids(job_ids), **({"with_dependents": True} if wanted else {})}


def delete(job_ids: Iterable[IdLike]) -> Request[Changed]:
    """Remove these terminal jobs; of each: done, or refused with a code."""
    return Request("jobs.delete", {"ids": as_ids(job_ids)}, records.changed, repeatable=False)


def change(job_ids: Iterable[IdLike], topic: str | None, priority: int | None) -> Request[Changed]:
    """Move these waiting jobs; of each: done, or refused with a code."""
    if topic is None and priority is None:
        raise BadRequestError("change: neither topic nor priority is given; one of them, or both, is needed")
    body = given({"topic": topic, "priority": priority})
    return Request("jobs.change", {**body, "ids": as_ids(job_ids)}, records.changed)


def stack(job_id: IdLike) -> Request[Stack]:
    """Where this running job is."""
    return Request("jobs.stack", {"id": as_id(job_id)}, records.stack)


def why(job_id: IdLike) -> Request[Why]:
    """Why this job does not run."""
    return Request("jobs.why", {"id": as_id(job_id)}, records.why)


def raw(kind: str, body: Mapping[str, object] | None, *, repeatable: bool) -> Request[dict[str, object]]:
    """Any request; the answer's body as it came."""
    return Request(kind, {} if body is None else body, dict, repeatable=repeatable)


def hello(user: str | None = None, password: str | None = None, behalf: str | None = None) -> dict[str, object]:
    """The body of a client's first frame."""
    return {"protocol": 1, "role": "client", **given({"user": user, "password": password, "behalf": behalf})}


def answer_lost(kind: str) -> NobodyAnswersError:
    """The error for a request that must not be repeated."""
    return NobodyAnswersError(f"{kind}: the connection broke before the answer came; it may or may not have been done")


def poll_pauses_s() -> Iterator[float]:
    """Pauses for polling: 10 ms, growing to 500 ms; endless."""
    pause_s = _FIRST_PAUSE_S
    while True:
        yield pause_s
        pause_s = min(pause_s * _PAUSE_GROWTH, _LAST_PAUSE_S)


def cut_pause_s(job: Job, pause_s: float, waited_s: float, timeout_s: float | None) -> float:
    """
    The pause before the next look at *job*.

    Raises:
        TimeoutError: *timeout_s* is over.

    """
    if timeout_s is None:
        return pause_s
    left_s = timeout_s - waited_s
    if left_s <= 0:
        raise TimeoutError(f"job {job.id} is {job.status} after {timeout_s:g} s")
    return min(pause_s, left_s)


_PLAIN: Final = 2  # keys of a job without options: name and args
_JOB_KEYS: Final = frozenset({"name", "args", *JobOptions.__annotations__})


def job_body(given: object) -> dict[str, object]:
    """
    The fields of a job in the request; its id only if it has one.

    Raises:
        BadRequestError: Something is wrong with it, which the message says.

    """
    if isinstance(given, Call):
        return job_body({"name": cast("object", given)})
    if not isinstance(given, dict | Mapping):  # dict: an answer at once
        raise BadRequestError(f"submit: a job is a mapping with name and args, not {type(given).__name__}")
    job = cast("Mapping[str, Any]", given)
    if not _JOB_KEYS.issuperset(job):
        unknown = min(job.keys() - _JOB_KEYS)
        raise BadRequestError(f"submit: unknown key {unknown!r}; allowed are {', '.join(sorted(_JOB_KEYS))}")
    if "name" not in job:
        raise BadRequestError("submit: a job has no name")
    if len(job) == _PLAIN and "args" in job and isinstance(job["name"], str):
        return {"name": job["name"], "args": args_text(job["args"])}  # nearly every one of many
    return _body_with_options(job)


def _body_with_options(job: Mapping[str, Any]) -> dict[str, object]:
    body = {key: value for key, value in job.items() if value is not None}
    if isinstance(job["name"], str):  # without a Call, which takes as long as all else here
        body["args"] = args_text(job.get("args"))
    else:
        call = resolve_call(job["name"], job.get("args"))
        body = {**call.options, **body, "name": call.name, "args": call.args}
    if "id" in body:
        body["id"] = as_id(job["id"])
    for time, wait in (("run_at", "delay_s"), ("expires_at", "expires_in_s")):
        if time in body:
            if wait in body:
                raise BadRequestError(f"submit: give {time} or {wait}, not both")
            body[time] = unix_time(body[time], time)
    if "unique" not in body and ("unique_until" in body or "on_conflict" in body):
        raise BadRequestError("submit: unique_until or on_conflict is given; they are allowed with unique only")
    if "after" in body or "on_failure" in body:
        body["after"] = _parents(body)
    return body


def _parents(body: Mapping[str, Any]) -> list[bytes]:
    after = body.get("after", ())
    if isinstance(after, str | bytes | UUID) or not isinstance(after, Iterable):
        raise BadRequestError(f"submit: after is {after!r:.100}; a list of ids of jobs is allowed")
    parents = [as_id(one) for one in cast("Iterable[IdLike]", after)]
    if "on_failure" in body and not parents:
        raise BadRequestError("submit: on_failure is given; it is allowed with after only")
    return parents


def given(options: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in options.items() if value is not None}


def as_ids(ids: Iterable[IdLike]) -> list[bytes]:
    found = [as_id(one) for one in ids]
    if not found:
        raise BadRequestError("no ids")
    return found
