"""What a row says of a job: for how long it runs or waits, and how far it is. Pure."""

from __future__ import annotations

from typing import Annotated

import msgspec
from markupsafe import Markup

from pulse.common.text import duration
from pulse.ops.bulk import WAITING
from pulse.protocol.answers import JobInfo
from pulse.ui.view.formatting import lasting, stamp


class JobProgress(msgspec.Struct, frozen=True):
    """How far a handler says that it is, from 0 to 1, and in its words."""

    share: Annotated[float, msgspec.Meta(ge=0, le=1)] = msgspec.field(name="value")
    text: str = ""


def when(job: JobInfo, now_s: float) -> Markup:
    """For how long *job* runs or waits, or when it will run; of one that has ended how long it took, and when."""
    if job.status == "RUNNING":
        return lasting(job.started_at, now_s)
    if job.held_back is not None:
        return Markup("{}").format(job.held_back)
    if job.status in WAITING:
        is_due = (job.next_run_at or 0) <= now_s
        return (lasting if is_due else stamp)(job.next_run_at, now_s)
    took = took_s(job.started_at, job.completed_at)
    words = "" if took is None or job.status != "COMPLETED" else f"took {duration(took)}, "
    return Markup("{}{}").format(words, stamp(job.completed_at, now_s))


def took_s(began_s: float | None, ended_s: float | None) -> float | None:
    """How long something took; None: not known."""
    return None if began_s is None or ended_s is None else max(0.0, ended_s - began_s)


def progress_of(text: str | None) -> JobProgress | None:
    """The progress that a handler has told; None: it has told none, or nothing that is a share."""
    try:
        return msgspec.json.decode(text or "null", type=JobProgress)
    except (msgspec.DecodeError, RecursionError):
        return None
