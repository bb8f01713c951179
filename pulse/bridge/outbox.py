"""
The way out: ends of jobs become messages of a broker.

The server hands out ends of its outbox, and forgets them when the broker has stored their messages. Whatever is lost
between the two comes again, under the same message id.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar
from urllib.parse import quote
from uuid import UUID

import anyio
import structlog

from pulse.bridge.broker import Publishing
from pulse.client.async_client import AsyncClient
from pulse.common.json_text import dumps
from pulse.errors import ConfigError, InternalError, NobodyAnswersError, UnavailableError
from pulse.protocol.answers import read
from pulse.protocol.workflows import JobEnd, OutboxAnswer

BATCH: Final = 100
LEASE_S: Final = 30.0  # then another publisher may have them; JetStream knows a message id for two minutes
IDLE_S: Final = 1.0  # between two looks at an empty outbox
AGAIN_S: Final = 2.0  # while the server or the broker is away
MOST_RESULT_BYTES: Final = 2 * 1024 * 1024  # that the server hands out
_ROOM_BYTES: Final = 32_768  # for all else in a message
_ERROR_CHARS: Final = 2000
_FIELD: Final = re.compile(r"\{(.*?)\}")
_FIELDS: Final = ("topic", "name", "status")
_SUBJECT: Final = re.compile(r"[^\s.*>]+(\.[^\s.*>]+)*")

AnswerT = TypeVar("AnswerT")
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SubjectTemplate:
    """
    Which subject the message of an end has.

    Attributes:
        text: With the fields {topic}, {name} and {status}.

    Raises:
        ConfigError: It has other fields, or makes no subject.
    """

    text: str

    def __post_init__(self) -> None:
        strange = [field for field in _FIELD.findall(self.text) if field not in _FIELDS]
        if strange or _SUBJECT.fullmatch(_FIELD.sub("x", self.text)) is None:
            raise ConfigError(
                f"--subject is {self.text!r:.100}: words with dots between them are allowed, without spaces, * and >;"
                " {topic}, {name} and {status} are filled in"
            )

    def of(self, end: JobEnd) -> str:
        """What would divide the subject, or match others, is percent-encoded."""
        values = {"topic": end.topic, "name": end.name, "status": end.status.lower()}
        return _FIELD.sub(lambda found: quote(values[found[1]], safe="").replace(".", "%2E"), self.text)


def message_id(end: JobEnd) -> str:
    """The same each time, and of no other end: a job that is retried may be canceled twice at the same attempt."""
    return f"{UUID(bytes=end.job)}.{end.attempt}.{end.status}.{end.ended_at}"


def message_data(end: JobEnd) -> bytes:
    """JSON; the result is in it as it is stored, each digit as it was written."""
    error = None if end.last_error is None else end.last_error[:_ERROR_CHARS]
    facts = {
        "id": str(UUID(bytes=end.job)), "name": end.name, "topic": end.topic, "status": end.status,
        "attempt": end.attempt, "ended_at": end.ended_at / 1e6, "last_error": error,
    }  # fmt: skip
    rest = '"result_omitted": true' if end.result_omitted else f'"result": {end.result or "null"}'
    return f"{dumps(facts)[:-1]}, {rest}}}".encode()


class Publisher:
    """
    Hands ends of jobs to a broker.

    Args:
        broker: Where they go to.
        client: Where they come from; its server may be away for a while.
        subject: Of their messages.
        stopping: Set when no more are to be taken.
    """

    def __init__(
        self, broker: Publishing, client: AsyncClient, subject: SubjectTemplate, *, stopping: anyio.Event
    ) -> None:
        self._broker = broker
        self._client = client
        self._subject = subject
        self._stopping = stopping
        self._published = 0

    async def run(self) -> None:
        """Publish until it is stopped."""
        while not self._stopping.is_set():
            ends = await self._take() if self._broker.is_there else []
            if not ends or not await self._publish(ends):
                await self._pause(IDLE_S)
        log.info("outbox_stopped", published=self._published)

    async def _take(self) -> list[JobEnd]:
        largest = min(max(self._broker.max_bytes - _ROOM_BYTES, 0), MOST_RESULT_BYTES)
        body = {"limit": BATCH, "lease_s": LEASE_S, "result_bytes": largest}
        answer = await self._answered(lambda: self._client.request("outbox.take", body, repeatable=True))
        return [] if answer is None else read(OutboxAnswer, answer).ends

    async def _publish(self, ends: list[JobEnd]) -> bool:
        """All at once; whether the broker has all of them."""
        stored: list[JobEnd] = []
        problems: list[str] = []

        async def publish(end: JobEnd) -> None:
            subject = self._subject.of(end)
            headers: dict[str, str] = {}
            if end.traceparent is not None:
                headers["traceparent"] = end.traceparent
            try:
                await self._broker.publish(subject, message_id(end), message_data(end), headers)
            except UnavailableError as error:
                problems.append(f"{subject}: {error.message}")
            else:
                stored.append(end)

        async with anyio.create_task_group() as tasks:
            for end in ends:
                tasks.start_soon(publish, end)
        if problems:
            log.warning("outbox_publish_failed", error=problems[0], messages=len(problems), again_s=LEASE_S)
        if stored:
            body = {"ends": [(end.job, end.ended_at) for end in stored]}
            await self._answered(lambda: self._client.request("outbox.done", body, repeatable=True))
            self._published += len(stored)
        return not problems

    async def _answered(self, ask: Callable[[], Awaitable[AnswerT]]) -> AnswerT | None:
        """The server's answer; None: it is to end, and nobody has answered."""
        while True:
            try:
                return await ask()
            except (NobodyAnswersError, UnavailableError, InternalError) as error:
                if self._stopping.is_set():
                    return None
                log.warning("outbox_waits", error=error.message, again_s=AGAIN_S)
            await self._pause(AGAIN_S)

    async def _pause(self, seconds: float) -> None:
        """For so long, or until it is to end."""
        with anyio.move_on_after(seconds):
            await self._stopping.wait()
