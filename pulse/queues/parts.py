"""Which jobs of a submit go to which queue, and what cannot be submitted because two queues would share it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypedDict, cast
from uuid import UUID

from pulse.app.call import Call
from pulse.client.batch import Batch
from pulse.client.requests import NewJob
from pulse.common.dsn import is_dsn
from pulse.common.wire_values import as_id
from pulse.errors import BadRequestError, ConfigError, NobodyAnswersError, PulseError
from pulse.routes import Routes
from pulse.security.codec import Codec

__all__ = ["Part", "QueueOptions", "check_options", "interrupted", "parts_of"]


_JOB: Final = re.compile(r"\bjobs\[([0-9]{1,9})\]")


class QueueOptions(TypedDict, total=False):
    """Options of the client of each queue, as ``pulse.connect`` has them; ``when_down`` is "fail" or "wait"."""

    timeout_s: float
    connect_timeout_s: float | None
    when_down: str | None
    user: str | None
    password: str | None
    behalf: str | None
    codec: Codec | None


@dataclass(slots=True)
class Part:
    """The jobs of a submit that go to one queue, and its place in the submit."""

    queue: str
    jobs: list[NewJob] = field(default_factory=list[NewJob])
    places: list[int] = field(default_factory=list[int])


def check_options(options: Mapping[str, object]) -> None:
    """Refuse submits by SQL while a server is down: each queue has a schema, and perhaps a database, of its own."""
    when_down = options.get("when_down")
    if isinstance(when_down, str) and is_dsn(when_down):
        raise ConfigError("when_down is a DSN: with several queues 'fail' or 'wait' is allowed")


def parts_of(routes: Routes, batch: Batch) -> list[Part]:
    """
    The jobs of *batch*, by queue.

    Raises:
        BadRequestError: A job has no topic, or one without a route; or it waits for a job of another queue; or one id
            has topics of two queues.
    """
    if not batch.ids:
        raise BadRequestError("submit: no jobs")
    queues = [_queue_of(routes, job) for job in batch]
    homes: dict[UUID, str] = {}
    for job_id, queue in zip(batch.ids, queues, strict=True):
        if homes.setdefault(job_id, queue) != queue:
            raise BadRequestError(
                f"submit: job {job_id} has topics of queues {homes[job_id]} and {queue}: one is allowed"
            )
    parts: dict[str, Part] = {}
    for place, (job, queue) in enumerate(zip(batch, queues, strict=True)):
        for parent in (UUID(bytes=as_id(one)) for one in job.get("after") or ()):
            other = homes.get(parent, queue)
            if other != queue:
                raise BadRequestError(
                    f"submit: job {_name(job)} of queue {queue} is to wait for job {parent} of queue {other}: jobs of"
                    " its own queue are allowed"
                )
        part = parts.setdefault(queue, Part(queue))
        part.jobs.append(job)
        part.places.append(place)
    return list(parts.values())


def interrupted(error: PulseError, part: Part, done: list[Part]) -> PulseError:
    """*error*, which ended a submit at *part*: where in the whole submit, and what had been submitted before."""

    def placed(found: re.Match[str]) -> str:
        place = int(found[1])
        return f"jobs[{part.places[place]}]" if place < len(part.places) else found[0]

    message = f"queue {part.queue}: {_JOB.sub(placed, error.message, count=1)}"
    if isinstance(error, NobodyAnswersError):
        message += f"; queue {part.queue} may have its jobs all the same"
    if done:
        message += f"; submitted before: {', '.join(f'{len(one.jobs)} of queue {one.queue}' for one in done)}"
    told = type(error).__new__(type(error), message)  # whatever else its class takes, it has from the error
    vars(told).update(vars(error))
    return told


def _queue_of(routes: Routes, job: NewJob) -> str:
    topic = job.get("topic") or cast("Call[object]", job["name"]).options.get("topic")
    if topic is None:
        raise BadRequestError(
            f"submit: job {_name(job)} has no topic, by which its queue is found: allowed are a topic in the submit,"
            " and one in @app.handler, if the submit has the function and not its name"
        )
    return routes.of(str(topic)).name


def _name(job: NewJob) -> str:
    return f"{cast('Call[object]', job['name']).name!r:.100}"
