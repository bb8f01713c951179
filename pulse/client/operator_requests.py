"""What operators ask beside cancel and retry: to delete jobs, to move them, and what operators did; without IO."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

from pulse.client import records
from pulse.client.records import Changed
from pulse.client.requests import Request, as_ids, given
from pulse.common.json_text import JsonValue
from pulse.common.wire_values import IdLike
from pulse.errors import BadRequestError

__all__ = ["AuditFilters", "change", "delete", "list_actions"]


def delete(job_ids: Iterable[IdLike]) -> Request[Changed]:
    """Remove these terminal jobs; of each: done, or refused with a code."""
    return Request("jobs.delete", {"ids": as_ids(job_ids)}, records.changed, repeatable=False)


def change(job_ids: Iterable[IdLike], topic: str | None, priority: int | None) -> Request[Changed]:
    """Move these waiting jobs; of each: done, or refused with a code."""
    if topic is None and priority is None:
        raise BadRequestError("change: neither topic nor priority is given; one of them, or both, is needed")
    body = given({"topic": topic, "priority": priority})
    return Request("jobs.change", {**body, "ids": as_ids(job_ids)}, records.changed)


class AuditFilters(TypedDict, total=False):
    """Which notes: of this ``action`` (``jobs.``: all that begin so), about this ``topic``, of the last ``since_s``."""

    action: str
    topic: str
    since_s: float


def list_actions(limit: int, after: str | None, filters: AuditFilters) -> Request[dict[str, JsonValue]]:
    """What operators did, newest first."""
    return Request("audit.list", given({"limit": limit, "after": after, **filters}), records.plain)
