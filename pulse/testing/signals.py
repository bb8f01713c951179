"""Signals of jobs in memory, as ``pulse.signal`` of schema.sql has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from msgspec.structs import replace

from pulse.errors import ConflictError
from pulse.protocol.answers import SignalInfo

if TYPE_CHECKING:
    from pulse.testing.memory import MemoryJob

__all__ = ["awaits", "send"]


def send(job: MemoryJob, body: Mapping[str, Any], now_s: float) -> bool:
    """
    Send *job* the signal in the body of a request; returns whether it is new.

    Raises:
        ConflictError: The job was completed or canceled.
    """
    name, info = body["name"], job.info
    if any((one.signal, one.key) == (name, body["key"]) for one in info.signals):
        return False
    if info.status in {"COMPLETED", "CANCELED"}:
        allowed = "one that has not ended, or is a dead letter, is allowed"
        raise ConflictError(f'signal "{name}": job {UUID(bytes=info.id)} is {info.status}; {allowed}')
    sent = SignalInfo(signal=name, key=body["key"], payload=body["payload"], sent_at=now_s)
    job.info = replace(info, signals=[*info.signals, sent], signals_total=info.signals_total + 1)
    job.recording.tell(sent)
    if info.status == "PENDING" and info.awaited_signal == name:
        job.info = replace(job.info, awaited_signal=None, next_run_at=min(now_s, info.next_run_at or now_s))
    return True


def awaits(job: MemoryJob, detail: object) -> float:
    """*job* waits for the signal in the detail of that outcome; returns for how long: not at all, if one has come."""
    seconds, (name, seen) = cast("tuple[float, tuple[str, int]]", detail)
    has_come = job.info.signals_total > seen
    job.info = replace(job.info, awaited_signal=None if has_come else name)
    return 0.0 if has_come else seconds
