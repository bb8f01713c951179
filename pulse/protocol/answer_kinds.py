"""What is answered: kind of the request -> body of the ``ok`` frame. A test holds real answers against it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from pulse.protocol import answers
from pulse.protocol.stats import Stats

CLIENT_ANSWERS: Final[Mapping[str, type[Struct]]] = {
    "submit": answers.Submitted,
    "jobs.list": answers.JobPage,
    "jobs.get": answers.OneJob,
    "jobs.why": answers.Why,
    "jobs.cancel": answers.Changed,
    "jobs.retry": answers.Changed,
    "jobs.delete": answers.Changed,
    "jobs.change": answers.Changed,
    "jobs.stack": answers.Stack,
    "schedules.list": answers.SchedulePage,
    "schedules.get": answers.OneSchedule,
    "schedules.create": answers.OneSchedule,
    "schedules.update": answers.OneSchedule,
    "schedules.delete": answers.Identity,
    "schedules.pause": answers.OneSchedule,
    "schedules.resume": answers.OneSchedule,
    "schedules.trigger": answers.Identity,
    "schedules.preview": answers.SchedulePreview,
    "schedules.declare": answers.Declared,
    "dispatch.pause": answers.Gate,
    "dispatch.resume": answers.Gate,
    "dispatch.status": answers.Gate,
    "topics.list": answers.TopicPage,
    "topics.get": answers.OneTopic,
    "topics.set": answers.OneTopic,
    "topics.unset": answers.OneTopic,
    "audit.list": answers.ActionPage,
    "workers.list": answers.Connected,
    "stats": Stats,
    "status": answers.Status,
    "ping": answers.Done,
}
SUPERVISOR_ANSWERS: Final[Mapping[str, type[Struct]]] = {
    "status": answers.Status,
    "ping": answers.Done,
    "actors.restart": answers.Restarted,
    "drain": answers.Done,
    "logs": answers.LogPage,
}
