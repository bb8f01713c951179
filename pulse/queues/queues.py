"""
Clients of several queues for code without an event loop: a submit goes to the queue of its topic.

Generated from async_queues.py: change that file, then ``make generate``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Final, Self, Unpack, cast
from uuid import UUID

from pulse.app.call import Call, HandlerRef
from pulse.client.batch import batch_of
from pulse.client.client import Client
from pulse.client.requests import JobOptions, NewJob
from pulse.common.ids import JobId
from pulse.common.wire_values import IdLike, as_id
from pulse.errors import NobodyAnswersError, NotFoundError, PulseError
from pulse.job import Job
from pulse.queues.parts import Part, QueueOptions, check_options, interrupted, parts_of
from pulse.routes import Routes

__all__ = ["Queues"]


class Queues:
    """
    The queues of an application, by topic. There are no promises across queues.

    Args:
        routes: The queues, and the topics of each.
        options: Those of the clients, see ``QueueOptions``.

    Attributes:
        routes: The same routes.

    Example:
        ::

            with pulse.Queues(pulse.load_routes()) as queues:
                job_id = queues.submit(welcome, {"user": 17}, topic="mail.welcome")
                job = queues.wait(job_id, timeout_s=60)
                queues.of("mail.welcome").pause("mail.welcome", "disk full")
    """

    def __init__(self, routes: Routes, **options: Unpack[QueueOptions]) -> None:
        check_options(options)
        self.routes: Final = routes
        self._clients = {name: Client(queue.server, **options) for name, queue in routes.queues.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; the next request to a queue opens a new one."""
        for client in self._clients.values():
            client.close()

    def of(self, topic: str) -> Client:
        """The client of the queue that has *topic*, for all that a client does. BadRequestError: it has no route."""
        return self._clients[self.routes.of(topic).name]

    def named(self, queue: str) -> Client:
        """The client of the queue of this name. BadRequestError: there is none."""
        return self._clients[self.routes.named(queue).name]

    def find(self, job_id: IdLike) -> Client:
        """
        The client of the queue that has a job: an id does not say which, so the queues are asked in turn.

        Raises:
            NotFoundError: No queue has it (any more).
            NobodyAnswersError: The queues that answer do not have it, and others do not answer, or refuse.

        """
        wanted = UUID(bytes=as_id(job_id))
        silent: list[str] = []
        for name, client in self._clients.items():
            try:
                client.get(wanted)
            except NotFoundError:
                continue
            except PulseError as error:
                silent.append(f"; queue {name}: {error.message}")
            else:
                return client
        if silent:
            raise NobodyAnswersError(f"the queues that answer have no job {wanted}{''.join(silent)}")
        raise NotFoundError(f"there is no job {wanted} in the queues {', '.join(self._clients)}")

    def submit(
        self, handler: HandlerRef, args: Mapping[str, object] | None = None, **options: Unpack[JobOptions]
    ) -> JobId:
        """
        Enqueue one job in the queue of its topic, which the submit or the handler has to name; see ``Client.submit``.

        Raises:
            BadRequestError: It has no topic, or one without a route; or a value is not allowed.
            NotFoundError: A job of ``after`` is not there: it may be in another queue.
            NobodyAnswersError: The server of the queue does not answer.

        """
        ids = self.submit_many([{"name": handler, "args": args, **options}])
        return cast("JobId", ids[0])

    def submit_many(self, jobs: Iterable[NewJob | Call[Any]]) -> list[UUID]:
        """
        Enqueue many jobs, each in the queue of its topic: all or none of a queue, and one queue after the other.

        Where a queue does not take its jobs, those before stay submitted, and the error says how many. Jobs with ids
        of their own can be submitted again without harm.

        Args:
            jobs: A ``pulse.Batch``; or as of ``Client.submit_many``.

        Returns:
            Their ids, in the same order.

        Raises:
            BadRequestError: A job has no topic, or is to wait for a job of another queue, or one id is for two queues;
                nothing was submitted.

        """
        batch = batch_of(jobs, None, None)
        ids = list(batch.ids)
        done: list[Part] = []
        for part in parts_of(self.routes, batch):
            try:
                answered = self._clients[part.queue].submit_many(part.jobs)
            except PulseError as error:
                raise interrupted(error, part, done) from None
            done.append(part)
            for place, job_id in zip(part.places, answered, strict=True):
                ids[place] = job_id
        return ids

    def get(self, job_id: IdLike) -> Job:
        """One job with its history; raises as ``find``."""
        return self.find(job_id).get(job_id)

    def wait(self, job_id: IdLike, timeout_s: float | None = None) -> Job:
        """
        Wait until a job is completed, canceled or dead.

        Args:
            job_id: The job.
            timeout_s: Longest wait, seconds, with the time that it takes to find the queue; None: for ever. A queue
                that accepts and does not answer may take the ``timeout_s`` of its client.

        Raises:
            TimeoutError: It did not end in time.
            PulseError: As ``find``.

        """
        began_s = time.monotonic()
        client = self.find(job_id)
        left_s = None if timeout_s is None else max(0.0, timeout_s - (time.monotonic() - began_s))
        return client.wait(job_id, left_s)
