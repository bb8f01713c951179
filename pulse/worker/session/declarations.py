"""What a handler process tells its server about the app: the topics that it serves, its schedules and its limits."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pulse.app.app import App
from pulse.client.discovery import is_address, parse_address
from pulse.errors import BadRequestError
from pulse.routes import Routes
from pulse.worker.app_name import AppError
from pulse.worker.options import PoolOptions

__all__ = ["Declarations", "declarations_of"]

_DEFAULT: Final = "default"  # the topic of handlers that name none


@dataclass(frozen=True, slots=True)
class Declarations:
    """
    What the server gets to know when the process connects.

    Attributes:
        topics: The topics to serve.
        requests: Schedules and limits, by the kind of the request.
    """

    topics: tuple[str, ...]
    requests: Mapping[str, dict[str, object]]


def declarations_of(app: App, pool: PoolOptions) -> Declarations:
    """
    What a pool declares; where the config file has several queues, for the queue of its server alone.

    Each of several queues has a pool: if all declared all schedules, each queue would fire them.

    Raises:
        AppError: No topic of the app belongs to that queue; one line that says which.
    """
    topics = {_DEFAULT, *(one.topic for one in app.handlers.values() if one.topic)}
    schedules = [one.body for one in app.schedules.values()]
    routes = _routes()
    queue = _queue_at(pool.socket or os.environ.get("PULSE_CONNECT"), routes)
    if queue is not None:
        theirs = sorted(topics)
        topics = {topic for topic in topics if _belongs(topic, queue, routes)}
        schedules = [one for one in schedules if _belongs(_topic_of(app, one), queue, routes)]
        if not topics and pool.topics is None:
            raise AppError(
                f"{pool.app} has no topic of queue {queue}: it has {', '.join(theirs)}; allowed are"
                f" {', '.join(routes.patterns_of(queue)) or 'none'}, and --topic"
            )
    limits = [{"name": name, "policy": policy} for name, policy in app.limits.items()]
    return Declarations(
        tuple(sorted(topics)) if pool.topics is None else pool.topics,
        {
            "schedules.declare": {"by": pool.app, "schedules": schedules},
            "limits.declare": {"by": pool.app, "limits": limits},
        },
    )


def _routes() -> Routes:
    if not os.environ.get("PULSE_CONFIG") and not Path("pulse.toml").is_file():
        return Routes({}, {})
    from pulse.config import load_routes  # only where there is a file: it takes 10 ms

    return load_routes(needed=False)


def _queue_at(server: str | None, routes: Routes) -> str | None:
    """The queue of this server; None: it is none of the config file's."""
    if server is None:
        return None
    here = _place(server)
    return next((name for name, queue in routes.queues.items() if _place(queue.server) == here), None)


def _place(server: str) -> str:
    """The server's address, without a user; or the whole path of its socket."""
    return str(parse_address(server)) if is_address(server) else str(Path(server.removeprefix("unix://")).absolute())


def _belongs(topic: str, queue: str, routes: Routes) -> bool:
    try:
        return routes.of(topic).name == queue
    except BadRequestError:  # it has no route: no client with routes submits to it
        return False


def _topic_of(app: App, schedule: Mapping[str, object]) -> str:
    """The topic of the jobs that it fires, as the server finds it."""
    handler = app.handlers.get(str(schedule["name"]))
    return str(schedule.get("topic") or (handler and handler.topic) or _DEFAULT)
