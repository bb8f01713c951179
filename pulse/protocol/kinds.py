"""Who may send what: role -> kind -> body. A missing key is the error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from pulse.protocol import asked, work
from pulse.protocol.work import Role

WORKER_KINDS: Final[Mapping[str, type[Struct]]] = {
    "started": work.Started,
    "report": work.Report,
    "heartbeat": work.Heartbeat,
    "checkpoint": work.Checkpoint,
    "capacity": work.Capacity,
    "stack": work.Stack,
}
CLIENT_KINDS: Final[Mapping[str, type[Struct]]] = {
    "submit": asked.Submit,
    "jobs.list": asked.JobsList,
    "jobs.get": asked.ById,
    "jobs.why": asked.ById,
    "jobs.cancel": asked.ByIds,
    "jobs.retry": asked.ByIds,
    "jobs.delete": asked.ByIds,
    "jobs.change": asked.JobsChange,
    "jobs.stack": asked.ById,
    "schedules.list": asked.SchedulesList,
    "schedules.get": asked.ById,
    "schedules.create": asked.ScheduleCreate,
    "schedules.update": asked.ScheduleUpdate,
    "schedules.delete": asked.ById,
    "schedules.pause": asked.ById,
    "schedules.resume": asked.ById,
    "schedules.trigger": asked.ScheduleTrigger,
    "schedules.preview": asked.SchedulePreview,
    "schedules.declare": asked.SchedulesDeclare,
    "dispatch.pause": asked.DispatchGate,
    "dispatch.resume": asked.DispatchGate,
    "dispatch.status": asked.Nothing,
    "topics.list": asked.TopicsList,
    "topics.get": asked.TopicGet,
    "topics.set": asked.TopicSet,
    "topics.unset": asked.TopicUnset,
    "audit.list": asked.AuditList,
    "workers.list": asked.Nothing,
    "stats": asked.Stats,
    "status": asked.Nothing,
    "ping": asked.Nothing,
}
SUPERVISOR_KINDS: Final[Mapping[str, type[Struct]]] = {
    "status": asked.Nothing,
    "ping": asked.Nothing,
    "actors.restart": asked.Named,
    "drain": asked.DrainRequest,
    "logs": asked.LogsRequest,
}
# Role -> kinds that it may send after hello. A worker may ask what a client asks: it enqueues follow-up jobs.
ALLOWED: Final[Mapping[Role, Mapping[str, type[Struct]]]] = {
    Role.CLIENT: CLIENT_KINDS,
    Role.WORKER: {**CLIENT_KINDS, **WORKER_KINDS},
}
# What a peer may hear from the server.
ANSWERS: Final[Mapping[str, type[Struct]]] = {
    "welcome": work.Welcome,
    "error": work.ErrorBody,
    "assign": work.Assign,
    "reported": work.Reported,
    "beat": work.BeatAnswer,
    "stop": work.Stop,
    "drain": work.Drain,
    "stack": work.TakeStack,
}
