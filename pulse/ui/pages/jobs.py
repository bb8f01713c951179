"""Jobs: all filters, pages by cursor, and what can be done to those that are ticked or to all that are found."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pulse.errors import PulseError
from pulse.protocol import answers
from pulse.ui.data.filters import Filters
from pulse.ui.pages.common import ask, trouble
from pulse.ui.rendering import page


async def listing(request: Request) -> Response:
    """A page of jobs; a whole id leads to its job."""
    filters = Filters.of({key: request.query_params.getlist(key) for key in request.query_params})
    if filters.whole_id is not None:
        return RedirectResponse(f"/jobs/{filters.whole_id}", HTTPStatus.SEE_OTHER)
    context: dict[str, object] = {
        "filters": filters,
        "jobs": [],
        "next": None,
        "reached": None,
        "is_short": False,
        "first": f"/jobs?{urlencode(filters.query())}",
    }
    try:
        answer = await ask(request, "jobs.list", filters.page())
        context |= _shown(filters, answer)
    except PulseError as error:
        return await trouble(request, error, "jobs.html", **context)
    return await page(request, "jobs.html", context)


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
