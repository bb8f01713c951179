"""Why a job does not run: the question, and its answer as Python values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast
from uuid import UUID

from pulse.client.records import plain
from pulse.client.requests import Request
from pulse.common.json_text import JsonValue
from pulse.common.wire_values import IdLike, as_id
from pulse.errors import ProtocolError
from pulse.job import Status

__all__ = ["Reason", "Why"]


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


def ask(job_id: IdLike) -> Request[Why]:
    """Why this job does not run."""
    return Request("jobs.why", {"id": as_id(job_id)}, read)


def read(body: Mapping[str, object]) -> Why:
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
