"""Signals of jobs in memory, as ``pulse.signal`` of schema.sql and ``end_attempts`` have them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast
from uuid import UUID

from msgspec.structs import replace

from pulse.errors import ConflictError
from pulse.protocol.answers import JobInfo
from pulse.protocol.workflows import SignalInfo

__all__ = ["awaiting", "sent"]


def sent(info: JobInfo, body: Mapping[str, Any], now_s: float) -> JobInfo | None:
    """
    The job, once the signal in the body of a request was sent to it; None: it has that one.

    Raises:
        ConflictError: It was completed or canceled.
    """
    name, key = body["name"], body["key"]
    if any((one.signal, one.key) == (name, key) for one in info.signals):
        return None
    if info.status in {"COMPLETED", "CANCELED"}:
        allowed = "one that has not ended, or is a dead letter, is allowed"
        raise ConflictError(f'signal "{name}": job {UUID(bytes=info.id)} is {info.status}; {allowed}')
    signal = SignalInfo(signal=name, key=key, payload=body["payload"], sent_at=now_s)
    told = replace(info, signals=[*info.signals, signal], signals_total=info.signals_total + 1)
    if info.status in {"PENDING", "RETRYING"} and info.awaited_signal == name:
        return replace(told, awaited_signal=None, next_run_at=min(now_s, info.next_run_at or now_s))
    return told


def awaiting(info: JobInfo, detail: object) -> tuple[JobInfo, float]:
    """The job that waits for the signal in the detail of that outcome, and for how long: not, if one has come."""
    seconds, (name, seen) = cast("tuple[float, tuple[str, int]]", detail)
    if info.signals_total > seen:
        return replace(info, awaited_signal=None), 0.0
    return replace(info, awaited_signal=name), seconds
