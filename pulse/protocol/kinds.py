"""Which role may send which kind of frame, and its body. A missing key is the error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from pulse.protocol import messages, requests
from pulse.protocol.messages import Role

WORKER_KINDS: Final[Mapping[str, type[Struct]]] = {
    "started": messages.Started,
    "report": messages.Report,
    "heartbeat": messages.Heartbeat,
    "checkpoint": messages.Checkpoint,
    "capacity": messages.Capacity,
    "stack": messages.StackAnswer,
}
CLIENT_KINDS: Final[Mapping[str, type[Struct]]] = {
    "submit": requests.Submit,
    "jobs.list": requests.JobsList,
    "jobs.count": requests.JobsCount,
    "jobs.errors": requests.JobsErrors,
    "jobs.find": requests.JobsFind,
    "jobs.get": requests.ById,
    "jobs.parents": requests.JobsParents,
    "jobs.why": requests.ById,
    "jobs.graph": requests.ById,
    "jobs.cancel": requests.JobsWithDependents,
    "jobs.retry": requests.JobsWithDependents,
    "jobs.delete": requests.ByIds,
    "jobs.change": requests.JobsChange,
    "jobs.stack": requests.ById,
    "jobs.signal": requests.JobsSignal,
    "handler.parents": requests.JobsParents,
    "handler.signal": requests.HandlerSignal,
    "schedules.list": requests.SchedulesList,
    "schedules.find": requests.SchedulesFind,
    "schedules.get": requests.ById,
    "schedules.create": requests.ScheduleCreate,
    "schedules.update": requests.ScheduleUpdate,
    "schedules.delete": requests.ById,
    "schedules.pause": requests.ById,
    "schedules.resume": requests.ById,
    "schedules.trigger": requests.ScheduleTrigger,
    "schedules.preview": requests.SchedulePreview,
    "schedules.declare": requests.SchedulesDeclare,
    "dispatch.pause": requests.DispatchGate,
    "dispatch.resume": requests.DispatchGate,
    "dispatch.status": requests.NoBody,
    "topics.list": requests.TopicsList,
    "topics.get": requests.TopicGet,
    "topics.groups": requests.TopicGroups,
    "topics.set": requests.TopicSet,
    "topics.unset": requests.TopicUnset,
    "outbox.take": requests.OutboxTake,
    "outbox.done": requests.OutboxDone,
    "limits.list": requests.LimitsList,
    "limits.set": requests.LimitSet,
    "limits.unset": requests.LimitUnset,
    "limits.declare": requests.LimitsDeclare,
    "audit.list": requests.AuditList,
    "workers.list": requests.NoBody,
    "workers.drain": requests.WorkerRequest,
    "stats": requests.StatsRequest,
    "status": requests.NoBody,
    "ping": requests.NoBody,
}
SUPERVISOR_KINDS: Final[Mapping[str, type[Struct]]] = {
    "status": requests.NoBody,
    "ping": requests.NoBody,
    "actors.restart": requests.ActorRequest,
    "drain": requests.DrainRequest,
    "logs": requests.LogsRequest,
}
# Role -> kinds that it may send after hello. A worker may ask what a client asks: it enqueues follow-up jobs.
ALLOWED: Final[Mapping[Role, Mapping[str, type[Struct]]]] = {
    Role.CLIENT: CLIENT_KINDS,
    Role.WORKER: {**CLIENT_KINDS, **WORKER_KINDS},
}
# What the server may send.
ANSWERS: Final[Mapping[str, type[Struct]]] = {
    "welcome": messages.Welcome,
    "error": messages.ErrorBody,
    "assign": messages.Assign,
    "reported": messages.Reported,
    "beat": messages.BeatAnswer,
    "stop": messages.Stop,
    "drain": messages.Drain,
    "stack": messages.TakeStack,
}
