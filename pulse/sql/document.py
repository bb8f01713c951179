"""
The jobs of a submit as one JSON document, as ``pulse.submit_many`` of the database takes them; and a signal. Pure.

They are checked as the server checks them, in its words, before anything is sent: an error of the database would say
less, and would spoil the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast
from uuid import UUID

import msgpack
import msgspec

from pulse.common import json_text
from pulse.common.ids import submitted_ids
from pulse.common.invalid_field import invalid_field
from pulse.common.text import iso
from pulse.common.wire_values import why_unsendable
from pulse.errors import BadRequestError
from pulse.protocol.fields import PATTERNS
from pulse.protocol.requests import JobsSignal, SubmittedJob

__all__ = ["document_of", "has_keys", "ids_of", "signal_document"]

_TIMES: Final = ("run_at", "expires_at")
for _kind in (SubmittedJob, JobsSignal):
    json_text.learn(_kind)
_decode: Final = msgspec.msgpack.Decoder(list[SubmittedJob]).decode
_decode_signal: Final = msgspec.msgpack.Decoder(JobsSignal).decode


def document_of(body: Mapping[str, object]) -> str:
    """
    The document.

    Args:
        body: Of a request to submit: its jobs have their ids.

    Raises:
        BadRequestError: A value is not allowed.
    """
    jobs = _jobs(body)
    try:
        packed = msgpack.packb(jobs)
        _decode(packed)
        plain = msgspec.msgpack.decode(packed)  # what was of a derived class is plain now
        document = msgspec.json.encode([_entry(job) for job in plain]).decode()
        json_text.refuse_nul(document)
        return document
    except msgspec.ValidationError as error:
        said = invalid_field(list[SubmittedJob], jobs, error, name="jobs", patterns=PATTERNS)
        raise BadRequestError(f"submit: {said}") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise BadRequestError(f"submit: {why_unsendable(jobs, error, 'jobs')}") from None


def signal_document(body: Mapping[str, Any]) -> str:
    """
    The document of a signal.

    Args:
        body: Of a request to send one.

    Raises:
        BadRequestError: A value is not allowed.
    """
    try:
        _decode_signal(msgpack.packb(body))
        entry = {"id": str(UUID(bytes=body["id"])), "name": body["name"], "key": body["key"]}
        return f'{json_text.dumps(entry)[:-1]},"payload":{body["payload"]}}}'
    except msgspec.ValidationError as error:
        raise BadRequestError(f"signal: {invalid_field(JobsSignal, body, error)}") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise BadRequestError(f"signal: {why_unsendable(body, error)}") from None


def ids_of(body: Mapping[str, object], answered: str | None) -> list[UUID]:
    """
    The ids of the jobs in the body of a request, in their order.

    Args:
        answered: What the database has said, if it was asked (``has_keys``).
    """
    sent = [job["id"] for job in _jobs(body)]
    return submitted_ids(sent, sent if answered is None else [UUID(one).bytes for one in answered.split(",")])


def has_keys(body: Mapping[str, object]) -> bool:
    """Whether some of its jobs have unique keys: then the database says which ids they get."""
    return any("unique" in job for job in _jobs(body))


def _jobs(body: Mapping[str, object]) -> Sequence[Mapping[str, Any]]:
    return cast("Sequence[Mapping[str, Any]]", body["jobs"])


def _entry(job: Mapping[str, Any]) -> dict[str, object]:
    """One job, as JSON will have it; its args are JSON already."""
    entry: dict[str, Any] = {**job, "id": job["id"].hex(), "args": msgspec.Raw(job["args"])}
    if "unique" in entry:
        entry["unique_key"] = entry.pop("unique")
    if "after" in entry:
        entry["after"] = [one.hex() for one in entry["after"]]
    for name in _TIMES:
        if name in entry:
            entry[name] = iso(entry[name])
    return entry
