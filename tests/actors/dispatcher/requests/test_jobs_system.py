"""Requests of clients, on the raw wire: each answered by itself, whatever the others send."""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from typing import Final

import pytest

from tests.support.systems.system import Body, Peer, System, new_job
from tests.support.waiting import until

pytestmark = [pytest.mark.postgres, pytest.mark.process, pytest.mark.system]

SETTINGS: Final = {"PULSE_POLL_S": "60"}


def test_ids_are_made_where_none_is_given(system: System, client: Peer, topic: str) -> None:
    """Each job gets an id, version 7, in the order of the jobs; its row has all that was said."""
    job = {"name": "n", "topic": topic, "args": '{"a": 1}', "priority": -3, "max_attempts": 2, "timeout_s": 1.5}
    first, second = client.call("submit", jobs=[job, {"name": "m", "topic": topic}])["ids"]
    assert {uuid.UUID(bytes=identity).version for identity in (first, second)} == {7}
    row = system.row(first)
    assert {name: row[name] for name in job} == job
    row = system.row(second)
    assert (row["name"], row["args"], row["priority"], row["max_attempts"], row["timeout_s"]) == ("m", "{}", 0, 5, None)


@pytest.mark.parametrize(("fields", "said"), [
    ({"args": '{"a":"\\u0000"}'}, "one of 2 jobs cannot be stored: "),
    ({"run_at": 1.0, "delay_s": 1.0}, "job 1 (n): run_at and delay_s are both given; "),
    ({"expires_in_s": -1.0}, "submit: jobs[1].expires_in_s is -1.0; allowed is a number above 0, up to 1,000,000,000"),
])  # fmt: skip
def test_a_bad_job_refuses_its_request(system: System, client: Peer, topic: str, fields: Body, said: str) -> None:
    """With one short line; nothing is inserted, and the next request is served."""
    good, bad = new_job(topic=topic), new_job(topic=topic, **fields)
    code, message = client.refusal("submit", jobs=[good, bad])
    assert code == "bad_request"
    assert message.startswith(said)
    assert "\n" not in message
    assert len(message) < 500
    assert system.rows("SELECT FROM pulse.jobs WHERE topic = $1", topic) == []
    client.submit(good)


def test_the_same_job_from_several_clients_at_once_is_one_job(
    system: System, topic: str, stack: contextlib.ExitStack
) -> None:
    peers = [stack.enter_context(system.client()) for _ in range(8)]
    job = new_job(topic=topic)
    asked = [(peer, peer.ask("submit", jobs=[job, new_job(topic=topic)])) for peer in peers]
    assert {peer.answer(number)["ids"][0] for peer, number in asked} == {job["id"]}
    (row,) = system.rows("SELECT count(*) FROM pulse.jobs WHERE topic = $1", topic)
    assert row["count"] == 1 + len(peers)


def test_a_delayed_job_comes_when_it_is_due(system: System, client: Peer, topic: str) -> None:
    """Not before its time, and then without a poll; a time in the past is now."""
    with system.worker("delayed", topics=[topic]) as worker:
        late, early = client.submit(new_job(topic=topic, delay_s=0.4), new_job(topic=topic, run_at=1.0))
        submitted_s = time.monotonic()
        assert worker.job() == (early, 1)
        assert worker.idle()
        assert worker.job() == (late, 1)
        assert 0.3 < time.monotonic() - submitted_s < 5
        worker.done((late, 1), (early, 1))


@pytest.mark.parametrize("by_sql", [False, True])
def test_a_gate_that_opens_wakes_the_claim(system: System, client: Peer, topic: str, by_sql: bool) -> None:
    """Nothing comes before; also when another host opens it."""
    with system.worker("waits", topics=[topic]) as worker:
        client.call("dispatch.pause", topic=topic)
        (identity,) = client.submit(new_job(topic=topic))
        assert worker.idle()
        if by_sql:
            until(lambda: any(topic in one["changed"] for one in system.log("gate_changed", actor="pause")), "seen")
            system.rows("UPDATE pulse.dispatch_control SET paused = false, paused_at = NULL WHERE topic = $1", topic)
        else:
            assert client.call("dispatch.resume", topic=topic)["topics"] == {}
        assert worker.job() == (identity, 1)
        worker.done((identity, 1))


def test_a_cron_schedule_is_kept(client: Peer, topic: str) -> None:
    """The answer and the list have its zone and its next time; the same id with the same words is the same."""
    words = {"id": uuid.uuid4().bytes, "name": "n", "topic": topic, "cron": "0 3 * * *", "timezone": "Europe/Berlin"}
    made = client.call("schedules.create", **words)["schedule"]
    assert {name: made[name] for name in words} == words
    assert made["next_run_at"] > time.time()
    assert client.call("schedules.create", **words)["schedule"] == made
    assert client.refusal("schedules.create", **{**words, "cron": "0 4 * * *"})[0] == "conflict"
    listed = client.call("schedules.list", limit=1000)["schedules"]
    assert [one for one in listed if one["id"] == words["id"]] == [made]


def test_a_list_is_filtered(client: Peer, topic: str) -> None:
    """By each filter, newest first; a cursor that pulse did not give is refused, and so is no status."""
    ids = [client.submit(new_job(topic=topic, name=name))[0] for name in ("a", "b", "a", "a")]
    client.call("jobs.cancel", ids=ids[:1])
    first = client.call("jobs.list", topic=topic, name="a", status=["PENDING"], limit=1)
    second = client.call("jobs.list", topic=topic, name="a", status="PENDING", after=first["next"])
    assert [job["id"] for page in (first, second) for job in page["jobs"]] == [ids[3], ids[2]]
    assert client.refusal("jobs.list", after="nonsense")[0] == "bad_request"
    assert client.refusal("jobs.list", status="RUNING") == (
        "bad_request",
        "status is 'RUNING'; allowed are PENDING, RUNNING, COMPLETED, RETRYING, DEAD_LETTERED, CANCELED",
    )


def test_drain_sends_workers_home(system: System, client: Peer, topic: str) -> None:
    """An operator's drain of all makes each worker leave, and gives it nothing more."""
    with system.worker("home", topics=[topic]) as worker:
        (held,) = client.submit(new_job(topic=topic))
        worker.job()
        system.ask_supervisor("drain", all=True)
        assert worker.expect("drain") == {"reconnect": False, "replace": False}
        (waiting,) = client.submit(new_job(topic=topic))
        assert worker.done((held, 1)) == []
        assert worker.idle()
    with system.worker("next", topics=[topic]) as worker:
        assert worker.job() == (waiting, 1)
        worker.done((waiting, 1))


@pytest.mark.rest
def test_who_reads_many_long_pages_late_gets_them_all(system: System, topic: str) -> None:
    """They are computed one after the other, as fast as they are read; others are served meanwhile."""
    asked = 16  # together more than a connection may leave unread
    with system.client() as slow, system.client() as other:
        for _ in range(4):
            other.submit(*(new_job(topic=topic, args=json.dumps({"pad": "x" * 4000})) for _ in range(250)))
        for number in range(1, asked + 1):
            slow.send("jobs.list", number, topic=topic, limit=1000)
        for _ in range(2 * asked):
            assert len(other.call("jobs.list", topic=topic, limit=100)["jobs"]) == 100
        assert [len(slow.answer(number)["jobs"]) > 900 for number in range(1, asked + 1)] == [True] * asked
