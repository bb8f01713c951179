"""
``pulse.Client`` and ``pulse.AsyncClient`` over jobs in memory, for code under test that takes a client.

They are the clients themselves, with another transport: options, arguments and answers pass the same checks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, TypeVar, cast
from uuid import UUID

from pulse.client.async_client import AsyncClient
from pulse.client.async_transport import AsyncTransport
from pulse.client.client import Client
from pulse.client.requests import Request
from pulse.client.transport import Transport
from pulse.common.wire_values import IdLike, as_id
from pulse.errors import BadRequestError, InlineError, ProtocolError, PulseError
from pulse.job import Job
from pulse.protocol import MAX_FRAME_BYTES, FrameReader, Submit, decode_body
from pulse.security.codec import Codec
from pulse.testing.memory import MemoryQueue

__all__ = ["InlineAsyncClient", "InlineClient"]

AnswerT = TypeVar("AnswerT")


class Runs(Protocol):
    """Runs a job to its end."""

    def run_job(self, job_id: UUID) -> Job:
        """In this thread."""
        ...

    async def run_job_async(self, job_id: UUID) -> Job:
        """In this event loop."""
        ...


class InlineClient(Client):
    """``pulse_inline.client``; to wait for a job runs it."""

    def __init__(self, queue: MemoryQueue, runs: Runs, codec: Codec | None) -> None:
        super().__init__(codec=codec, connect_timeout_s=0.0)  # whatever the environment says
        self._transport = _InlineTransport(queue)
        self._runs = runs

    def wait(self, job_id: IdLike, timeout_s: float | None = None) -> Job:
        """Run it to its end, without the waits between tries."""
        del timeout_s
        self._runs.run_job(UUID(bytes=as_id(job_id)))
        return self.get(job_id)


class InlineAsyncClient(AsyncClient):
    """``pulse_inline.async_client``; to wait for a job runs it."""

    def __init__(self, queue: MemoryQueue, runs: Runs, codec: Codec | None) -> None:
        super().__init__(codec=codec, connect_timeout_s=0.0)
        self._transport = _InlineAsyncTransport(queue)
        self._runs = runs

    async def wait(self, job_id: IdLike, timeout_s: float | None = None) -> Job:
        """Run it to its end, without the waits between tries."""
        del timeout_s
        await self._runs.run_job_async(UUID(bytes=as_id(job_id)))
        return await self.get(job_id)


class _InlineTransport(Transport):
    def __init__(self, queue: MemoryQueue) -> None:
        self._queue = queue

    def open(self) -> None: ...

    def close(self) -> None: ...

    def ask(self, request: Request[AnswerT], within_s: float | None = None) -> AnswerT:
        del within_s
        return _answered(self._queue, request)


class _InlineAsyncTransport(AsyncTransport):
    def __init__(self, queue: MemoryQueue) -> None:
        self._queue = queue

    async def open(self) -> None: ...

    async def aclose(self) -> None: ...

    async def ask(self, request: Request[AnswerT], within_s: float | None = None) -> AnswerT:
        del within_s
        return _answered(self._queue, request)


def _answered(queue: MemoryQueue, request: Request[AnswerT]) -> AnswerT:
    answer = _ANSWERS.get(request.kind)
    if answer is None:
        raise InlineError(f"{request.kind} needs a server: the fixture pulse_server has one, pulse_inline has none")
    (frame,) = FrameReader(MAX_FRAME_BYTES).feed(request.encode(1, MAX_FRAME_BYTES))  # refuses what the wire refuses
    if request.kind != "submit":
        return request.understood(answer(queue, request.body))
    try:
        body = decode_body(Submit, frame)
    except ProtocolError as error:
        raise BadRequestError(error.message) from None
    return request.understood({"ids": queue.submit(body.jobs), "unhandled": []})


def _get(queue: MemoryQueue, body: Mapping[str, object]) -> dict[str, object]:
    return queue.job(cast("bytes", body["id"])).answer()


def _parents(queue: MemoryQueue, body: Mapping[str, object]) -> dict[str, object]:
    return queue.parents(queue.job(cast("bytes", body["id"])))


def _cancel(queue: MemoryQueue, body: Mapping[str, object]) -> dict[str, object]:
    done: list[bytes] = []
    refused: list[tuple[bytes, str]] = []
    for job_id in cast("list[bytes]", body["ids"]):
        try:
            is_done = queue.cancel(queue.job(job_id))
        except PulseError as error:
            refused.append((job_id, error.code))
        else:
            if is_done:
                done.append(job_id)
            else:
                refused.append((job_id, "invalid_transition"))
    return {"done": done, "refused": refused}


def _signal(queue: MemoryQueue, body: Mapping[str, object]) -> dict[str, object]:
    return {"new": queue.signal(queue.job(cast("bytes", body["id"])), body)}


def _nothing(_queue: MemoryQueue, _body: Mapping[str, object]) -> dict[str, object]:
    return {}


_ANSWERS: Final[Mapping[str, Callable[[MemoryQueue, Mapping[str, Any]], dict[str, object]]]] = {
    "submit": _nothing,
    "jobs.get": _get,
    "jobs.parents": _parents,
    "jobs.cancel": _cancel,
    "jobs.signal": _signal,
    "ping": _nothing,
}
