"""Jobs in memory that wait for others, as ``pulse.settle`` of the database has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol
from uuid import UUID

from msgspec.structs import replace

from pulse.errors import BadRequestError, NotFoundError
from pulse.protocol import SubmittedJob
from pulse.protocol.answers import JobInfo

__all__ = ["settle", "wait_for"]


class Waiting(Protocol):
    """A job with its row, and the jobs that it waits for: what it does if one fails."""

    info: JobInfo
    waits_for: dict[bytes, str]
    after: tuple[bytes, ...]

    @property
    def is_terminal(self) -> bool:
        """Whether it has ended."""
        ...


def wait_for(jobs: Mapping[bytes, Waiting], child: Waiting, submitted: SubmittedJob, now_s: float) -> None:
    """
    Let a new job wait for others.

    Raises:
        NotFoundError: One of them is not there.
        BadRequestError: It is to wait for itself.
    """
    parents: dict[bytes, str] = dict.fromkeys(submitted.after or (), submitted.on_failure or "cancel")
    if child.info.id in parents:
        own = UUID(bytes=child.info.id)
        message = f"job {own} is to wait for job {own}; only a job that was submitted before it is allowed"
        raise BadRequestError(message)
    missing = next((one for one in parents if one not in jobs), None)
    if missing is not None:
        message = f"job {UUID(bytes=child.info.id)} is to wait for job {UUID(bytes=missing)}, and there is no such job"
        raise NotFoundError(message)
    child.waits_for, child.after = parents, tuple(parents)
    child.info = replace(child.info, waiting_on=len(parents) or None)
    for one in list(parents):
        if jobs[one].is_terminal:
            _tell(jobs, child, jobs[one], now_s)


def settle(jobs: Mapping[bytes, Waiting], ended: Waiting, now_s: float) -> None:
    """Tell those that wait for a job that it has ended."""
    for child in [one for one in jobs.values() if ended.info.id in one.waits_for]:
        _tell(jobs, child, ended, now_s)


def _tell(jobs: Mapping[bytes, Waiting], child: Waiting, ended: Waiting, now_s: float) -> None:
    on_failure = child.waits_for.pop(ended.info.id)
    child.info = replace(child.info, waiting_on=len(child.waits_for))
    if child.info.status != "PENDING":
        return
    if on_failure == "cancel" and ended.info.status != "COMPLETED":
        reason = f"canceled: it waited for other jobs, and {UUID(bytes=ended.info.id)} is {ended.info.status}"
        child.info = replace(child.info, status="CANCELED", completed_at=now_s, last_error=reason)
        settle(jobs, child, now_s)
    elif not child.waits_for:
        child.info = replace(child.info, next_run_at=max(now_s, child.info.next_run_at or 0.0))
