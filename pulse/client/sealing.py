"""Encrypts args in requests, and decrypts answers, with the client's codec. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar, cast

from pulse.client.records import JobPage, SchedulePage
from pulse.client.requests import Request
from pulse.errors import BadRequestError
from pulse.job import Job, Schedule
from pulse.security.codec import Codec, UnreadableError, opened, seal

__all__ = ["open_answer", "seal_request"]

AnswerT = TypeVar("AnswerT")


def seal_request(codec: Codec, request: Request[AnswerT]) -> Request[AnswerT]:
    """
    *request* with the args of its jobs, or of its schedule, or its payload, in envelopes.

    Raises:
        BadRequestError: The codec failed, or the name of the handler is missing.

    """
    body = request.body
    if "jobs" in body:
        jobs = cast("list[Mapping[str, object]]", body["jobs"])
        return replace(request, body={**body, "jobs": [_sealed(codec, request.kind, job) for job in jobs]})
    return replace(request, body=_sealed(codec, request.kind, body))


def _sealed(codec: Codec, kind: str, body: Mapping[str, Any]) -> dict[str, object]:
    if kind == "jobs.signal":
        return {**body, "payload": _envelope(codec, kind, body["name"], body["payload"])}
    if "args" not in body:
        return dict(body)
    if "name" not in body:
        raise BadRequestError(f"{kind}: give the name beside args: the codec has to know for which handler they are")
    return {**body, "args": _envelope(codec, kind, body["name"], body["args"])}


def _envelope(codec: Codec, kind: str, name: str, text: str) -> str:
    try:
        return seal(codec, name, text)
    except UnreadableError as error:
        what = "the payload" if kind == "jobs.signal" else "args"
        raise BadRequestError(f"{kind}: {what} cannot be encrypted: {error}") from None


def open_answer(codec: Codec, answer: AnswerT) -> AnswerT:
    """*answer* with envelopes replaced by their contents; unreadable envelopes stay."""
    found: object = answer
    match answer:
        case Job():
            found = _job(codec, answer)
        case JobPage():
            found = replace(answer, jobs=tuple(_job(codec, one) for one in answer.jobs))
        case Schedule():
            found = _schedule(codec, answer)
        case SchedulePage():
            found = replace(answer, schedules=tuple(_schedule(codec, one) for one in answer.schedules))
        case _:
            pass
    return cast("AnswerT", found)


def _job(codec: Codec, job: Job) -> Job:
    signals = tuple(replace(one, payload=opened(codec, one.name, one.payload)) for one in job.signals)
    args, result = (opened(codec, job.name, value) for value in (job.args, job.result))
    return replace(job, args=args, result=result, signals=signals)


def _schedule(codec: Codec, schedule: Schedule) -> Schedule:
    return replace(schedule, args=opened(codec, schedule.name, schedule.args))
