"""
The client of pulse for code without an event loop: the blocking pump, and ``pulse.Client`` around it.

It asks the same requests and reads the same answers as the async client; only the waiting is its own. Threads may share
a client: they take turns.
"""

from __future__ import annotations

import contextlib
import os
import socket as sockets
import threading
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from datetime import datetime
from os import PathLike
from types import TracebackType
from typing import Any, Final, Self, TypeVar, Unpack
from uuid import UUID

from pulse.client import explanation, operator_requests, records, requests, schedule_requests, stats
from pulse.client.discovery import (
    TLS,
    ConnectionLostError,
    Refusal,
    Remote,
    Server,
    Target,
    find_servers,
    nobody_answers,
    reason_of,
    why_not,
)
from pulse.client.explanation import Why
from pulse.client.operator_requests import AuditFilters
from pulse.client.records import Changed, JobPage, SchedulePage, Stack
from pulse.client.requests import HandlerRef, JobFilters, JobOptions, NewJob, Request, TopicOptions
from pulse.client.schedule_requests import ScheduleChanges, ScheduleOptions
from pulse.client.sealing import open_answer, seal_request
from pulse.client.stats import Stats
from pulse.common.json_text import JsonValue
from pulse.common.wire_values import IdLike, TimeLike
from pulse.errors import NobodyAnswersError, ProtocolError
from pulse.job import Job, Schedule
from pulse.protocol import MAX_FRAME_BYTES, Frame, FrameReader, encode
from pulse.security.codec import Codec, checked

__all__ = ["Client"]

TIMEOUT_S: Final = 30.0  # one lease: longer than any restart of the control plane
_RECEIVE_BYTES: Final = 64 * 1024
AnswerT = TypeVar("AnswerT")


class Client:
    """
    A connection to the server that is renewed when it breaks; use it as ``with pulse.Client() as client``.

    Methods and errors are those of the async client, see ``pulse.connect``.

    Args:
        socket: The server's socket, or its address (tls://host:port); by default PULSE_CONNECT, or it is looked for.
        timeout_s: Longest wait for one answer, reconnects included, seconds.
        user: Name to log in with, where the server asks for one.
        password: Its password.
        behalf: The person for whom it asks, where that is another one than the user of the process: for the audit.
        codec: Hides args, and reads args and results, see ``pulse.Codec``; the app of the workers has the same.

    Example:
        ::

            with pulse.Client() as client:
                job_id = client.submit(resize, {"path": "a.png", "width": 64})
                job = client.wait(job_id, timeout_s=60)

    """

    def __init__(
        self,
        socket: str | PathLike[str] | Remote | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        user: str | None = None,
        password: str | None = None,
        behalf: str | None = None,
        codec: Codec | None = None,
    ) -> None:
        self._socket = socket
        self._timeout_s = timeout_s
        self._hello = requests.hello(user, password, behalf)
        self._codec = checked(codec)
        self._wire: _Wire | None = None
        self._turn = threading.Lock()

    def __enter__(self) -> Self:
        with self._turn:
            self._connected(time.monotonic() + self._timeout_s)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()

    def submit(
        self, handler: HandlerRef, args: Mapping[str, object] | None = None, **options: Unpack[JobOptions]
    ) -> UUID:
        """Enqueue one job; returns its id once it is committed."""
        return self.submit_many([{"name": handler, "args": args, **options}])[0]

    def submit_many(self, jobs: Iterable[NewJob]) -> list[UUID]:
        """Enqueue many jobs at once, all or none; returns their ids in the same order."""
        return self._ask(seal_request(self._codec, requests.submit(jobs)))

    def get(self, job_id: IdLike) -> Job:
        """One job with its history."""
        return self._ask(requests.get(job_id))

    def wait(self, job_id: IdLike, timeout_s: float | None = None) -> Job:
        """Wait until a job is completed, canceled or dead; TimeoutError when it is not in time."""
        started_s = time.monotonic()
        for pause_s in requests.poll_pauses_s():
            job = self.get(job_id)
            if job.is_terminal:
                return job
            time.sleep(requests.cut_pause_s(job, pause_s, time.monotonic() - started_s, timeout_s))
        raise AssertionError

    def jobs(self, **filters: Unpack[JobFilters]) -> JobPage:
        """A page of jobs, newest first; see ``JobFilters``: status, topic, error, older_s, limit, after ..."""
        return self._ask(requests.list_jobs(filters))

    def cancel(self, *job_ids: IdLike) -> Changed:
        """Cancel jobs: those that wait never start, those that run are stopped."""
        return self._ask(requests.cancel(job_ids))

    def retry(self, *job_ids: IdLike) -> Changed:
        """Start completed, canceled or dead jobs anew, with a fresh budget."""
        return self._ask(requests.retry(job_ids))

    def delete(self, *job_ids: IdLike) -> Changed:
        """Remove completed, canceled or dead jobs, with their history."""
        return self._ask(operator_requests.delete(job_ids))

    def change(self, *job_ids: IdLike, topic: str | None = None, priority: int | None = None) -> Changed:
        """Move jobs that wait to another topic or priority; what is due waits at the end there."""
        return self._ask(operator_requests.change(job_ids, topic, priority))

    def audit(self, limit: int = 50, after: str | None = None, **filters: Unpack[AuditFilters]) -> dict[str, JsonValue]:
        """What operators did, newest first; see ``AuditFilters``: action, topic, since_s."""
        return self._ask(operator_requests.list_actions(limit, after, filters))

    def stack(self, job_id: IdLike) -> Stack:
        """
        What the process that runs a job is doing now: the Python stack of each of its threads.

        Raises:
            ConflictError: No worker here holds the job.
            UnavailableError: Its worker has no pool parent that could look, or is stopped.

        """
        return self._ask(requests.stack(job_id))

    def why(self, job_id: IdLike) -> Why:
        """Why a job does not run: what is in its way, the decisive reason first."""
        return self._ask(explanation.ask(job_id))

    def schedules_create(
        self, handler: HandlerRef, args: Mapping[str, object] | None = None, **options: Unpack[ScheduleOptions]
    ) -> Schedule:
        """Make a schedule; see ``ScheduleOptions``: exactly one of cron, every_s and run_at."""
        return self._ask(seal_request(self._codec, schedule_requests.create_schedule(handler, args, options)))

    def schedules_get(self, schedule_id: IdLike) -> Schedule:
        """One schedule."""
        return self._ask(schedule_requests.get_schedule(schedule_id))

    def schedules_list(self, limit: int = 100, after: str | None = None) -> SchedulePage:
        """A page of schedules, newest first."""
        return self._ask(schedule_requests.list_schedules(limit, after))

    def schedules_update(self, schedule_id: IdLike, **changes: Unpack[ScheduleChanges]) -> Schedule:
        """Change a schedule; see ``ScheduleChanges``. Its cursor stays unless when it occurs is changed."""
        return self._ask(seal_request(self._codec, schedule_requests.update_schedule(schedule_id, changes)))

    def schedules_pause(self, schedule_id: IdLike) -> Schedule:
        """Let a schedule fire nothing until it is resumed."""
        return self._ask(schedule_requests.pause_schedule(schedule_id))

    def schedules_resume(self, schedule_id: IdLike) -> Schedule:
        """Let a schedule go on; of what was missed meanwhile, its ``catch_up`` decides."""
        return self._ask(schedule_requests.resume_schedule(schedule_id))

    def schedules_trigger(self, schedule_id: IdLike) -> UUID:
        """A job of a schedule now, beside its occurrences; returns its id."""
        return self._ask(schedule_requests.trigger_schedule(schedule_id))

    def schedules_preview(self, schedule_id: IdLike, count: int = 10) -> list[datetime]:
        """When a schedule occurs next, in its time zone."""
        return self._ask(schedule_requests.preview_schedule(schedule_id, count))

    def schedules_delete(self, schedule_id: IdLike) -> None:
        """Delete a schedule; jobs that it fired stay."""
        self._ask(schedule_requests.delete_schedule(schedule_id))

    def pause(
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
        return self._ask(requests.pause(topic, reason, for_s=for_s, until=until))

    def resume(self, topic: str = "") -> dict[str, JsonValue]:
        """Dispatch again."""
        return self._ask(requests.resume(topic))

    def topics_list(self, limit: int = 100, after: str | None = None) -> dict[str, JsonValue]:
        """A page of what is set for topics, by topic; '' is the server."""
        return self._ask(requests.list_topics(limit, after))

    def topics_get(self, topic: str) -> dict[str, JsonValue]:
        """The policy of *topic*: of each option the value that counts and its source; and what handlers declare."""
        return self._ask(requests.get_topic(topic))

    def topics_set(self, topic: str, **options: Unpack[TopicOptions]) -> dict[str, JsonValue]:
        """Set options of *topic*, see ``TopicOptions``; returns its policy. In force on all hosts within a second."""
        return self._ask(requests.set_topic(topic, options))

    def topics_unset(self, topic: str, *options: str) -> dict[str, JsonValue]:
        """Unset *options* of *topic*, all without any; returns its policy."""
        return self._ask(requests.unset_topic(topic, options))

    def dispatch_status(self) -> dict[str, JsonValue]:
        """What is paused, and why."""
        return self._ask(requests.simple("dispatch.status"))

    def workers(self) -> JsonValue:
        """The handler processes that are connected."""
        return self._ask(requests.simple("workers.list")).get("workers")

    def status(self) -> dict[str, JsonValue]:
        """How the whole is doing."""
        return self._ask(requests.simple("status"))

    def stats(self, *, topics: int = 100, history_s: float = 3600.0) -> Stats:
        """What waits, what goes through, and how long it takes: of so many topics, and of how long ago."""
        return self._ask(stats.ask(topics, history_s))

    def ping(self) -> float:
        """Seconds until the server answered."""
        started_s = time.monotonic()
        self._ask(requests.simple("ping"))
        return time.monotonic() - started_s

    def request(
        self, kind: str, body: Mapping[str, object] | None = None, *, repeatable: bool = False
    ) -> dict[str, object]:
        """Ask anything that the protocol knows, in the words of the wire; the answer's body as it came."""
        return self._ask(requests.raw(kind, body, repeatable=repeatable))

    def _ask(self, request: Request[AnswerT]) -> AnswerT:
        deadline_s = time.monotonic() + self._timeout_s
        with self._turn:
            for pause_s in requests.poll_pauses_s():
                wire = self._connected(deadline_s)
                try:
                    answer = request.understood(wire.ask(request, deadline_s))
                    return answer if self._codec is None else open_answer(self._codec, answer)
                except _OverdueError:
                    break
                except ConnectionLostError:
                    if not request.repeatable:
                        raise requests.answer_lost(request.kind) from None
                    time.sleep(_pause_s(pause_s, deadline_s))
        raise NobodyAnswersError(f"{request.kind}: no answer within {self._timeout_s:g} s")

    def _connected(self, deadline_s: float) -> _Wire:
        """The connection; a broken one is renewed until the deadline, but the first is tried only once."""
        old = self._wire
        if old is not None and not old.broken and old.pid == os.getpid():
            return old
        for pause_s in requests.poll_pauses_s():
            try:
                self._wire = _dial(find_servers(self._socket), self._hello, deadline_s)
            except NobodyAnswersError:
                if old is None or time.monotonic() >= deadline_s:
                    raise
                time.sleep(_pause_s(pause_s, deadline_s))
            else:
                return self._wire
        raise AssertionError


class _OverdueError(Exception):
    """The deadline has passed."""


class _Wire:
    """Frames over a blocking socket, one question at a time."""

    def __init__(self, connection: sockets.socket) -> None:
        self._connection = connection
        self._reader = FrameReader(MAX_FRAME_BYTES)
        self._number = 0
        self.max_frame_bytes = MAX_FRAME_BYTES
        self.broken = False
        self.pid = os.getpid()  # a fork inherits the socket; two processes must not speak on it

    def ask(self, request: Request[Any], deadline_s: float) -> dict[str, object]:
        self._number += 1
        number = self._number
        self.send(request.encode(number, self.max_frame_bytes), deadline_s)
        while True:
            for frame in self.receive(deadline_s):
                if frame.request == number or (frame.request is None and frame.kind == "error"):
                    return records.body_of(frame)

    def send(self, data: bytes, deadline_s: float) -> None:
        with self._breaking():
            self._connection.settimeout(_left_s(deadline_s))
            self._connection.sendall(data)

    def receive(self, deadline_s: float) -> list[Frame]:
        with self._breaking():
            while True:
                self._reader.check()
                self._connection.settimeout(_left_s(deadline_s))
                data = self._connection.recv(_RECEIVE_BYTES)
                if not data:
                    raise ConnectionLostError("the other side closed the connection")
                if frames := self._reader.take(data):
                    return frames

    def close(self) -> None:
        self.broken = True
        self._connection.close()

    @contextlib.contextmanager
    def _breaking(self) -> Generator[None, None, None]:
        """Any failure ends the connection: a part of a frame may have been sent, or the answer may come too late."""
        try:
            yield
        except TimeoutError:
            self.close()
            raise _OverdueError from None
        except (ConnectionLostError, ProtocolError):
            self.close()
            raise
        except OSError as error:
            self.close()
            raise ConnectionLostError(f"the connection broke: {reason_of(error)}") from None
        except BaseException:
            self.close()
            raise


def _dial(targets: Sequence[Server], hello: Mapping[str, object], deadline_s: float) -> _Wire:
    refusals: list[Refusal] = []
    for target in targets:
        reason = why_not(target)
        if reason is None:
            try:
                connection = _connect(target, _left_s(deadline_s))
            except OSError as error:
                reason = reason_of(error)
            else:
                return _introduce(_Wire(connection), target, hello, deadline_s)
        refusals.append(Refusal(target, reason))
    raise nobody_answers(refusals)


def _connect(target: Server, timeout_s: float) -> sockets.socket:
    """
    A connection.

    Raises:
        OSError: Nobody accepts, not in time, or not as who was named.

    """
    with contextlib.ExitStack() as stack:
        if isinstance(target, Target):
            connection = stack.enter_context(sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM))
            connection.settimeout(timeout_s)
            connection.connect(str(target.path))
            stack.pop_all()
            return connection
        connection = stack.enter_context(sockets.create_connection((target.host, target.port), timeout_s))
        connection.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY, 1)
        if target.scheme == TLS:
            from pulse.security import tls

            context = tls.client_context(target.login.ca, target.login.cert, target.login.key)
            connection = stack.enter_context(context.wrap_socket(connection, server_hostname=target.host))
        stack.pop_all()
        return connection


def _introduce(wire: _Wire, target: Server, hello: Mapping[str, object], deadline_s: float) -> _Wire:
    if isinstance(target, Remote):
        hello = {**target.login.hello, **hello}
    try:
        wire.send(encode("hello", 0, hello), deadline_s)
        welcome = records.welcome_of(wire.receive(deadline_s)[0])
    except _OverdueError:
        raise nobody_answers([Refusal(target, "no answer to hello")]) from None
    except ConnectionLostError as error:
        raise nobody_answers([Refusal(target, error.message)]) from None
    except BaseException:
        wire.close()
        raise
    wire.max_frame_bytes = welcome.max_frame_bytes
    return wire


def _left_s(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def _pause_s(pause_s: float, deadline_s: float) -> float:
    return max(0.0, min(pause_s, deadline_s - time.monotonic()))
