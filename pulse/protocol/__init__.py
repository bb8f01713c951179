"""
The wire, version 1: bytes in, typed messages out; messages in, bytes out. No IO, no clock, no logging.

Theory of operation
-------------------
A frame is a 4-byte big-endian length N (1 ... max_frame_bytes) and N bytes of MessagePack: the array
``[kind: str, request: uint or nil, body: map with str keys]``. ``docs/protocol.md`` is the page for people; the Structs
here are the same for machines, one per kind: ``messages`` has those between worker and server, ``requests`` those of
clients, ``fields`` the types of their fields. ``frames`` turns them into bytes and back.

Two libraries share the format. msgspec encodes what we send, in a third of msgpack's time; msgpack packs what msgspec
refuses, which is subclasses of str, int, float and bytes. msgspec decodes what we receive, because it decodes *into a
type*: lengths, ranges and key types are checked while it reads, a nested bomb or a million empty maps in an unknown key
are skipped without an object being made, and what does not fit is one exception. Keys that the type does not know and
array elements behind the known ones are skipped too, which is the contract's rule for growth.

A frame is decoded in two steps: the envelope (kind, request, raw body), then the body by the kind's own type. So a body
that is wrong is answered with its request's number and the connection goes on, while a broken envelope is answered
with nil and ends the connection: after it, the start of the next frame is unknown.

Who may send what, and when, is the table ``ALLOWED`` in ``kinds``: role -> kinds. A missing key is the error.

- answers: the server's answers as typed records
- bus: the frames and hints between the supervisor and its actors, and their limits
- fields: types of fields, with their lengths and ranges
- frames: bytes to frames and back
- kinds: which peer may send which kind of frame, and the type of its body
- limits: the answers about limits of jobs
- messages: the messages between worker and dispatcher
- requests: the body of each request of a client
- roles: which role each kind of request needs
- schedules: the answers about schedules
- stats: the answer to `stats`: counts, rates and durations by topic
- workflows: answers about jobs that wait for other jobs, or for signals
"""

from __future__ import annotations

from typing import Final

from pulse.protocol.fields import MAX_ATTEMPT, MAX_SECONDS, MAX_STACK_CHARS
from pulse.protocol.frames import (
    CLAIM_MAX_BYTES,
    HELLO_MAX_FRAME_BYTES,
    MAX_FRAME_BYTES,
    BrokenStreamError,
    Frame,
    FrameReader,
    decode_any,
    decode_body,
    encode,
    encode_error,
)
from pulse.protocol.kinds import ALLOWED, ANSWERS, CLIENT_KINDS, SUPERVISOR_KINDS, WORKER_KINDS
from pulse.protocol.messages import (
    Assign,
    Assignment,
    Beat,
    BeatAnswer,
    Capacity,
    Checkpoint,
    Drain,
    ErrorBody,
    HandlerInfo,
    Heartbeat,
    Hello,
    JobRef,
    Report,
    Reported,
    Result,
    ResultExtra,
    Role,
    StackAnswer,
    Started,
    Stop,
    StopOrder,
    TakeStack,
    Welcome,
    check_result,
)
from pulse.protocol.requests import (
    ActorRequest,
    AuditList,
    ById,
    ByIds,
    DispatchGate,
    DrainRequest,
    HandlerSignal,
    JobsChange,
    JobsCount,
    JobsErrors,
    JobsFind,
    JobsList,
    JobsParents,
    JobsSignal,
    JobsWithDependents,
    LimitDeclared,
    LimitsDeclare,
    LimitSet,
    LimitsList,
    LimitUnset,
    LogsRequest,
    NoBody,
    OutboxDone,
    OutboxTake,
    ScheduleCreate,
    ScheduleDeclared,
    SchedulePreview,
    SchedulesDeclare,
    SchedulesFind,
    SchedulesList,
    ScheduleTrigger,
    ScheduleUpdate,
    StatsRequest,
    Submit,
    SubmittedJob,
    TopicGet,
    TopicGroups,
    TopicSet,
    TopicsList,
    TopicUnset,
    WorkerRequest,
)

__all__ = [
    "ALLOWED",
    "ANSWERS",
    "CLAIM_MAX_BYTES",
    "CLIENT_KINDS",
    "HELLO_MAX_FRAME_BYTES",
    "MAX_ATTEMPT",
    "MAX_FRAME_BYTES",
    "MAX_SECONDS",
    "MAX_STACK_CHARS",
    "PROTOCOL_VERSION",
    "SUPERVISOR_KINDS",
    "WORKER_KINDS",
    "ActorRequest",
    "Assign",
    "Assignment",
    "AuditList",
    "Beat",
    "BeatAnswer",
    "BrokenStreamError",
    "ById",
    "ByIds",
    "Capacity",
    "Checkpoint",
    "DispatchGate",
    "Drain",
    "DrainRequest",
    "ErrorBody",
    "Frame",
    "FrameReader",
    "HandlerInfo",
    "HandlerSignal",
    "Heartbeat",
    "Hello",
    "JobRef",
    "JobsChange",
    "JobsCount",
    "JobsErrors",
    "JobsFind",
    "JobsList",
    "JobsParents",
    "JobsSignal",
    "JobsWithDependents",
    "LimitDeclared",
    "LimitSet",
    "LimitUnset",
    "LimitsDeclare",
    "LimitsList",
    "LogsRequest",
    "NoBody",
    "OutboxDone",
    "OutboxTake",
    "Report",
    "Reported",
    "Result",
    "ResultExtra",
    "Role",
    "ScheduleCreate",
    "ScheduleDeclared",
    "SchedulePreview",
    "ScheduleTrigger",
    "ScheduleUpdate",
    "SchedulesDeclare",
    "SchedulesFind",
    "SchedulesList",
    "StackAnswer",
    "Started",
    "StatsRequest",
    "Stop",
    "StopOrder",
    "Submit",
    "SubmittedJob",
    "TakeStack",
    "TopicGet",
    "TopicGroups",
    "TopicSet",
    "TopicUnset",
    "TopicsList",
    "Welcome",
    "WorkerRequest",
    "check_result",
    "decode_any",
    "decode_body",
    "encode",
    "encode_error",
]

PROTOCOL_VERSION: Final = 1
