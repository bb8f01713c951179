"""Kind of the request -> body of the ``ok`` frame that answers it. A test compares it with real answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from pulse.protocol import answers
from pulse.protocol.stats import Stats

CLIENT_ANSWERS: Final[Mapping[str, type[Struct]]] = {
    "submit": answers.Submitted,
    "jobs.list": answers.JobPageAnswer,
    "jobs.find": answers.JobPageAnswer,
    "jobs.get": answers.OneJob,
    "jobs.why": answers.WhyAnswer,
    "jobs.cancel": answers.ChangedAnswer,
    "jobs.retry": answers.ChangedAnswer,
    "jobs.delete": answers.ChangedAnswer,
    "jobs.change": answers.ChangedAnswer,
    "jobs.stack": answers.Stack,
    "schedules.list": answers.SchedulePageAnswer,
    "schedules.find": answers.SchedulePageAnswer,
    "schedules.get": answers.OneSchedule,
    "schedules.create": answers.OneSchedule,
    "schedules.update": answers.OneSchedule,
    "schedules.delete": answers.Identity,
    "schedules.pause": answers.OneSchedule,
    "schedules.resume": answers.OneSchedule,
    "schedules.trigger": answers.Identity,
    "schedules.preview": answers.PreviewAnswer,
    "schedules.declare": answers.DeclaredAnswer,
    "dispatch.pause": answers.Gate,
    "dispatch.resume": answers.Gate,
    "dispatch.status": answers.Gate,
    "topics.list": answers.TopicPage,
    "topics.get": answers.OneTopic,
    "topics.set": answers.OneTopic,
    "topics.unset": answers.OneTopic,
    "audit.list": answers.ActionPage,
    "workers.list": answers.WorkerList,
    "stats": Stats,
    "status": answers.StatusAnswer,
    "ping": answers.Done,
}
SUPERVISOR_ANSWERS: Final[Mapping[str, type[Struct]]] = {
    "status": answers.StatusAnswer,
    "ping": answers.Done,
    "actors.restart": answers.Restarted,
    "drain": answers.Done,
    "logs": answers.LogPage,
}
