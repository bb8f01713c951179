"""Dead letters, grouped by what they died of: one click brings back all that share an error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from pulse.errors import PulseError
from pulse.protocol import answers
from pulse.ui.pages.common import found_pages, trouble
from pulse.ui.rendering import page
from pulse.ui.view import formatting

LOOKED: Final = 250  # the newest: what was grouped in a blink
MOST_LOOKED: Final = 5000  # by ?look=5000, as far as the time of a page reaches


@dataclass(slots=True)
class DeadGroup:
    """Dead letters of one topic, handler and kind of error."""

    topic: str
    name: str
    kin: str
    newest: answers.JobInfo
    oldest_s: float | None
    number: int = 0

    @property
    def query(self) -> str:
        """The list of jobs, of this topic and handler."""
        return urlencode({"status": "DEAD_LETTERED", "topic": self.topic, "name": self.name})


def group(jobs: Sequence[answers.JobInfo]) -> list[DeadGroup]:
    """*jobs*, newest first, by topic, handler and kind of error; the largest group first."""
    groups: dict[tuple[str, str, str], DeadGroup] = {}
    for job in jobs:
        key = (job.topic, job.name, formatting.kin(job.last_error))
        found = groups.setdefault(key, DeadGroup(*key, job, job.completed_at))
        found.number += 1
        found.oldest_s = job.completed_at
    return sorted(groups.values(), key=lambda one: -one.number)


async def listing(request: Request) -> Response:
    """The groups among the newest dead letters."""
    look = request.query_params.get("look", "")
    wanted = MOST_LOOKED if look == str(MOST_LOOKED) else LOOKED
    topic = request.query_params.get("topic", "")
    filters: dict[str, object] = {"status": ["DEAD_LETTERED"], **({"topic": topic} if topic else {})}
    jobs: list[answers.JobInfo] = []
    is_all = False
    try:
        async for found in found_pages(request, {**filters, "limit": LOOKED}):
            jobs += found.jobs
            is_all = found.next is None
            if len(jobs) >= wanted:
                break
    except PulseError as error:
        return await trouble(request, error, "dead.html", groups=[], looked=0, is_all=False, topic=topic, further=0)
    context = {
        "groups": group(jobs),
        "looked": len(jobs),
        "is_all": is_all,
        "topic": topic,
        "further": MOST_LOOKED if wanted < MOST_LOOKED else 0,
    }
    return await page(request, "dead.html", context)
