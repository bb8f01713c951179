"""Schedules over the wire: changed, paused, triggered, previewed and declared, with the whole system behind it."""

from __future__ import annotations

import time
import uuid
from typing import Any, Final

import pytest

from tests.support.store.helpers import new_id
from tests.support.systems.system import Body, Peer, System
from tests.support.waiting import until

pytestmark = [pytest.mark.postgres, pytest.mark.process, pytest.mark.system]

SETTINGS: Final = {"PULSE_POLL_S": "60"}
BERLIN: Final = {"cron": "30 2 * * *", "timezone": "Europe/Berlin"}


def create(client: Peer, topic: str, **words: Any) -> Body:
    made: Body = client.call("schedules.create", name="n", topic=topic, **words)["schedule"]
    return made


def test_words_are_changed_and_the_cursor_stays(client: Peer, topic: str) -> None:
    made = create(client, topic, **BERLIN)
    words = {"priority": 7, "overlap": "skip", "jitter_s": 5.0, "args": '{"b": 2}'}
    changed = client.call("schedules.update", id=made["id"], **words)["schedule"]
    assert {name for name in made if made[name] != changed[name]} - {"due_at", "reckon"} == {*words, "revision"}
    assert made["next_run_at"] == changed["next_run_at"] <= changed["due_at"] < changed["next_run_at"] + 5


def test_options_are_unset(client: Peer, topic: str) -> None:
    """What is nil is as if it had never been given, what is left out stays; what a schedule needs cannot be nil."""
    words: Body = {
        "max_attempts": 3, "timeout_s": 5.0, "jitter_s": 5.0, "ends_at": time.time() + 1e6, "unique": topic,
        "unique_until": "start", "on_conflict": "replace", "group_key": "g",
    }  # fmt: skip
    plain = create(client, topic, **BERLIN)
    made = create(client, topic, **BERLIN, **words)
    changed = client.call("schedules.update", id=made["id"], timeout_s=None)["schedule"]
    assert {name for name in made if made[name] != changed[name]} == {"timeout_s", "revision"}
    assert changed["timeout_s"] is None
    bare = client.call("schedules.update", id=made["id"], **dict.fromkeys(words))["schedule"]
    assert {name for name in bare if bare[name] != plain[name]} == {"id", "created_at", "revision"}
    made = create(client, topic, **BERLIN, **words)
    bare = client.call("schedules.update", id=made["id"], unique=None)["schedule"]
    assert (bare["unique_key"], bare["unique_until"], bare["on_conflict"]) == (None, None, None)
    late = create(client, topic, every=1000.0, starts_at=time.time() + 1e6)
    now = client.call("schedules.update", id=late["id"], starts_at=None, topic=None)["schedule"]
    assert now["next_run_at"] < time.time() + 1001
    assert (now["starts_at"], now["topic"]) == (None, None)
    assert client.call("schedules.update", id=made["id"], timezone=None)["schedule"]["timezone"] == "UTC"
    for needed in ("name", "cron", "every", "at", "args", "priority", "catch_up", "overlap"):
        assert client.refusal("schedules.update", id=made["id"], **{needed: None})[0] == "bad_request"


def test_args_are_as_long_as_those_of_a_job(client: Peer, topic: str) -> None:
    """Each occurrence would be a job that nobody could submit."""
    made = create(client, topic, **BERLIN)
    longest = '{"a": "' + "x" * (1024 * 1024 - 9) + '"}'
    said = "args have 1048577 bytes; at most 1048576 are allowed"
    assert client.refusal("schedules.create", name="n", args=f"{longest} ", **BERLIN) == ("bad_request", said)
    assert client.refusal("schedules.update", id=made["id"], args=f"{longest} ") == ("bad_request", said)
    declared = {"by": "b", "schedules": [{"key": f"{topic} k", "name": "n", "args": f"{longest} ", **BERLIN}]}
    code, message = client.refusal("schedules.declare", **declared)
    assert (code, message.endswith(said)) == ("bad_request", True)
    assert client.call("schedules.update", id=made["id"], args=longest)["schedule"]["revision"] == 1


def test_another_rule_has_another_next_time(client: Peer, topic: str) -> None:
    """A rule of another kind replaces the old one, and begins now; so does a new time zone."""
    made = create(client, topic, every=1000.0)
    cron = client.call("schedules.update", id=made["id"], **BERLIN)["schedule"]
    assert (cron["kind"], cron["every_s"], cron["cron"], cron["timezone"]) == ("cron", None, *BERLIN.values())
    moved = client.call("schedules.update", id=made["id"], timezone="Asia/Tokyo")["schedule"]
    assert moved["next_run_at"] != cron["next_run_at"]
    assert moved["next_run_at"] > time.time()
    again = client.call("schedules.update", id=made["id"], every=5.0)["schedule"]
    assert (again["timezone"], again["cron"]) == (None, None)


@pytest.mark.parametrize(("words", "message"), [
    ({"catch_up": "none"}, "catch_up is 'none'; allowed are skip, latest, all"),
    ({"overlap": "none"}, "overlap is 'none'; allowed are allow, skip, queue, cancel"),
    ({"jitter_s": -1.0}, "jitter_s is -1; 0 to 86400 s is allowed"),
    ({"on_conflict": "skip"}, "unique_until or on_conflict is given; they are allowed with unique only"),
])  # fmt: skip
def test_bad_input(client: Peer, topic: str, words: Body, message: str) -> None:
    made = create(client, topic, every=1000.0)
    assert client.refusal("schedules.update", id=made["id"], **words) == ("bad_request", message)
    assert client.call("schedules.get", id=made["id"])["schedule"] == made
    assert client.refusal("schedules.create", name="n", topic=topic, every=5.0, **words) == ("bad_request", message)


def test_pause_resume_trigger(system: System, client: Peer, topic: str) -> None:
    made = create(client, topic, every=1.0)
    before = client.call("schedules.pause", id=made["id"])["schedule"]
    assert (before["paused"], before["last_run_at"]) == (True, None)
    with system.worker("pause", topics=[topic], capacity=1) as worker:
        job_id = uuid.uuid4().bytes
        for _ in range(2):
            assert client.call("schedules.trigger", id=made["id"], job_id=job_id) == {"id": job_id}
        (job,) = worker.jobs(1)
        assert (job[0], job[7]) == (job_id, None)
        worker.done(job)
        assert client.call("schedules.get", id=made["id"])["schedule"]["next_run_at"] == before["next_run_at"]
        assert not client.call("schedules.resume", id=made["id"])["schedule"]["paused"]
        (job,) = worker.jobs(1)
        assert job[7]["occurrence"] >= before["next_run_at"]
        client.call("schedules.delete", id=made["id"])
        worker.done(job)
    for kind in ("pause", "resume", "trigger", "preview", "update"):
        assert client.refusal(f"schedules.{kind}", id=made["id"])[0] == "not_found"


def test_preview(client: Peer, topic: str) -> None:
    """The next occurrences, from the cursor on, and the zone to read them in; none where there are none."""
    made = create(client, topic, **BERLIN)
    found = client.call("schedules.preview", id=made["id"], count=400)
    assert (found["timezone"], found["times"][0], len(found["times"])) == ("Europe/Berlin", made["next_run_at"], 400)
    end = create(client, topic, every=60.0, ends_at=time.time() + 150)
    assert len(client.call("schedules.preview", id=end["id"])["times"]) == 2
    spent = create(client, topic, at=1.0)
    until(lambda: client.call("schedules.preview", id=spent["id"])["times"] == [], "it fires")


def test_what_sql_makes_fires(system: System, client: Peer, topic: str) -> None:
    """A schedule that SQL made is seen at once, and fires within a second of its first occurrence."""
    with system.worker("sql", topics=[topic]) as worker:
        began_s = time.time()
        [row] = system.rows("SELECT pulse.create_schedule('n', cron => '* * * * * *', topic => $1) AS id", topic)
        (job,) = worker.jobs(1)
        assert job[7]["occurrence"] - began_s < 2.5
        client.call("schedules.delete", id=row["id"].bytes)
        worker.done(job)


def test_a_trigger_answers_with_the_job_that_has_the_key(client: Peer, topic: str) -> None:
    made = create(client, topic, every=1000.0, unique=topic)
    first, second = (client.call("schedules.trigger", id=made["id"], job_id=new_id())["id"] for _ in range(2))
    assert first == second
    job = client.call("jobs.get", id=first)["job"]
    assert (job["unique_key"], job["unique_until"]) == (topic, "end")


def test_overlap_cancel_stops_the_handler(system: System, client: Peer, topic: str) -> None:
    with system.worker("cancel", topics=[topic]) as worker:
        made = create(client, topic, every=0.5, overlap="cancel")
        (first,) = worker.jobs(1)
        stop = worker.expect("stop")
        assert [(bytes(one[0]), one[1], one[2]) for one in stop["jobs"]] == [(first[0], 1, "canceled")]
        client.call("schedules.delete", id=made["id"])
        assert system.row(first[0])["status"] == "CANCELED"


def declared(key: str, topic: str, **words: Any) -> Body:
    return {"key": key, "name": "n", "topic": topic, **words}


def test_declared_schedules(client: Peer, topic: str) -> None:
    """Created once, changed where code is, the cursor kept; a removed one is reported once, and can come back."""
    by = f"app{topic}"
    one, two = declared(f"one{topic}", topic, every=1000.0), declared(f"two{topic}", topic, **BERLIN)
    first = client.call("schedules.declare", by=by, schedules=[one, two])
    assert (first["changed"], first["not_declared"]) == ([one["key"], two["key"]], [])
    made = [client.call("schedules.get", id=identity)["schedule"] for identity in first["ids"]]
    again = client.call("schedules.declare", by=by, schedules=[two, one])
    assert (again["ids"], again["changed"], again["not_declared"]) == (first["ids"][::-1], [], [])

    changed = client.call("schedules.declare", by=by, schedules=[{**one, "priority": 3}])
    assert (changed["changed"], changed["not_declared"]) == ([one["key"]], [two["key"]])
    now = [client.call("schedules.get", id=identity)["schedule"] for identity in first["ids"]]
    assert [row["next_run_at"] for row in now] == [row["next_run_at"] for row in made]
    assert (now[0]["priority"], now[0]["undeclared_at"], now[1]["paused"]) == (3, None, False)
    assert now[1]["undeclared_at"] is not None
    assert client.call("schedules.declare", by=by, schedules=[{**one, "priority": 3}])["not_declared"] == []
    assert client.call("schedules.declare", by="another", schedules=[])["not_declared"] == []

    client.call("schedules.declare", by=by, schedules=[one, two])
    back = client.call("schedules.get", id=first["ids"][1])["schedule"]
    assert (back["undeclared_at"], back["next_run_at"]) == (None, made[1]["next_run_at"])


def test_bad_declarations_change_nothing(client: Peer, topic: str) -> None:
    """One bad one spoils all; a repeated key, too."""
    good = declared(f"good{topic}", topic, every=1000.0)
    for bad, named in (
        (declared(f"bad{topic}", topic, cron="0 0 30 2 *"), f"schedule 'bad{topic}': cron is '0 0 30 2 *'"),
        (declared(f"bad{topic}", topic, every=1.0, overlap="x"), f"schedule 'bad{topic}': overlap is 'x'"),
        (good, f"good{topic}"),
    ):
        code, message = client.refusal("schedules.declare", by=topic, schedules=[good, bad])
        assert code == "bad_request"
        assert named in message
    assert topic not in {one["topic"] for one in client.call("schedules.list", limit=1000)["schedules"]}


def test_changes_at_the_same_time_do_not_wait_for_each_other(client: Peer, topic: str) -> None:
    """Each has one connection: if all transactions wanted another, all would wait."""
    made = [create(client, topic, **BERLIN)["id"] for _ in range(12)]
    began_s = time.monotonic()
    asked = [client.ask("schedules.update", id=one, priority=place) for place, one in enumerate(made)]
    assert [client.answer(number)["schedule"]["priority"] for number in asked] == [*range(12)]
    assert time.monotonic() - began_s < 5.0
