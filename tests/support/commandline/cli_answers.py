"""Answers of a server for the tests of the command line: a small system with some of everything."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final
from uuid import UUID

from pulse.common.version import VERSION
from pulse.system.directories import SUPERVISOR_SOCKET
from tests.support.servers.fake_dispatcher import Answer, FakeDispatcher, RuntimeDir

NOW_S: Final = time.time()
JOB_ID: Final = UUID("0190163d-8694-739b-aea5-966c26f8ad91")
SCHEDULE_ID: Final = UUID("0190163d-8694-739b-aea5-966c26f8ad92")

_JOB: Final[Mapping[str, Any]] = {
    "id": JOB_ID.bytes, "topic": "images", "name": "resize", "args": '{"path": "a.png", "width": 1.10}',
    "status": "DEAD_LETTERED", "priority": 0, "attempts": 5, "uncharged": 0, "max_attempts": 5, "crashes": 0,
    "submitted_at": NOW_S - 300, "next_run_at": NOW_S - 200, "started_at": NOW_S - 100, "completed_at": NOW_S - 99,
    "occurrence": None, "timeout_s": 60.0, "locked_by": None, "lease_until": None, "progress": '{"fraction": 0.5}',
    "result": None, "last_error": "ValueError: \x1b[31mcannot open\nfile", "schedule_id": SCHEDULE_ID.bytes,
}  # fmt: skip
_ATTEMPT: Final = {
    "job_id": JOB_ID.bytes, "attempt": 5, "worker": "host/boot/1/w1", "started_at": NOW_S - 100,
    "ended_at": NOW_S - 99, "outcome": "crashed", "error": "worker process died: SIGKILL", "exit_code": -9,
    "progress": None,
}  # fmt: skip
_SCHEDULE: Final = {
    "id": SCHEDULE_ID.bytes, "name": "report", "topic": None, "args": '{"a": 1}', "kind": "cron",
    "cron": "30 6 * * 1-5", "timezone": "Europe/Berlin", "every_s": None, "run_at": None, "next_run_at": NOW_S + 4000,
    "last_run_at": None, "paused": False, "priority": 0, "max_attempts": None, "timeout_s": None,
    "created_at": NOW_S - 9,
}  # fmt: skip
_WORKER: Final = {
    "identity": "host/boot/1/w1", "name": "w1", "pid": 12, "host": "host", "topics": ["images", "default"],
    "names": ["resize"], "capacity": 10, "running": [JOB_ID.bytes],
}  # fmt: skip
_GATE: Final = {
    "paused": True, "reason": "maintenance", "paused_at": NOW_S - 3.5 * 86400,
    "topics": {"images": {"reason": None, "paused_at": NOW_S - 30}},
}  # fmt: skip
_OVERALL: Final = {
    "supervisor": {"pid": 1, "uptime_s": 7300.2, "version": VERSION},
    "actors": [{"name": "dispatcher", "pid": 13, "state": "running", "restarts": 0, "uptime_s": 7299.0}], "pools": [],
    "database": {"ok": True, "dsn": "postgresql:///pulse", "server_version": "18.0"}, "gate": _GATE,
    "jobs": {"PENDING": 12, "RUNNING": 1, "COMPLETED": 12345}, "jobs_exact": True,
}  # fmt: skip


_REASONS: Final = [
    {
        "code": "paused",
        "text": 'Topic "images" has been paused since 2030-01-31T12:00:00Z (3 min ago), until somebody resumes it.',
        "advice": "pulse ctl dispatch resume --topic images",
        "details": {"topic": "images", "paused_at": NOW_S - 180, "paused_until": None},
    },
    {"code": "given_back", "text": "It is looked at again \x1b[31mlater.", "advice": "", "details": {}},
]


def job(**columns: Any) -> dict[str, Any]:
    return {**_JOB, **columns}


def error_group(**fields: Any) -> dict[str, Any]:
    known = {"id": _JOB["id"], "topic": _JOB["topic"], "name": _JOB["name"], "error": _JOB["last_error"]}
    return {**known, "number": 1, "newest": NOW_S, "oldest": NOW_S, **fields}


def dispatcher() -> dict[str, Answer]:
    return {
        "jobs.list": {"jobs": [job(), job(status="COMPLETED", last_error=None, result='{"ok": true}')], "next": "abc"},
        "jobs.find": found, "jobs.get": {"job": {**_JOB, "history": [_ATTEMPT]}},
        "jobs.stack": {"worker": "h/b/1/7.8/w", "pid": 7, "attempt": 2, "stack": 'File "a.py", line 3 in crunch\n'},
        "jobs.why": {"id": JOB_ID.bytes, "name": "resize", "topic": "images", "status": "PENDING", "reasons": _REASONS},
        "jobs.cancel": lambda body: {"done": body["ids"], "refused": []},
        "jobs.retry": lambda body: {"done": body["ids"], "refused": []}, "jobs.signal": {"new": True},
        "schedules.list": {"schedules": [_SCHEDULE], "next": None},
        "schedules.find": lambda body: {"schedules": [_SCHEDULE] if body["words"] == ["nightly"] else []},
        "schedules.get": {"schedule": _SCHEDULE}, "schedules.create": {"schedule": _SCHEDULE},
        "schedules.update": {"schedule": _SCHEDULE}, "schedules.pause": {"schedule": _SCHEDULE},
        "schedules.resume": {"schedule": _SCHEDULE}, "schedules.trigger": {"id": JOB_ID.bytes},
        "schedules.preview": {"times": [1711762200.0, 1711846800.0], "timezone": "Europe/Berlin"},
        "schedules.delete": lambda body: {"id": body["id"]}, "dispatch.pause": _GATE,
        "dispatch.resume": {"paused": False, "reason": None, "topics": {}}, "dispatch.status": _GATE,
        "workers.list": {"workers": [_WORKER]}, "workers.drain": {},
        "status": {**_OVERALL, "workers": [_WORKER]}, "submit": submitted,
        "stats": stats(topics=[{"topic": "images", "ready": 12, "oldest_s": 90.0, "running": 1, "workers": 1}]),
        "topics.list": {"topics": [{"topic": "", "max_attempts": 5, "backoff": None}], "next": None},
    }  # fmt: skip


def stats(**parts: Any) -> dict[str, Any]:
    nothing: dict[str, Any] = {
        "at": NOW_S, "since": NOW_S - 60, "topics": [], "others": {}, "rates": {}, "exact": True, "wait_s": {},
        "run_s": {}, "series": {"step_s": 5.0, "times": []}, "counters": {}, "histograms": {},
        "database": {"away_s": 0.0, "pools": {}}, "dispatcher": {"pid": 1, "cpu_s": 0.1, "rss_bytes": 1},
    }  # fmt: skip
    return {**nothing, **parts}


def supervisor() -> dict[str, Answer]:
    return {
        "status": {**_OVERALL, "workers": None},
        "actors.restart": lambda body: {"name": body["name"], "pid": 77},
        "drain": {},
    }


def found(body: Mapping[str, Any]) -> dict[str, object]:
    return {"jobs": [job() for one in body["prefixes"] if JOB_ID.hex.startswith(one)]}


def submitted(body: Mapping[str, Any]) -> dict[str, object]:
    return {"ids": [one["id"] for one in body["jobs"]]}


@contextlib.contextmanager
def system() -> Iterator[FakeDispatcher]:
    with RuntimeDir() as directory:
        supervisor_ = FakeDispatcher(directory.path, supervisor(), name=SUPERVISOR_SOCKET)
        with supervisor_, FakeDispatcher(directory.path, dispatcher()) as dispatcher_:
            yield dispatcher_
