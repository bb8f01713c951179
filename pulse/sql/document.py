"""The jobs of a submit as one JSON document, as ``pulse.submit_many`` of the database takes them. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast
from uuid import UUID

from pulse.common.text import iso

__all__ = ["document_of", "ids_of"]

_TIMES: Final = ("run_at", "expires_at")


def document_of(body: Mapping[str, object]) -> str:
    """
    The document.

    Args:
        body: Of a request to submit: its jobs have their ids.
    """
    return f"[{','.join(map(_entry, _jobs(body)))}]"


def ids_of(body: Mapping[str, object]) -> list[UUID]:
    """The ids of the jobs in the body of a request, in their order."""
    return [UUID(bytes=job["id"]) for job in _jobs(body)]


def _jobs(body: Mapping[str, object]) -> Sequence[Mapping[str, Any]]:
    return cast("Sequence[Mapping[str, Any]]", body["jobs"])


def _entry(job: Mapping[str, Any]) -> str:
    """One job as JSON; its args are JSON already."""
    entry = {key: value for key, value in job.items() if key != "args"}
    entry["id"] = str(UUID(bytes=job["id"]))
    for name in _TIMES:
        if name in entry:
            entry[name] = iso(entry[name])
    return f'{json.dumps(entry)[:-1]}, "args": {job["args"]}}}'
