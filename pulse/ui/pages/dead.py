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
from pulse.protocol.stats import ErrorGroup, ErrorsAnswer
from pulse.ui.data.queries import ANSWER_S
from pulse.ui.pages.common import ask, trouble
from pulse.ui.rendering import page
from pulse.ui.view import formatting

LOOKED: Final = 2000  # the newest: 70 ms
MOST_LOOKED: Final = 10_000  # by ?look=10000: 300 ms, on a busy machine more than other pages wait for
MOST_S: Final = 1.6


@dataclass(slots=True)
class DeadGroup:
    """Dead letters of one topic, handler and kind of error."""

    newest: ErrorGroup
    oldest_s: float
    number: int

    @property
    def kin(self) -> str:
        """What their errors have in common."""
        return formatting.kin(self.newest.error)

    @property
    def query(self) -> str:
        """The list of jobs, of this topic and handler."""
        return urlencode({"status": "DEAD_LETTERED", "topic": self.newest.topic, "name": self.newest.name})


def group(found: Sequence[ErrorGroup]) -> list[DeadGroup]:
    """*found*, where two that the server holds apart may be of the same kind; the largest group first."""
    groups: dict[tuple[str, str, str], DeadGroup] = {}
    for one in sorted(found, key=lambda one: -one.newest):
        made = groups.setdefault((one.topic, one.name, formatting.kin(one.error)), DeadGroup(one, one.oldest, 0))
        made.number += one.number
        made.oldest_s = min(made.oldest_s, one.oldest)
    return sorted(groups.values(), key=lambda one: -one.number)


async def listing(request: Request) -> Response:
    """The groups among the newest dead letters."""
    wanted = MOST_LOOKED if request.query_params.get("look") == str(MOST_LOOKED) else LOOKED
    within_s = MOST_S if wanted == MOST_LOOKED else ANSWER_S
    topic = request.query_params.get("topic", "")
    context: dict[str, object] = {"topic": topic, "groups": [], "number": 0, "looked": wanted, "is_all": True}
    try:
        asked = {"rows": wanted, **({"topic": topic} if topic else {})}
        found = answers.read(ErrorsAnswer, await ask(request, "jobs.errors", asked, within_s=within_s))
    except PulseError as error:
        return await trouble(request, error, "dead.html", further=0, **context)
    groups = group(found.groups)
    context |= {"groups": groups, "number": sum(one.number for one in groups), "is_all": found.is_all}
    return await page(request, "dead.html", {**context, "further": MOST_LOOKED if wanted < MOST_LOOKED else 0})
