"""
The client of pulse for async code, on asyncio and trio.

Many tasks may use one client at a time: their requests share a connection, and one of the waiting tasks reads for all
(``Exchange``). So there is no background task to leave running, and no exception group around an error.

The blocking client is generated from this file (tools/generate_client.py): after a change here, ``make generate``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar, Unpack, cast, overload
from uuid import UUID

import anyio

from pulse.app.call import Call, HandlerRef
from pulse.client import control_requests, discovery, requests, schedule_requests
from pulse.client.async_transport import AsyncTransport
from pulse.client.batch import batch_of
from pulse.client.control_requests import AuditFilters, TopicOptions
from pulse.client.discovery import Remote
from pulse.client.records import Changed, JobPage, LimitPage, SchedulePage, Stack, Why
from pulse.client.requests import JobFilters, JobOptions, NewJob, Request
from pulse.client.schedule_requests import ScheduleChanges, ScheduleOptions
from pulse.client.sealing import open_answer, seal_request
from pulse.common.ids import JobId
from pulse.common.json_text import JsonValue
from pulse.common.wire_values import IdLike, TimeLike
from pulse.job import Job, Schedule
from pulse.limit import Limit, LimitOptions
from pulse.protocol.stats import Stats
from pulse.security.codec import Codec, checked

if TYPE_CHECKING:
    from pulse.sql.fallback import AsyncFallback

__all__ = ["AsyncClient", "connect"]

TIMEOUT_S: Final = 30.0  # one lease: longer than any restart of the control plane
AnswerT = TypeVar("AnswerT")
ResultT = TypeVar("ResultT")


def connect(
    socket: str | PathLike[str] | Remote | None = None,
    *,
    timeout_s: float = TIMEOUT_S,
    connect_timeout_s: float | None = None,
    when_down: str | None = None,
    user: str | None = None,
    password: str | None = None,
    behalf: str | None = None,
    codec: Codec | None = None,
) -> AsyncClient:
    """
    A client; use it as ``async with pulse.connect() as client``.

    Args:
        socket: The server's socket, or its address (tls://host:port); by default PULSE_CONNECT, or it is looked for.
        timeout_s: Longest wait for one answer, reconnects included, seconds.
        connect_timeout_s: Longest wait for a server that is not there, seconds; by default PULSE_CONNECT_TIMEOUT_S,
            else it fails at once.
        when_down: What to do while no server answers: "fail" at once; "wait" until *timeout_s* is over; or the DSN of
            the database, where submits go by SQL meanwhile, in the schema PULSE_SCHEMA. By default a restart of the
            server is waited for.
        user: Name to log in with, where the server asks for one.
        password: Its password.
        behalf: The person on whose behalf it asks, if not the user of the process: for the audit.
        codec: Encrypts args, decrypts args and results, see ``pulse.Codec``; the workers' app needs the same one.

    Example:
        ::

            async with pulse.connect() as client:
                job_id = await client.submit("resize", {"path": "a.png", "width": 64}, priority=5)
                job = await client.wait(job_id, timeout_s=60)

    """
    return AsyncClient(
        socket,
        timeout_s=timeout_s,
        connect_timeout_s=connect_timeout_s,
        when_down=when_down,
        user=user,
        password=password,
        behalf=behalf,
        codec=codec,
    )


class AsyncClient:
    """
    A connection to the server that is renewed when it breaks. Made by ``connect``.

    Every method raises ``NobodyAnswersError`` when no answer came in time, and the ``RefusedError`` that the server
    gave otherwise. A request whose answer was lost is repeated if that does no harm; a submit always is, since its
    jobs have their ids before they are sent.
    """

    def __init__(
        self,
        socket: str | PathLike[str] | Remote | None = None,
        *,
        codec: Codec | None = None,
        timeout_s: float = TIMEOUT_S,
        connect_timeout_s: float | None = None,
        when_down: str | None = None,
        user: str | None = None,
        password: str | None = None,
        behalf: str | None = None,
    ) -> None:
        hello = requests.hello(user, password, behalf)
        patience = discovery.patience(when_down, connect_timeout_s, timeout_s, os.environ)
        self._transport = AsyncTransport(socket, timeout_s, hello, patience=patience)
        self._codec = checked(codec)
        self._fallback: AsyncFallback | None = None
        if patience.dsn is not None:
            from pulse.sql.fallback import AsyncFallback

            self._fallback = AsyncFallback(patience.dsn, timeout_s, patience.schema)

    async def __aenter__(self) -> Self:
        if self._fallback is None:
            await self._transport.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connection: requests under way fail, and the next one opens a new connection."""
        await self._transport.aclose()
        if self._fallback is not None:
            await self._fallback.aclose()

    async def submit(
        self, handler: HandlerRef, args: Mapping[str, object] | None = None, **options: Unpack[JobOptions]
    ) -> JobId:
        """
        Enqueue one job; returns once it is committed.

        Args:
            handler: ``pulse.call(resize, "a.png", width=64)``; or the function that was registered, whose parameters
                judge *args*; or the handler's name.
            args: Its keyword arguments; anything that JSON can hold.
            options: See ``JobOptions``: topic, priority, delay_s, run_at, max_attempts, timeout_s, expires_in_s, id,
                unique ...

        Returns:
            The job's id. With ``unique`` it may be the id of the job that has the key: then its ``is_new`` is False.

        Raises:
            BadRequestError: A value is not allowed; the message says which.
            TooLargeError: The args are longer than a frame may be; nothing was sent.
            ConflictError: A job with this id exists, with another name, topic or args; or with this unique key, and
                ``on_conflict`` is "error".
            NotFoundError: A job of ``after`` is not there.

        """
        ids = await self.submit_many([{"name": handler, "args": args, **options}])
        return cast("JobId", ids[0])

    async def submit_many(self, jobs: Iterable[NewJob | Call[Any]]) -> list[UUID]:
        """
        Enqueue many jobs at once, all or none.

        Args:
            jobs: For each ``name``, ``args``, and the options of ``submit``; or a ``pulse.call(…)``.

        Returns:
            Their ids, in the same order; each is a ``JobId``, as of ``submit``.

        """
        request = self._sealed(requests.submit(jobs))
        if self._fallback is None:
            return await self._transport.ask(request)
        return await self._fallback.submit(request, self._transport.ask)

    async def submit_batch(
        self,
        jobs: Iterable[NewJob | Call[Any]],
        then: HandlerRef | None = None,
        *,
        on_failure: Literal["cancel", "run"] | None = None,
    ) -> list[UUID]:
        """
        Enqueue jobs that may wait for each other, all or none.

        Args:
            jobs: A ``pulse.Batch``; or as of ``submit_many``.
            then: A call to run when all of them have ended.
            on_failure: If one of them fails: "cancel" cancels that call, "run" runs it all the same.

        Returns:
            Their ids, in the same order; the last one is that of *then*.

        """
        return await self.submit_many(batch_of(jobs, then, on_failure))

    async def get(self, job_id: IdLike) -> Job:
        """One job with its history. NotFoundError: there is no such job (any more)."""
        return await self._ask(requests.get(job_id))

    async def wait(self, job_id: IdLike, timeout_s: float | None = None) -> Job:
        """
        Wait until a job is completed, canceled or dead.

        Args:
            job_id: The job.
            timeout_s: Longest wait, seconds; None: for ever.

        Returns:
            The job; look at ``status``, ``result``, ``last_error``.

        Raises:
            TimeoutError: It did not end in time.
            NotFoundError: There is no such job (any more).

        """
        started_s = time.monotonic()
        for pause_s in requests.poll_pauses_s():
            job = await self.get(job_id)
            if job.is_terminal:
                return job
            await anyio.sleep(requests.cut_pause_s(job, pause_s, time.monotonic() - started_s, timeout_s))
        raise AssertionError

    @overload
    async def result(self, job_id: IdLike, kind: type[ResultT], timeout_s: float | None = None) -> ResultT: ...
    @overload  # a union, for example, is no type[ResultT]
    async def result(self, job_id: IdLike, kind: object = Any, timeout_s: float | None = None) -> Any: ...  # noqa: ANN401
    async def result(self, job_id: IdLike, kind: object = Any, timeout_s: float | None = None) -> Any:
        """
        Wait for a job, and return its result.

        Args:
            job_id: The job.
            kind: The type of the result, as in ``Job.result_as``; by default it is as JSON has it.
            timeout_s: Longest wait, seconds; None: for ever.

        Raises:
            ResultError: The job ended without a result, or with one of another type.
            TimeoutError: It did not end in time.
            NotFoundError: There is no such job (any more).

        """
        return (await self.wait(job_id, timeout_s)).result_as(kind)

    async def jobs(self, **filters: Unpack[JobFilters]) -> JobPage:
        """A page of jobs, newest first; see ``JobFilters``: status, topic, error, older_s, limit, after ..."""
        return await self._ask(requests.list_jobs(filters))

    async def parents(self, job_id: IdLike, limit: int = 1000, after: str | None = None) -> JobPage:
        """A page of the jobs that a job waits for, or has waited for, by id; a page of long results is short."""
        return await self._ask(requests.parents(job_id, limit, after))

    async def signal(self, job_id: IdLike, name: str, payload: object = None, *, key: str | None = None) -> bool:
        """Tell a job what its handler waits for (``ctx.wait_for``); whether that is new: the same *key* counts once."""
        return await self._ask(requests.signal(job_id, name, payload, key))

    async def cancel(self, *job_ids: IdLike, with_dependents: bool = False) -> Changed:
        """Cancel jobs, *with_dependents* all that wait for them, too: what waits never starts, what runs is stopped."""
        return await self._ask(requests.cancel(job_ids, with_dependents=with_dependents))

    async def retry(self, *job_ids: IdLike, with_dependents: bool = False) -> Changed:
        """Run ended jobs again with a fresh budget, *with_dependents* also those that were canceled because of them."""
        return await self._ask(requests.retry(job_ids, with_dependents=with_dependents))

    async def delete(self, *job_ids: IdLike) -> Changed:
        """Remove completed, canceled or dead jobs, with their history."""
        return await self._ask(requests.delete(job_ids))

    async def change(self, *job_ids: IdLike, topic: str | None = None, priority: int | None = None) -> Changed:
        """Move waiting jobs to another topic or priority; due jobs go to the end of the new queue."""
        return await self._ask(requests.change(job_ids, topic, priority))

    async def audit(
        self, limit: int = 50, after: str | None = None, **filters: Unpack[AuditFilters]
    ) -> dict[str, JsonValue]:
        """What operators did, newest first; see ``AuditFilters``: action, topic, since_s."""
        return await self._ask(control_requests.list_actions(limit, after, filters))

    async def stack(self, job_id: IdLike) -> Stack:
        """
        The Python stacks of all threads of the process that runs a job.

        Raises:
            ConflictError: No worker here holds the job.
            UnavailableError: Its worker has no pool parent that could take them, or is stopped.

        """
        return await self._ask(requests.stack(job_id))

    async def why(self, job_id: IdLike) -> Why:
        """Why a job does not run, the decisive reason first."""
        return await self._ask(requests.why(job_id))

    async def schedules_create(
        self, handler: HandlerRef, args: Mapping[str, object] | None = None, **options: Unpack[ScheduleOptions]
    ) -> Schedule:
        """Make a schedule; see ``ScheduleOptions``: exactly one of cron, every_s and run_at."""
        return await self._ask(self._sealed(schedule_requests.create_schedule(handler, args, options)))

    async def schedules_get(self, schedule_id: IdLike) -> Schedule:
        """One schedule."""
        return await self._ask(schedule_requests.get_schedule(schedule_id))

    async def schedules_list(self, limit: int = 100, after: str | None = None) -> SchedulePage:
        """A page of schedules, newest first."""
        return await self._ask(schedule_requests.list_schedules(limit, after))

    async def schedules_update(self, schedule_id: IdLike, **changes: Unpack[ScheduleChanges]) -> Schedule:
        """Change a schedule; see ``ScheduleChanges``. Its cursor stays unless its times change."""
        return await self._ask(self._sealed(schedule_requests.update_schedule(schedule_id, changes)))

    async def schedules_pause(self, schedule_id: IdLike) -> Schedule:
        """Pause a schedule: it fires nothing until it is resumed."""
        return await self._ask(schedule_requests.pause_schedule(schedule_id))

    async def schedules_resume(self, schedule_id: IdLike) -> Schedule:
        """Resume a schedule; its ``catch_up`` decides about missed occurrences."""
        return await self._ask(schedule_requests.resume_schedule(schedule_id))

    async def schedules_trigger(self, schedule_id: IdLike) -> UUID:
        """Submit a job of a schedule now, beside its occurrences; returns its id."""
        return await self._ask(schedule_requests.trigger_schedule(schedule_id))

    async def schedules_preview(self, schedule_id: IdLike, count: int = 10) -> list[datetime]:
        """When a schedule occurs next, in its time zone."""
        return await self._ask(schedule_requests.preview_schedule(schedule_id, count))

    async def schedules_delete(self, schedule_id: IdLike) -> None:
        """Delete a schedule; jobs that it fired stay."""
        await self._ask(schedule_requests.delete_schedule(schedule_id))

    async def pause(
        self,
        topic: str = "",
        reason: str | None = None,
        *,
        for_s: float | None = None,
        until: TimeLike | None = None,
    ) -> dict[str, JsonValue]:
        """
        Stop dispatching jobs of *topic*, '' for all; running ones go on.

        Args:
            topic: Which.
            reason: Why.
            for_s: The pause ends by itself after so many seconds.
            until: Or then: an aware datetime, or Unix seconds.

        """
        return await self._ask(control_requests.pause(topic, reason, for_s=for_s, until=until))

    async def resume(self, topic: str = "") -> dict[str, JsonValue]:
        """Dispatch again."""
        return await self._ask(control_requests.resume(topic))

    async def topics_list(self, limit: int = 100, after: str | None = None) -> dict[str, JsonValue]:
        """A page of policies, by topic; '' is the server."""
        return await self._ask(control_requests.list_topics(limit, after))

    async def topics_get(self, topic: str) -> dict[str, JsonValue]:
        """The policy of *topic*: the value in force of each option and its source; and what handlers declare."""
        return await self._ask(control_requests.get_topic(topic))

    async def topics_groups(self, topic: str, limit: int = 20) -> dict[str, JsonValue]:
        """The groups of *topic* with jobs that wait, at most *limit*: those with the most due ones first."""
        return await self._ask(control_requests.topic_groups(topic, limit))

    async def topics_set(self, topic: str, **options: Unpack[TopicOptions]) -> dict[str, JsonValue]:
        """Set options of *topic*, see ``TopicOptions``; returns its policy. In force on all hosts within a second."""
        return await self._ask(control_requests.set_topic(topic, options))

    async def topics_unset(self, topic: str, *options: str) -> dict[str, JsonValue]:
        """Unset *options* of *topic*, by default all; returns its policy."""
        return await self._ask(control_requests.unset_topic(topic, options))

    async def limits(self, limit: int = 100, after: str | None = None, *, name: str | None = None) -> LimitPage:
        """A page of limits and of groups that differ; or *name*, with its groups."""
        return await self._ask(control_requests.list_limits(limit, after, name))

    async def set_limit(self, name: str, *, group_key: str | None = None, **options: Unpack[LimitOptions]) -> Limit:
        """Set options of a limit, or what differs for *group_key*, see ``LimitOptions``; on all hosts from now on."""
        return await self._ask(control_requests.set_limit(name, group_key, options))

    async def unset_limit(self, name: str, *, group_key: str | None = None) -> None:
        """Remove a limit, or only what differs for *group_key*. NotFoundError: there is none."""
        await self._ask(control_requests.unset_limit(name, group_key))

    async def dispatch_status(self) -> dict[str, JsonValue]:
        """What is paused, and why."""
        return await self._ask(control_requests.simple("dispatch.status"))

    async def workers(self) -> JsonValue:
        """The handler processes that are connected."""
        answer = await self._ask(control_requests.simple("workers.list"))
        return answer.get("workers")

    async def drain_worker(self, identity: str) -> None:
        """Let a handler process, by its ``identity`` of ``workers``, finish its jobs and end; its pool replaces it."""
        await self._ask(control_requests.drain_worker(identity))

    async def status(self) -> dict[str, JsonValue]:
        """The state of the whole system."""
        return await self._ask(control_requests.simple("status"))

    async def stats(self, *, topics: int = 100, history_s: float = 3600.0) -> Stats:
        """Waiting jobs, rates and durations: of so many topics, and since when."""
        return await self._ask(control_requests.stats(topics, history_s))

    async def ping(self) -> float:
        """Seconds until the server answered."""
        started_s = time.monotonic()
        await self._ask(control_requests.simple("ping"))
        return time.monotonic() - started_s

    async def request(
        self, kind: str, body: Mapping[str, object] | None = None, *, repeatable: bool = False
    ) -> dict[str, object]:
        """
        Send any request of the protocol, in the form of the wire.

        Args:
            kind: Kind of the frame.
            body: Its body: ids as 16 bytes, args as JSON text.
            repeatable: Whether it may be sent again when the answer was lost.

        Returns:
            The body of the ``ok`` frame as it came.

        """
        return await self._ask(requests.raw(kind, body, repeatable=repeatable))

    def _sealed(self, request: Request[AnswerT]) -> Request[AnswerT]:
        return request if self._codec is None else seal_request(self._codec, request)

    async def _ask(self, request: Request[AnswerT]) -> AnswerT:
        answer = await self._transport.ask(request)
        return answer if self._codec is None else open_answer(self._codec, answer)
