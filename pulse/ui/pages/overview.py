"""The first page: what is wrong; counts; charts of the last hour; jobs that run or wait longest."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from pulse.errors import PulseError
from pulse.ops.bulk import WAITING
from pulse.ops.worker_text import places_of
from pulse.protocol import answers
from pulse.ui.pages.common import ask, site_of, standing_of
from pulse.ui.rendering import page

_SHOWN: Final = 6
_LOOKED: Final = 50  # of what runs, or waits: what does so for longest is mostly among the oldest


async def show(request: Request) -> Response:
    """The overview; what is not known is said to be so, and counts are the last known ones, with their age."""
    waits = {"status": list(WAITING), "due": True, "oldest": True, "limit": _LOOKED}
    runs = {"status": ["RUNNING"], "oldest": True, "limit": _LOOKED}
    standing, failed, oldest, running = await asyncio.gather(
        standing_of(request),
        _jobs(request, {"status": ["DEAD_LETTERED"], "limit": _SHOWN}),
        _jobs(request, waits),
        _jobs(request, runs),
    )
    counted = standing.counted
    jobs = None if counted is None else counted.status.jobs
    workers = standing.status.workers
    context = {
        "failed": failed,
        "counts": jobs,
        "counted_s": None if counted is None or counted is standing else counted.at_s,
        "waits": None if counted is None else counted.status.waiting,
        "load": None if workers is None else places_of(workers),
        "charts": standing.charts,
        "slowest": None if running is None else sorted(running, key=lambda job: job.started_at or 0)[:_SHOWN],
        "oldest": None if oldest is None else sorted(oldest, key=lambda job: job.next_run_at or 0)[:_SHOWN],
    }
    return await page(request, "overview.html", context)


async def _jobs(request: Request, body: Mapping[str, Any]) -> list[answers.JobInfo] | None:
    """Some jobs; None: nobody knows. They are not asked for where there are none, or nobody would answer."""
    newest = site_of(request).poller.newest
    if newest is not None and newest.cause is not None:
        return None
    counts = None if newest is None else newest.status.jobs
    if counts is not None and not any(counts.get(status) for status in body["status"]):
        return []
    try:
        return answers.read(answers.JobPageAnswer, await ask(request, "jobs.list", body)).jobs
    except PulseError:
        return None
