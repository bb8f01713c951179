"""The audit: what operators did, when, and who they were."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from pulse.client.records import plain
from pulse.common import json_text
from pulse.common.json_text import JsonValue
from pulse.errors import BadRequestError, PulseError
from pulse.ui.pages.common import ask, trouble
from pulse.ui.rendering import page

_FILTERS: Final = ("action", "topic")
_FEW: Final = 3


async def listing(request: Request) -> Response:
    """A page of it, newest first."""
    given = {key: value for key in (*_FILTERS, "after") if (value := request.query_params.get(key, "").strip())}
    context: dict[str, object] = {
        "rows": [],
        "next": None,
        "known": True,
        **{key: given.get(key, "") for key in _FILTERS},
    }
    try:
        answer = await ask(request, "audit.list", {**given, "limit": 100})
    except BadRequestError as error:
        if not given:  # an older server does not know the request
            return await page(request, "audit.html", {**context, "known": False})
        return await trouble(request, error, "audit.html", **context)
    except PulseError as error:
        return await trouble(request, error, "audit.html", **context)
    rows = [_row(one) for one in cast("list[Mapping[str, object]]", answer.get("audit") or [])]
    after = answer.get("next")
    query: dict[str, str] = {str(key): given[key] for key in _FILTERS if key in given}
    query["after"] = str(after)
    return await page(
        request,
        "audit.html",
        {**context, "rows": rows, "next": None if after is None else f"/audit?{urlencode(query)}"},
    )


def _row(body: Mapping[str, object]) -> dict[str, JsonValue]:
    """A row with its details in words: by what the jobs were chosen, and what was set; ids only where they are few."""
    row = plain(body)
    try:
        detail = json_text.loads(str(row.get("detail") or "{}"))
    except ValueError:
        return row
    if isinstance(detail, dict):
        ids = detail.pop("ids", None)
        words = [str(detail.pop("matching"))] if detail.get("matching") else []
        words += [f"{key} {value}" for key, value in detail.items() if value is not None]
        if isinstance(ids, list) and not words and len(ids) <= _FEW:
            words = [str(one) for one in ids]
        row["detail"] = ", ".join(words)
    return row
