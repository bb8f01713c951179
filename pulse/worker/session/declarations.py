"""What a handler process tells its server about the app: the topics that it serves, its schedules and its limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pulse.app.app import App
from pulse.errors import BadRequestError
from pulse.worker.app_name import AppError
from pulse.worker.options import PoolOptions, PoolTopics

__all__ = ["Declarations", "OtherQueues", "declarations_of"]

_DEFAULT: Final = "default"  # the topic of handlers that name none
_SHOWN: Final = 20  # of what is left out, in a log line


@dataclass(frozen=True, slots=True)
class OtherQueues:
    """
    What the app names, but this pool leaves to others; the first of each.

    Attributes:
        topics: Those of other queues.
        schedules: The keys of those that it does not declare.
        without_route: Topics that no pool serves.
    """

    topics: tuple[str, ...] = ()
    schedules: tuple[str, ...] = ()
    without_route: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Declarations:
    """
    What the server gets to know when the process connects.

    Attributes:
        topics: The topics to serve.
        handlers: The options of each handler that it serves, by its name.
        requests: Schedules and limits, by the kind of the request.
        left_out: What it does not get to know.
    """

    topics: tuple[str, ...]
    handlers: Mapping[str, dict[str, object]]
    requests: Mapping[str, dict[str, object]]
    left_out: OtherQueues


def declarations_of(app: App, pool: PoolOptions) -> Declarations:
    """
    What a pool declares; where there are several queues, for its own alone.

    Each of several queues has a pool: if all declared all schedules, each queue would fire them.

    Raises:
        AppError: No topic of the app belongs to the queue; one line that says which.
    """
    queue, named = pool.topics.queue, pool.topics.named
    of_handlers = {one.topic for one in app.handlers.values() if one.topic}
    topics = {_DEFAULT, *of_handlers}
    served = named or tuple(sorted(one for one in topics if _queue_of(one, pool.topics) == queue))
    if not served:
        allowed = "none" if pool.topics.routes is None else pool.topics.routes.shown_of(str(queue))
        raise AppError(
            f"{pool.app} has no topic of queue {queue}: it has {', '.join(sorted(topics))};"
            f" topics of the queue are {allowed}, and --topic names others"
        )
    fired = {key: _topic_of(app, one.body) for key, one in app.schedules.items()}
    schedules = {key: app.schedules[key].body for key in fired if _queue_of(fired[key], pool.topics) == queue}
    of_schedules = {one["name"] for one in schedules.values()}
    others = {one for one in {*of_handlers, *fired.values()} if _queue_of(one, pool.topics) != queue}.difference(served)
    lost = {one for one in others if _queue_of(one, pool.topics) is None}
    limits = [{"name": name, "policy": policy} for name, policy in app.limits.items()]
    return Declarations(
        topics=served,
        handlers={
            name: one.declared()
            for name, one in app.handlers.items()
            if one.topic is None or one.topic not in others or name in of_schedules
        },
        requests={
            "schedules.declare": {"by": pool.app, "schedules": list(schedules.values())},
            "limits.declare": {"by": pool.app, "limits": limits},
        },
        left_out=OtherQueues(
            tuple(sorted(others - lost)[:_SHOWN]),
            tuple(sorted(fired.keys() - schedules.keys())[:_SHOWN]),
            tuple(sorted(lost)[:_SHOWN]),
        ),
    )


def _queue_of(topic: str, topics: PoolTopics) -> str | None:
    """The queue of *topic*; None: it has no route, or there are not several queues."""
    try:
        return None if topics.routes is None else topics.routes.of(topic).name
    except BadRequestError:
        return None


def _topic_of(app: App, schedule: Mapping[str, object]) -> str:
    """The topic of the jobs that it fires, as the server finds it."""
    handler = app.handlers.get(str(schedule["name"]))
    return str(schedule.get("topic") or (handler and handler.topic) or _DEFAULT)
