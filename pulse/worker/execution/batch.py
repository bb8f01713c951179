"""
Several attempts whose handler is called once for all of them. Each keeps its own lease, fence, context and outcome.

It looks like one attempt to what calls handlers and stops them. Its call is interrupted only when every job of it must
end: a job that is canceled alone sees it in its own context, and the others go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn
from uuid import UUID

from pulse.app.context import CURRENT, BatchJob, Context
from pulse.app.handler import Handler
from pulse.app.outcome import split
from pulse.app.parameters import BatchParameters
from pulse.app.workflows.link import Link
from pulse.errors import HandlerError, TransactionError
from pulse.logs import LOGGED
from pulse.worker.execution.attempt import Attempt, HandlerCall, decoded_args

__all__ = ["BatchCall", "Called", "called_by", "put_alone"]


class BatchCall(HandlerCall):
    """
    One call of a handler of batches.

    Args:
        attempts: One or more, all of the same handler.

    Attributes:
        attempts: The same.
    """

    def __init__(self, attempts: Sequence[Attempt]) -> None:
        super().__init__()
        self.attempts: Final = tuple(attempts)
        for one in self.attempts:
            one.join(self)
        self._unended = len(self.attempts)
        self._jobs: dict[Attempt, BatchJob[Any]] = {}  # what the handler gets
        self._refused: dict[Attempt, BaseException] = {}  # their args do not fit
        self._context: Context | None = None

    def leave(self) -> bool:
        """One of its attempts has ended, or does not start now; returns whether it was the last."""
        self._unended -= 1
        return not self._unended

    @property
    def is_stopped(self) -> bool:
        """Whether all that its handler got must end."""
        return all(one.stopped is not None for one in self._jobs)

    def begin(self, make_link: Callable[[Attempt], Link]) -> list[Attempt]:
        """Its handler is called now; returns whose jobs it gets: not those that were stopped before."""
        self.begun = True
        begun = [one for one in self.attempts if one.stopped is None]
        for one in begun:
            one.begin(make_link)
        CURRENT.set(self)
        LOGGED.set(self.attempts[0].job)
        return begun

    def arguments(self, handler: Handler, values: Mapping[Any, Any]) -> dict[str, Any] | None:
        """
        The arguments for the handler; None: there is no job for it. A job whose args do not fit fails alone.

        Args:
            values: Those of the app's lifespans, by type.
        """
        assert isinstance(handler.parameters, BatchParameters)  # noqa: S101 - a handler of batches has them
        for one in self.attempts:
            if one.begun:
                try:
                    self._jobs[one] = _job(one, handler)
                except Exception as error:  # noqa: BLE001 - any is that job's own
                    self._refused[one] = error
        if not self._jobs:
            return None
        provided = {name: values[kind] for name, kind in handler.provided.items()}
        return {handler.parameters.jobs: list(self._jobs.values()), **provided}

    def results(self, value: object) -> list[tuple[Attempt, object]]:
        """
        What each attempt has come to, for ``Attempt.ending``.

        Args:
            value: What the handler returned, or the exception that ended it.
        """
        values = iter(split(value, [job.id for job in self._jobs.values()]))
        found = {one: job.outcome_or(next(values)) for one, job in self._jobs.items()}
        found.update(self._refused)
        return [(one, found.get(one, asyncio.CancelledError())) for one in self.attempts]

    @property
    def context(self) -> Context:
        """For middleware and ``pulse.current``: the facts of its first job, and no way to act for only that one."""
        if self._context is None:
            first = next(iter(self._jobs)).context
            self._context = Context(
                job_id=first.job_id,
                attempt=first.attempt,
                name=first.name,
                topic=first.topic,
                deadline=first.deadline,
                occurrence=first.occurrence,
                previous=first.previous,
                args=first.args,
                link=_BatchLink(self, [one.context for one in self._jobs]),
                batch=tuple(self._jobs.values()),
            )
        return self._context


Called = Attempt | BatchCall


def put_alone(attempt: Attempt) -> None:
    """Its handler takes batches, and gets this one alone."""
    BatchCall([attempt])


def called_by(attempt: Attempt) -> Called:
    """What runs the handler of *attempt*: the attempt itself, or the batch that it is in."""
    return attempt.batch or attempt


def _job(attempt: Attempt, handler: Handler) -> BatchJob[Any]:
    raw = decoded_args(attempt, handler)
    attempt.keep_args(raw)
    args = handler.parameters.decoded(dict(raw))
    _ = attempt.context.previous  # here, and not in the handler, it shows whether it can be read
    return BatchJob(id=UUID(bytes=attempt.job.id), attempt=attempt.job.attempt, args=args, ctx=attempt.context)


class _BatchLink:
    """The link of a batch's context: says what is true of all jobs, and acts for none."""

    def __init__(self, batch: BatchCall, contexts: Sequence[Context]) -> None:
        self._batch = batch
        self._contexts = contexts

    @property
    def worker(self) -> str | None:
        return self._contexts[0].worker

    @property
    def fence(self) -> NoReturn:
        raise TransactionError("a batch has no transaction: each job of it has its own, job.ctx.transaction")

    @property
    def lease_lost(self) -> bool:
        return all(one.lease_lost for one in self._contexts)

    @property
    def cancelled(self) -> bool:
        return self._batch.is_stopped

    def progress(self, text: str) -> NoReturn:  # noqa: ARG002 - as Link has it
        raise HandlerError("a batch has no progress: each job of it has its own, job.ctx.progress")

    def checkpoint(self, text: str) -> NoReturn:  # noqa: ARG002 - as Link has it
        raise HandlerError("a batch has no checkpoint: each job of it has its own, job.ctx.checkpoint")

    def save(self, text: str) -> NoReturn:
        self.checkpoint(text)

    def parents(self, after: str | None) -> NoReturn:  # noqa: ARG002 - as Link has it
        raise HandlerError("a batch has no parents: each job of it has its own, job.ctx.parents")

    def next_signal(self, name: str, had: Sequence[int]) -> NoReturn:  # noqa: ARG002 - as Link has it
        raise HandlerError("a batch gets no signals")
