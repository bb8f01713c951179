"""A real server's answers are exactly those that ``pulse.protocol.answers`` declares, in both directions."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
import pytest
from msgspec import Struct

from pulse import protocol
from pulse.errors import ProtocolError
from pulse.job import HistoryEntry, Job, Schedule
from pulse.limit import Limit
from pulse.protocol import answers
from pulse.protocol.limits import DeclaredLimits, LimitInfo, LimitPageAnswer, OneLimit
from pulse.protocol.schedules import PreviewAnswer, ScheduleInfo, SchedulePageAnswer
from pulse.protocol.stats import ErrorsAnswer, FoundCounts, GroupsAnswer, Stats
from pulse.protocol.workflows import JobGraph, NextSignalAnswer, OutboxAnswer, OutboxDoneAnswer, SignalAnswer
from tests.support.servers.postgres import Postgres
from tests.support.systems.system_kit import SHORT_LEASE, Whole, place
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.postgres]

# Kind of the request -> body of the ``ok`` frame that answers it.
CLIENT_ANSWERS: Final[Mapping[str, type[Struct]]] = {
    "submit": answers.Submitted, "jobs.list": answers.JobPageAnswer, "jobs.find": answers.JobPageAnswer,
    "jobs.count": FoundCounts, "jobs.errors": ErrorsAnswer,
    "jobs.get": answers.OneJob, "jobs.why": answers.WhyAnswer, "jobs.graph": JobGraph,
    "jobs.parents": answers.JobPageAnswer, "jobs.cancel": answers.ChangedAnswer,
    "jobs.retry": answers.ChangedAnswer, "jobs.delete": answers.ChangedAnswer, "jobs.change": answers.ChangedAnswer,
    "jobs.stack": answers.Stack, "jobs.signal": SignalAnswer, "handler.parents": answers.JobPageAnswer,
    "handler.signal": NextSignalAnswer, "schedules.find": SchedulePageAnswer,
    "schedules.list": SchedulePageAnswer, "schedules.get": answers.OneSchedule,
    "schedules.create": answers.OneSchedule, "schedules.update": answers.OneSchedule,
    "schedules.delete": answers.Identity, "schedules.pause": answers.OneSchedule,
    "schedules.resume": answers.OneSchedule, "schedules.trigger": answers.Identity,
    "schedules.preview": PreviewAnswer, "schedules.declare": answers.DeclaredAnswer,
    "dispatch.pause": answers.Gate, "dispatch.resume": answers.Gate, "dispatch.status": answers.Gate,
    "topics.list": answers.TopicPage, "topics.get": answers.OneTopic, "topics.set": answers.OneTopic,
    "topics.groups": GroupsAnswer,
    "topics.unset": answers.OneTopic, "audit.list": answers.ActionPage, "workers.list": answers.WorkerList,
    "workers.drain": answers.Done, "limits.list": LimitPageAnswer, "limits.set": OneLimit,
    "limits.unset": OneLimit, "limits.declare": DeclaredLimits, "outbox.take": OutboxAnswer,
    "outbox.done": OutboxDoneAnswer,
    "stats": Stats, "status": answers.StatusAnswer, "ping": answers.Done,
}  # fmt: skip
SUPERVISOR_ANSWERS: Final[Mapping[str, type[Struct]]] = {
    "status": answers.StatusAnswer, "ping": answers.Done, "actors.restart": answers.Restarted, "drain": answers.Done,
    "logs": answers.LogPage,
}  # fmt: skip
# Declared, and told in none of these answers: what was left out of a row, of a gate, or of the asker's sight.
NOT_TOLD: Final = frozenset({"concealed", "omitted", "topics_omitted", "as_of", "error"})


class Heard:
    """All answers so far: checks each, and remembers which of the declared fields occurred."""

    def __init__(self) -> None:
        self.kinds: set[str] = set()
        self.told: dict[type[Struct], set[str]] = {}

    def take(self, kind: str, shape: type[Struct], body: object) -> Any:
        """*body* as declared; it may have no unknown field."""
        read = answers.read(shape, body)
        self.kinds.add(kind)
        self._compare(f"${kind}", read, body)
        return body

    def _compare(self, where: str, read: object, told: object) -> None:
        if isinstance(read, Struct):
            assert isinstance(told, Mapping), where
            unknown = set(told) - set(read.__struct_fields__)
            assert not unknown, f"{where} has {unknown}, which {type(read).__name__} does not declare"
            self.told.setdefault(type(read), set()).update(told)
            for name, value in told.items():
                self._compare(f"{where}.{name}", getattr(read, name), value)
        elif isinstance(read, dict):
            assert isinstance(told, Mapping), where
            for name, value in told.items():
                self._compare(f"{where}.{name}", read[name], value)
        elif isinstance(read, list | tuple):
            assert isinstance(told, list), where
            for one, value in zip(read, told, strict=True):
                self._compare(f"{where}[]", one, value)
        else:
            assert read == told, where


@pytest.fixture(scope="module")
def whole(server: Postgres) -> Iterator[Whole]:
    with server.database() as dsn, place(dsn, **SHORT_LEASE) as whole:
        whole.start()
        whole.pool("--processes", "1", "--concurrency", "4")
        yield whole


@pytest.fixture(scope="module")
def heard(whole: Whole) -> Heard:
    heard = Heard()
    ask_about_jobs(whole, heard)
    ask_about_schedules(whole, heard)
    ask_about_topics(whole, heard)
    ask_about_limits(whole, heard)
    ask_about_the_system(whole, heard)
    return heard


def ask_about_jobs(whole: Whole, heard: Heard) -> None:
    ask = asking(whole, heard)
    gate = whole.gate("answers")
    running, failing, waiting = (uuid.uuid4().bytes for _ in range(3))
    jobs = [
        {"id": running, "name": "hold", "args": f'{{"gate": "{gate}"}}'},
        {"id": failing, "name": "fail", "args": '{"text": "boom"}', "max_attempts": 1},
        {"id": waiting, "name": "mark", "topic": "lonely", "delay_s": 600.0},
    ]
    assert ask("submit", jobs=jobs) == {"ids": [running, failing, waiting]}
    unhandled = {"id": uuid.uuid4().bytes, "name": "nobody's", "delay_s": 600.0}
    assert ask("submit", jobs=[unhandled])["unhandled"] == [["nobody's", "default", []]]
    whole.wait_entry(uuid.UUID(bytes=running))
    until(lambda: ask("jobs.get", id=failing)["job"]["status"] == "DEAD_LETTERED", "it fails")
    assert ask("jobs.get", id=failing)["job"]["history"]
    assert ask("handler.signal", id=waiting, name="approval")["signal"] is None
    assert [ask("jobs.signal", id=waiting, name="approval", payload="1", key="k")["new"] for _ in range(2)] == [
        True,
        False,
    ]
    assert ask("jobs.get", id=waiting)["job"]["signals"][0]["payload"] == "1"
    assert ask("handler.signal", id=waiting, name="approval")["signal"]["payload"] == "1"
    child = uuid.uuid4().bytes
    ask("submit", jobs=[{"id": child, "name": "mark", "after": [running, failing], "on_failure": "run"}])
    assert len(ask("jobs.get", id=child)["job"]["parents"]) == 2
    assert [one["id"] for one in ask("jobs.get", id=running)["job"]["children"]] == [child]
    assert len(ask("handler.parents", id=child)["jobs"]) == 2
    first = ask("jobs.parents", id=child, limit=1)
    rest = ask("jobs.parents", id=child, after=first["next"])
    assert [one["id"] for one in (*first["jobs"], *rest["jobs"])] == sorted([running, failing])
    ask("jobs.cancel", ids=[child])
    ask("jobs.list", limit=2)
    ask("jobs.list", brief=True)
    assert [one["id"] for one in ask("jobs.errors")["groups"]] == [failing]
    assert ask("jobs.count", topic="lonely")["scheduled"] == 1
    assert [one["id"] for one in ask("jobs.find", prefixes=[waiting.hex()[:9]])["jobs"]] == [waiting]
    for job in (running, failing, waiting):
        assert ask("jobs.why", id=job)["reasons"]
    ask("jobs.stack", id=running)
    child = uuid.uuid4().bytes
    ask("submit", jobs=[{"id": child, "name": "mark", "after": [waiting]}])
    assert ask("jobs.get", id=child)["job"]["parents"]
    assert ask("jobs.graph", id=child)["edges"] == [[1, 0]]
    ask("jobs.get", id=waiting)
    assert ask("jobs.change", ids=[waiting, running], topic="other", priority=3)["before"]
    ask("workers.list")
    assert ask("jobs.cancel", ids=[waiting, uuid.uuid4().bytes])["refused"]
    assert ask("jobs.retry", ids=[waiting, running])["done"]
    gate.touch()
    until(lambda: ask("jobs.get", id=running)["job"]["status"] == "COMPLETED", "it ends")
    assert ask("jobs.retry", ids=[running])["completed"] == [running]
    ask("jobs.delete", ids=[failing, waiting])


def ask_about_schedules(whole: Whole, heard: Heard) -> None:
    ask = asking(whole, heard)
    made = ask("schedules.create", name="mark", cron="0 3 * * *", timezone="Europe/Berlin", topic="nightly")
    schedule = made["schedule"]["id"]
    ask("schedules.update", id=schedule, priority=1, jitter_s=5.0)
    for kind in ("schedules.pause", "schedules.resume", "schedules.get", "schedules.trigger"):
        ask(kind, id=schedule)
    assert ask("schedules.preview", id=schedule, count=3)["times"]
    declared = {"key": "k", "name": "mark", "every": 3600.0}
    assert ask("schedules.declare", by="tests", schedules=[declared])["changed"] == ["k"]
    assert ask("schedules.declare", by="tests", schedules=[])["not_declared"] == ["k"]
    assert [one["key"] for one in ask("schedules.find", words=["k"])["schedules"]] == ["k"]
    assert len(ask("schedules.list", limit=2)["schedules"]) == 2
    ask("schedules.delete", id=schedule)


def ask_about_topics(whole: Whole, heard: Heard) -> None:
    ask = asking(whole, heard)
    assert ask("dispatch.pause", topic="shut", reason="because", for_s=600.0)["topics"]
    ask("dispatch.status")
    ask("dispatch.resume", topic="shut")
    assert ask("topics.set", topic="shut", policy={"max_attempts": 3})["topic"]["policy"]
    for topic in ("shut", "default", ""):
        ask("topics.get", topic=topic)
    ask("topics.list")
    ask("topics.set", topic="shut", policy={"publish": True})
    job = uuid.uuid4().bytes
    ask("submit", jobs=[{"id": job, "name": "mark", "topic": "shut", "delay_s": 600.0}])
    ask("jobs.cancel", ids=[job])
    [end] = ask("outbox.take")["ends"]
    assert (end["job"], end["status"], ask("outbox.take")["ends"]) == (job, "CANCELED", [])
    assert [ask("outbox.done", ends=[[job, end["ended_at"]]])["gone"] for _ in range(2)] == [1, 0]
    ask("topics.unset", topic="shut")
    grouped = {"name": "mark", "topic": "grouped", "group_key": "g", "delay_s": 600.0}
    ask("submit", jobs=[grouped])
    assert [one["later"] for one in ask("topics.groups", topic="grouped")["groups"]] == [1]
    assert ask("audit.list", limit=100)["audit"]


def ask_about_limits(whole: Whole, heard: Heard) -> None:
    ask = asking(whole, heard)
    policy = {"concurrency": 5, "rate": 2.0, "group_concurrency": 1}
    assert ask("limits.set", name="api", policy=policy)["limit"]["tokens"] == 2.0
    assert ask("limits.set", name="api", group_key="g", policy={"concurrency": 0})["limit"]["group_key"] == "g"
    assert len(ask("limits.list")["limits"]) == 2
    assert ask("limits.unset", name="api")["limit"]["topics"] == ["api"]
    assert ask("limits.declare", by="tests", limits=[{"name": "api"}])["changed"] == ["api"]
    assert ask("limits.declare", by="tests", limits=[])["not_declared"] == ["api"]


def ask_about_the_system(whole: Whole, heard: Heard) -> None:
    ask = asking(whole, heard)
    ask("ping")
    until(lambda: ask("stats")["series"]["times"], "a step of the history", 30)
    until(lambda: ask("topics.get", topic="default")["topic"]["retention"], "the retention has begun", 30)
    ask("topics.set", topic="default", policy={"limit": "full"})
    ask("limits.set", name="full", policy={"concurrency": 0})
    until(lambda: [one["name"] for one in ask("stats")["limits"]][:1] == ["full"], "limits are counted", 30)
    assert [one["full"] for one in ask("status")["limits"]] == [True]
    ask("limits.unset", name="full")
    assert ask("status")["jobs"]
    ask("workers.drain", worker=ask("workers.list")["workers"][0]["identity"])
    bodies: dict[str, dict[str, object]] = {"logs": {"lines": 5}, "actors.restart": {"name": "scheduler"}}
    for kind, shape in SUPERVISOR_ANSWERS.items():
        heard.take(kind, shape, whole.ask_supervisor(kind, **bodies.get(kind, {})))


def asking(whole: Whole, heard: Heard) -> Any:
    client = whole.jobs().client

    def ask(kind: str, **body: object) -> Any:
        return heard.take(kind, CLIENT_ANSWERS[kind], client.request(kind, body))

    return ask


def test_every_request_has_its_answer() -> None:
    assert CLIENT_ANSWERS.keys() == protocol.CLIENT_KINDS.keys()
    assert SUPERVISOR_ANSWERS.keys() == protocol.SUPERVISOR_KINDS.keys()


@pytest.mark.rest
def test_every_answer_is_as_declared(heard: Heard) -> None:
    assert heard.kinds == CLIENT_ANSWERS.keys() | SUPERVISOR_ANSWERS.keys()


@pytest.mark.rest
def test_what_is_declared_is_told(heard: Heard) -> None:
    """A field that no answer has is stale: nobody could ever read it."""
    stale = {
        f"{shape.__name__}.{name}"
        for shape, told in heard.told.items()
        for name in set(shape.__struct_fields__) - told - NOT_TOLD
    }
    assert not stale
    untold = set(every_struct()) - set(heard.told) - {answers.FindingInfo}
    assert not untold


def every_struct() -> Iterator[type[Struct]]:
    infos = msgspec.inspect.multi_type_info([*CLIENT_ANSWERS.values(), *SUPERVISOR_ANSWERS.values()])
    seen, left = set[type[Struct]](), list[Any](infos)
    while left:
        info = left.pop()
        if isinstance(info, msgspec.inspect.StructType) and info.cls not in seen:
            seen.add(info.cls)
            yield info.cls
            left += [field.type for field in info.fields]
        left += [getattr(info, name) for name in ("item_type", "key_type", "value_type") if hasattr(info, name)]
        left += getattr(info, "types", ()) or ()


def test_a_key_that_is_not_declared_is_found() -> None:
    with pytest.raises(AssertionError, match=r"\$workers.list.workers\[\] has {'mood'}, which Worker does not declare"):
        Heard().take("workers.list", answers.WorkerList, {"workers": [{"identity": "w", "mood": "good"}]})
    with pytest.raises(ProtocolError, match=r"the answer is not understood: next is '7'; allowed is a whole number"):
        Heard().take("logs", answers.LogPage, {"next": "7"})


@pytest.mark.parametrize(
    ("record", "shape"),
    [
        (Job, answers.JobInfo),
        (HistoryEntry, answers.AttemptInfo),
        (Schedule, ScheduleInfo),
        (Limit, LimitInfo),
    ],
)
def test_records_have_what_answers_have(record: type[Any], shape: type[Struct]) -> None:
    assert {field.name for field in dataclasses.fields(record)} <= set(shape.__struct_fields__)
