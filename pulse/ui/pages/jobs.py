"""Jobs: tabs by state, filters, pages by cursor, and what can be done to the ticked jobs or to all that are found."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pulse.errors import PulseError
from pulse.ops.bulk import ACTIONS, WAITING
from pulse.protocol import answers
from pulse.protocol.stats import FoundCounts
from pulse.ui.data.filters import LIMIT, Filters
from pulse.ui.data.poller import SystemSnapshot
from pulse.ui.pages.common import ask, last_counted, standing_of, trouble
from pulse.ui.rendering import page
from pulse.ui.view.formatting import number

VERBS: Final = ("cancel", "retry", "change", "delete")
# Name, statuses, and whether they are due: a first run or the next try is due, or comes later.
TABS: Final[Sequence[tuple[str, tuple[str, ...], str]]] = (
    ("All", (), ""),
    ("Waiting", WAITING, "yes"),
    ("Running", ("RUNNING",), ""),
    ("Scheduled", ("PENDING",), "no"),
    ("Retrying", ("RETRYING",), "no"),
    ("Completed", ("COMPLETED",), ""),
    ("Dead letters", ("DEAD_LETTERED",), ""),
    ("Canceled", ("CANCELED",), ""),
)


UNHANDLED_AT: Final = 5  # its tab is behind the others that wait, and only there where such jobs are
WAITS: Final = {"Waiting": "ready", "Scheduled": "scheduled", "Retrying": "retrying", "Unhandled": "unhandled"}
UNHANDLED: Final = "no handler named"  # how the error of a job begins that no worker has a handler for
COUNT_S: Final = 0.4  # a page waits no longer for the numbers of its tabs: the next one may have them


@dataclass(frozen=True, slots=True)
class StateTab:
    """A tab over the list: the same filters in another state, and how many jobs are in it, as it is shown."""

    name: str
    to: str
    is_here: bool
    number: str


def tabs_of(filters: Filters, standing: SystemSnapshot, found: FoundCounts | None = None) -> list[StateTab]:
    """The tabs; they keep all other filters. *found*: how many jobs match these, where there are some."""
    counts: Mapping[str, str] = _counts(standing) if _is_bare(filters) else {} if found is None else _found(found)
    is_unhandled = filters.q == UNHANDLED
    others = replace(filters, q="" if is_unhandled else filters.q, after="")
    made: list[StateTab] = []
    for name, statuses, due in TABS:
        is_here = not is_unhandled and (set(filters.status), filters.due) == (set(statuses), due)
        to = f"/jobs?{urlencode(replace(others, status=statuses, due=due).query())}"
        made.append(StateTab(name, to, is_here=is_here, number=counts.get(name, "")))
    waiting = standing.status.waiting
    if is_unhandled or (waiting is not None and waiting.unhandled):
        wanted = replace(others, status=("PENDING", "RETRYING"), due="", q=UNHANDLED)
        to = f"/jobs?{urlencode(wanted.query())}"
        made.insert(UNHANDLED_AT, StateTab("Unhandled", to, is_here=is_unhandled, number=counts.get("Unhandled", "")))
    return made


def _is_bare(filters: Filters) -> bool:
    """Whether nothing but a state is asked for."""
    return replace(filters, status=(), due="", q="" if filters.q == UNHANDLED else filters.q).is_any


def _found(found: FoundCounts) -> Mapping[str, str]:
    """The counts of a filter; where there may be more, that is said."""
    states = {name: one[0].lower() for name, one, _ in TABS if one} | WAITS
    numbers = {name: int(getattr(found, state)) for name, state in states.items()}
    shown = {name: number(value) + "+" * (states[name] in found.least) for name, value in numbers.items()}
    return {"All": number(sum(numbers.values())) + "+" * bool(found.least), **shown}


def _counts(standing: SystemSnapshot) -> Mapping[str, str]:
    status = standing.status
    if status.jobs is None:
        return {}
    waits = status.waiting
    some = {} if waits is None else {name: int(getattr(waits, state)) for name, state in WAITS.items()}
    whole = {name: status.jobs.get(one[0], 0) for name, one, due in TABS if len(one) == 1 and not due}
    return {name: number(value) for name, value in {"All": sum(status.jobs.values()), **some, **whole}.items()}


async def listing(request: Request) -> Response:
    """A page of jobs; a whole id leads to its job."""
    filters = Filters.of({key: request.query_params.getlist(key) for key in request.query_params})
    if filters.whole_id is not None:
        return RedirectResponse(f"/jobs/{filters.whole_id}", HTTPStatus.SEE_OTHER)
    standing, answer, found = await asyncio.gather(
        standing_of(request), _asked(request, filters), _counted(request, filters)
    )
    context: dict[str, object] = {
        "filters": filters,
        "is_more": bool(filters.worker or filters.older or filters.newer or filters.oldest or filters.limit != LIMIT),
        "tabs": tabs_of(filters, last_counted(request, standing) if _is_bare(filters) else standing, found),
        "verbs": [verb for verb in VERBS if not filters.status or {*filters.status} & {*ACTIONS[verb].statuses}],
        "jobs": [],
        "next": None,
        "reached": None,
        "is_short": False,
        "first": f"/jobs?{urlencode(filters.query())}",
    }
    try:
        if isinstance(answer, PulseError):
            raise answer
        context |= _shown(filters, answer)
    except PulseError as error:
        return await trouble(request, error, "jobs.html", **context)
    return await page(request, "jobs.html", context)


async def _counted(request: Request, filters: Filters) -> FoundCounts | None:
    """How many jobs match in each state; None: nobody told in time, or nothing but a state is asked for."""
    if _is_bare(filters):
        return None
    try:
        body = replace(filters, status=(), due="").wire()
        async with asyncio.timeout(COUNT_S):
            return answers.read(FoundCounts, await ask(request, "jobs.count", body))
    except (PulseError, TimeoutError):
        return None


async def _asked(request: Request, filters: Filters) -> Mapping[str, object] | PulseError:
    """The server's answer, or why there is none; asked beside the state of the whole, so that both are in time."""
    try:
        return await ask(request, "jobs.list", filters.page())
    except PulseError as error:
        return error


def _shown(filters: Filters, answer: Mapping[str, object]) -> dict[str, object]:
    """The rows, and where the next page is; a page may be short: the server looks for a tenth of a second."""
    found = answers.read(answers.JobPageAnswer, answer)
    query = [*filters.query(), ("after", found.next)] if found.next is not None else []
    reached = answer.get("reached")
    is_short = found.next is not None and len(found.jobs) < filters.limit
    return {
        "jobs": found.jobs,
        "next": f"/jobs?{urlencode(query)}" if query else None,
        "reached": float(reached) if is_short and isinstance(reached, int | float) else None,
        "is_short": is_short,
    }
