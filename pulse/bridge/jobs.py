"""The job that a message becomes. Pure."""

from __future__ import annotations

import base64
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID, uuid5

import msgspec

from pulse.app.call import Call
from pulse.bridge.broker import BrokerMessage
from pulse.client.requests import NewJob
from pulse.common.json_text import NotStorableError, dumps
from pulse.errors import BadRequestError
from pulse.ops.json_input import decoded_args
from pulse.protocol.fields import TraceParent

BRIDGED: Final = UUID("597269a2-6cd4-4130-b35d-a6cefb25dcf5")  # never changes: the ids of all bridged jobs come from it
_TRACE_PARENT: Final = "traceparent"


@dataclass(frozen=True, slots=True)
class BridgeOptions:
    """
    What becomes of messages.

    Attributes:
        handler: Name of the handler that takes them.
        topic: Queue of the jobs; None: the handler's.
        refused_handler: Takes messages that cannot be jobs of *handler*; None: they are terminated.
        as_message: The args are the message itself: subject, headers, data; else the JSON object that it consists of.
        max_waiting: Pull no more while so many jobs wait in the topic.
    """

    handler: str
    topic: str | None = None
    refused_handler: str | None = None
    as_message: bool = False
    max_waiting: int = 10_000


def job_of(message: BrokerMessage, options: BridgeOptions) -> NewJob:
    """
    The job of a message: each bridge makes the same one of it, at each delivery.

    Raises:
        BadRequestError: It is not a JSON object that can be the args of a job.
    """
    args = _json_of(_as_message(message)) if options.as_message else decoded_args(message.data)
    return _job(options.handler, message.key, args, message, topic=options.topic)


def refused_job(message: BrokerMessage, handler: str, reason: str) -> NewJob:
    """The job of a message that cannot be one of the bridge's handler."""
    args = _json_of({**_as_message(message), "position": message.position, "error": reason})
    return _job(handler, f"{message.key} at {message.position}", args, message)


def _job(handler: str, key: str, args: str, message: BrokerMessage, topic: str | None = None) -> NewJob:
    call: Call[Any] = Call(handler, args)
    job = NewJob(name=call, id=uuid5(uuid5(BRIDGED, handler), key), topic=topic)
    with suppress(msgspec.ValidationError):  # it has none, or a malformed one, which is no reason to refuse the message
        job["traceparent"] = msgspec.convert(message.headers.get(_TRACE_PARENT), TraceParent)
    return job


def _as_message(message: BrokerMessage) -> dict[str, object]:
    try:
        data = message.data.decode()
        dumps(data)
        is_binary = False
    except (UnicodeDecodeError, NotStorableError):  # the latter: PostgreSQL has no NUL characters
        data, is_binary = base64.b64encode(message.data).decode(), True
    return {"subject": message.subject, "headers": dict(message.headers), "data": data, "base64": is_binary}


def _json_of(value: dict[str, object]) -> str:
    try:
        return dumps(value)
    except NotStorableError as error:  # in a header
        raise BadRequestError(f"args are not storable: {error}") from None
