"""The stream that wakes open pages: one small event for each round of the poller."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

from sse_starlette import EventSourceResponse
from starlette.requests import Request
from starlette.responses import Response

from pulse.ui.pages.common import session_of, site_of

PING_S = 15
SEND_S = 5.0  # a reader that takes no event within it is let go; its browser comes back when it can


async def stream(request: Request) -> Response:
    """Events named ``tick``; pages fetch what they show when one comes. It ends with the session."""
    site = site_of(request)
    session = session_of(request)

    async def ticks() -> AsyncIterator[dict[str, object]]:
        yield {"event": "hello", "data": "{}", "retry": 1000}
        async for standing in site.poller.watch():
            if standing.at_s > session.ends_s:
                return
            yield {"event": "tick", "data": json.dumps({"at": standing.at_s, "health": standing.health})}

    return EventSourceResponse(ticks(), ping=PING_S, send_timeout=SEND_S, cleanup_timeout=1)
