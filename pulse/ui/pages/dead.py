"""Dead letters, grouped by what they died of: one click brings back all that share an error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from pulse.cli import views
from pulse.errors import PulseError
from pulse.ui import shown
from pulse.ui.pages.common import site_of, trouble
from pulse.ui.rendering import page

__all__ = ["Group", "group", "listing"]

LOOKED: Final = 250  # the newest: what was grouped in a blink; ?look=N looks further
MOST_LOOKED: Final = 5000


@dataclass(slots=True)
class Group:
    """Dead letters of one topic, handler and kind of error."""

    topic: str
    name: str
    kin: str
    newest: views.Job
    oldest_s: float | None
    number: int = 0

    @property
    def query(self) -> str:
        """The list of jobs, of this topic and handler."""
        return urlencode({"status": "DEAD_LETTERED", "topic": self.topic, "name": self.name})


def group(jobs: Sequence[views.Job]) -> list[Group]:
    """*jobs*, newest first, by topic, handler and kind of error; the largest group first."""
    groups: dict[tuple[str, str, str], Group] = {}
    for job in jobs:
        key = (job.topic, job.name, shown.kin(job.last_error))
        found = groups.setdefault(key, Group(*key, job, job.completed_at))
        found.number += 1
        found.oldest_s = job.completed_at
    return sorted(groups.values(), key=lambda one: -one.number)


async def listing(request: Request) -> Response:
    """The groups among the newest dead letters."""
    site = site_of(request)
    look = request.query_params.get("look", "")
    wanted = min(MOST_LOOKED, int(look)) if look.isascii() and look.isdigit() else LOOKED
    topic = request.query_params.get("topic", "").strip()
    filters: dict[str, object] = {"status": ["DEAD_LETTERED"], **({"topic": topic} if topic else {})}
    jobs: list[views.Job] = []
    after: str | None = None
    try:
        while len(jobs) < wanted:
            place = {} if after is None else {"after": after}
            body = {**filters, "limit": min(LOOKED, wanted - len(jobs)), **place}
            found = views.read(views.JobPage, await site.questions.ask("jobs.list", body))
            jobs += found.jobs
            after = found.next
            if after is None:
                break
    except PulseError as error:
        return await trouble(request, error, "dead.html", groups=[], looked=0, is_all=False, topic=topic, further=0)
    context = {
        "groups": group(jobs),
        "looked": len(jobs),
        "is_all": after is None,
        "topic": topic,
        "further": MOST_LOOKED if wanted < MOST_LOOKED else 0,
    }
    return await page(request, "dead.html", context)
