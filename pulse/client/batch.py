"""
Jobs that are submitted together, and may wait for each other: a graph, written as plain Python.

Each job has its id as soon as it is added, so that later ones can name it. What is wrong with a job fails where it is
added; nothing is sent before the submit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal, Unpack, cast
from uuid import UUID

from pulse.app.call import Call, HandlerRef, resolve_call
from pulse.client.requests import JobOptions, NewJob, check_list, job_body
from pulse.common.ids import uuid7
from pulse.common.wire_values import as_id
from pulse.errors import BadRequestError

__all__ = ["Batch", "batch_of"]


class Batch:
    """
    Jobs for ``client.submit_batch``, or for any ``submit_many``: all are submitted in one transaction, or none is.

    Args:
        jobs: The first ones; each as ``submit_many`` takes it.

    Attributes:
        ids: Their ids, in the order in which they were added.

    Example:
        ::

            batch = pulse.Batch()
            parts = [batch.add(pulse.call(count, path)) for path in paths]
            batch.add(pulse.call(add_up), after=parts)
            client.submit_batch(batch)
    """

    def __init__(self, jobs: Iterable[NewJob | Call[Any]] = ()) -> None:
        self.ids: Final[list[UUID]] = []
        self._jobs: list[NewJob] = []
        self._newest = UUID(int=0)
        self._keyed: set[UUID] = set()  # with a unique key: they may turn out to be other jobs
        check_list(jobs)
        for job in jobs:
            if isinstance(job, Mapping):
                self._add(dict(cast("Mapping[str, object]", job)))
            else:
                self._add({"name": job})

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[NewJob]:
        return iter(self._jobs)

    def add(self, handler: HandlerRef, args: Mapping[str, object] | None = None, **options: Unpack[JobOptions]) -> UUID:
        """
        Add a job.

        Args:
            handler: ``pulse.call(count, path)``; or a handler, or its name.
            args: Its keyword arguments.
            options: As of ``client.submit``; ``after`` names jobs of this batch, or others that were submitted before.

        Returns:
            Its id, for the ``after`` of those that wait for it.

        Raises:
            BadRequestError: A value is not allowed; the message says which. Or it is to wait for a job of this batch
                with a unique key: if another job has that key, there will be none with this id.
        """
        return self._add({"name": handler, "args": args, **options})

    def then(
        self, handler: HandlerRef, args: Mapping[str, object] | None = None, **options: Unpack[JobOptions]
    ) -> UUID:
        """Add a job that waits for all that the batch has so far, and runs at once if it has none; see ``add``."""
        if not self.ids:
            options.pop("on_failure", None)
        options.setdefault("after", self.ids)
        return self.add(handler, args, **options)

    def _add(self, job: dict[str, Any]) -> UUID:
        after = job.get("after")
        if after is not None and isinstance(after, Iterable) and not isinstance(after, str | bytes):
            job["after"] = list(cast("Iterable[object]", after))
        if "name" in job:
            job["name"] = resolve_call(job["name"], job.pop("args", None))
        body = job_body(job)
        identity = UUID(bytes=as_id(job["id"])) if "id" in body else self._next_id()
        keyed = (
            self._keyed.intersection(UUID(bytes=as_id(one)) for one in job.get("after") or ()) if self._keyed else ()
        )
        for one in keyed:
            raise BadRequestError(
                f"submit: after is job {one} of the same batch, which has a unique key; allowed are jobs without one,"
                " and the id that an earlier submit of it has answered with"
            )
        if "unique" in body:
            self._keyed.add(identity)
        self._jobs.append(cast("NewJob", {**job, "id": identity}))
        self.ids.append(identity)
        return identity

    def _next_id(self) -> UUID:
        """Greater than the one before: a job reads its parents in the order of their ids."""
        made = uuid7()
        self._newest = made if made > self._newest else UUID(int=self._newest.int + 1)
        return self._newest


def batch_of(
    jobs: Iterable[NewJob | Call[Any]], then: HandlerRef | None, on_failure: Literal["cancel", "run"] | None
) -> Batch:
    """
    What ``client.submit_batch`` submits.

    Raises:
        BadRequestError: ``on_failure`` is given without ``then``; or as of ``Batch.add``.
    """
    if then is None and on_failure is not None:
        raise BadRequestError("submit_batch: on_failure is given; it is allowed with then only")
    batch = jobs if isinstance(jobs, Batch) and then is None else Batch(jobs)
    if then is not None:
        batch.then(then, on_failure=on_failure)
    return batch
