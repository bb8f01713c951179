"""What clients ask of the dispatcher, on the raw wire: each answered by itself, whatever the others send."""

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
MIB: Final = 1024 * 1024
BAD_JOBS: Final[dict[str, Body]] = {
    "one of 2 jobs cannot be stored: ": {"args": '{"a":"\\u0000"}'},
    "job 1 (n): args have ": {"args": '{"a":"' + "x" * MIB + '"}'},
    "job 1 (n): run_at and delay_s are both given; ": {"run_at": 1.0, "delay_s": 1.0},
    "job 1 (n): run_at is -1e+11; ": {"run_at": -1e11},
}


def exists(system: System, *jobs: Body) -> list[bool]:
    """Which of these jobs are there."""
    ids = [job["id"].hex() for job in jobs]
    found = {row["id"].bytes for row in system.rows("SELECT id FROM pulse.jobs WHERE id = ANY ($1::uuid[])", ids)}
    return [job["id"] in found for job in jobs]


# Submit.


def test_ids_are_made_where_none_is_given(system: System, client: Peer, topic: str) -> None:
    """Each job gets an id, version 7, in the order of the jobs; what was said of the job is in its row."""
    job = {"name": "n", "topic": topic, "args": '{"a": 1}', "priority": -3, "max_attempts": 2, "timeout_s": 1.5}
    first, second = client.call("submit", jobs=[job, {"name": "m", "topic": topic}])["ids"]
    assert {uuid.UUID(bytes=identity).version for identity in (first, second)} == {7}
    row = system.row(first)
    assert {name: row[name] for name in job} == job
    row = system.row(second)
    assert (row["name"], row["args"], row["priority"], row["max_attempts"], row["timeout_s"]) == ("m", "{}", 0, 5, None)


def test_a_handlers_words_count_where_the_job_has_none(system: System, client: Peer, topic: str) -> None:
    """What a worker said of its handler at hello decides topic, budget and time limit of jobs that do not say."""
    handlers = {f"h{topic}": {"topic": topic, "max_attempts": 9, "timeout_s": 7.5}}
    with system.worker("says", topics=[topic], names=list(handlers), handlers=handlers) as worker:
        first, second = client.submit(new_job(name=f"h{topic}"), new_job(name=f"h{topic}", max_attempts=1))
        assert [(job[0], job[3], job[5]) for job in worker.jobs(2)] == [(first, topic, 7.5), (second, topic, 7.5)]
        assert [system.row(identity)["max_attempts"] for identity in (first, second)] == [9, 1]
        worker.done((first, 1), (second, 1))


def test_a_submit_may_be_repeated(system: System, client: Peer, topic: str) -> None:
    """The same id with the same words is the same job, even beside new ones; args are compared as JSON."""
    job = new_job(topic=topic, args='{"a":1,"b":2}')
    client.submit(job)
    before = system.row(job["id"])
    fresh = new_job(topic=topic)
    client.submit({**job, "args": '{"b": 2, "a": 1}'}, fresh)
    assert system.row(job["id"]) == before
    assert exists(system, fresh) == [True]


@pytest.mark.parametrize("said", BAD_JOBS)
def test_a_bad_job_is_refused(system: System, client: Peer, topic: str, said: str) -> None:
    """One short line; of the request nothing is inserted; the next request is served."""
    good, bad = new_job(topic=topic), new_job(**{"topic": topic, **BAD_JOBS[said]})
    code, message = client.refusal("submit", jobs=[good, bad])
    assert code == "bad_request"
    assert message.startswith(said)
    assert "\n" not in message
    assert len(message) < 500
    assert exists(system, good, bad) == [False, False]
    client.submit(good)


def test_two_clients_with_the_same_job_at_once(system: System, topic: str, stack: contextlib.ExitStack) -> None:
    """The same submit from several sides, committed together, is one job and no error."""
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


def test_a_submit_wakes_the_claim(system: System, client: Peer, topic: str) -> None:
    """From submit to assignment passes no poll, which comes each minute; the quickest takes less than 0.1 s."""
    took_s: list[float] = []
    with system.worker("quick", topics=[topic]) as worker:
        for _ in range(20):
            started_s = time.monotonic()
            (identity,) = client.submit(new_job(topic=topic))
            assert worker.job() == (identity, 1)
            took_s.append(time.monotonic() - started_s)
            worker.done((identity, 1))
    assert max(took_s) < 10
    assert min(took_s) < 0.1


# Cancel and retry.


def test_a_waiting_job_is_canceled(system: System, client: Peer, topic: str) -> None:
    """It is CANCELED at once and never handed out; once more is refused; what is unknown is not found."""
    waiting, other = client.submit(new_job(topic=topic), new_job(topic=topic))
    unknown = uuid.uuid4().bytes
    answer = client.call("jobs.cancel", ids=[waiting, unknown, waiting])
    assert answer == {"done": [waiting], "refused": [[unknown, "not_found"]]}
    assert client.call("jobs.cancel", ids=[waiting]) == {"done": [], "refused": [[waiting, "invalid_transition"]]}
    with system.worker("canceled", topics=[topic]) as worker:
        assert worker.job() == (other, 1)
        assert worker.idle()
        worker.done((other, 1))
    assert system.row(waiting)["status"] == "CANCELED"


def test_a_retry_waits_until_the_last_attempt_is_over(system: System, client: Peer, topic: str) -> None:
    """While a worker here holds the canceled attempt, retry is a conflict; then it runs again, attempts going on."""
    with system.worker("holds", topics=[topic]) as worker:
        (identity,) = client.submit(new_job(topic=topic, max_attempts=1))
        worker.job()
        assert client.call("jobs.retry", ids=[identity]) == {"done": [], "refused": [[identity, "conflict"]]}
        client.call("jobs.cancel", ids=[identity])
        assert client.call("jobs.retry", ids=[identity]) == {"done": [], "refused": [[identity, "conflict"]]}
        worker.report([identity, 1, "error", "stopped"])
        assert client.call("jobs.retry", ids=[identity]) == {"done": [identity], "refused": []}
        assert worker.job() == (identity, 2)
        assert worker.done((identity, 2)) == []
        assert client.call("jobs.retry", ids=[identity, b"?" * 16]) == {
            "done": [identity],
            "refused": [[b"?" * 16, "not_found"]],
        }
        assert worker.job() == (identity, 3)
        worker.report([identity, 3, "discard", "no"])
    row = system.row(identity)
    assert (row["status"], row["attempts"], row["uncharged"]) == ("DEAD_LETTERED", 3, 2)


def test_a_delete_waits_until_the_last_attempt_is_over(system: System, client: Peer, topic: str) -> None:
    """What is left of an attempt is never taken for an attempt of another job that has its id."""
    with system.worker("holds", topics=[topic]) as worker:
        (identity,) = client.submit(new_job(topic=topic))
        worker.job()
        assert client.call("jobs.delete", ids=[identity]) == {"done": [], "refused": [[identity, "invalid_transition"]]}
        client.call("jobs.cancel", ids=[identity])
        assert client.call("jobs.delete", ids=[identity]) == {"done": [], "refused": [[identity, "conflict"]]}
        assert worker.report([identity, 1, "ok", '"late"']) == [[identity, 1]]
        assert client.call("jobs.delete", ids=[identity]) == {"done": [identity], "refused": []}
        assert client.call("jobs.delete", ids=[identity]) == {"done": [], "refused": [[identity, "not_found"]]}
        client.submit(new_job(topic=topic, id=identity))
        assert worker.job() == (identity, 1)
        assert worker.done((identity, 1)) == []


# The gate.


@pytest.mark.parametrize("whole", [False, True])
def test_nothing_is_assigned_after_a_pause(system: System, client: Peer, topic: str, whole: bool) -> None:
    """From the acknowledged pause on nothing is handed out, while submits and results go on; resume wakes at once."""
    gate = "" if whole else topic
    with system.worker("paused", topics=[topic]) as worker:
        (held,) = client.submit(new_job(topic=topic))
        worker.job()
        status = client.call("dispatch.pause", topic=gate, reason="upgrade")
        shown = status if whole else status["topics"][topic]
        assert shown["reason"] == "upgrade"
        assert status["paused"] is whole
        waiting = client.submit(*(new_job(topic=topic) for _ in range(3)))
        assert worker.done((held, 1)) == []
        assert worker.beat() == []
        assert worker.idle()
        assert {system.row(identity)["status"] for identity in waiting} == {"PENDING"}
        assert client.call("dispatch.status")["paused"] is whole
        resumed_s = time.monotonic()
        assert client.call("dispatch.resume", topic=gate)["topics"] == {}
        assert [job[0] for job in worker.jobs(3)] == waiting
        assert time.monotonic() - resumed_s < 5
        worker.done(*([identity, 1] for identity in waiting))


def test_a_gate_that_sql_opens_wakes_too(system: System, client: Peer, topic: str) -> None:
    """A resume that did not come through this dispatcher, as from another host, is heard of within the refresh."""
    with system.worker("elsewhere", topics=[topic]) as worker:
        client.call("dispatch.pause", topic=topic)
        (identity,) = client.submit(new_job(topic=topic))
        assert worker.idle()
        until(lambda: system.log("gate_changed", actor="pause", changed=[topic]), "seen")
        system.rows("UPDATE pulse.dispatch_control SET paused = false, paused_at = NULL WHERE topic = $1", topic)
        assert worker.job() == (identity, 1)
        worker.done((identity, 1))


# Schedules.


def test_a_cron_schedule_is_kept(client: Peer, topic: str) -> None:
    """Its zone and its next time are told; it stands in the list; the same id with the same words is the same."""
    words = {"id": uuid.uuid4().bytes, "name": "n", "topic": topic, "cron": "0 3 * * *", "timezone": "Europe/Berlin"}
    made = client.call("schedules.create", **words)["schedule"]
    assert {name: made[name] for name in words} == words
    assert made["next_run_at"] > time.time()
    assert client.call("schedules.create", **words)["schedule"] == made
    assert client.refusal("schedules.create", **{**words, "cron": "0 4 * * *"})[0] == "conflict"
    listed = client.call("schedules.list", limit=1000)["schedules"]
    assert [one for one in listed if one["id"] == words["id"]] == [made]


# Looking.


def test_pages_of_jobs(client: Peer, topic: str) -> None:
    """Newest first, page after page, each job once; a cursor that pulse did not give is refused."""
    ids = [client.submit(new_job(topic=topic, name=name))[0] for name in ("a", "b", "a", "b", "a")]
    client.call("jobs.cancel", ids=ids[:1])
    pages: list[bytes] = []
    after = None
    for _ in range(3):
        page = client.call("jobs.list", topic=topic, limit=2, after=after)
        pages += [job["id"] for job in page["jobs"]]
        after = page["next"]
    assert after is None
    assert pages == ids[::-1]
    listed = client.call("jobs.list", topic=topic, name="a", status=["PENDING"])["jobs"]
    assert [job["id"] for job in listed] == [ids[4], ids[2]]
    assert client.refusal("jobs.list", after="nonsense")[0] == "bad_request"
    assert client.refusal("jobs.list", status="RUNING") == (
        "bad_request",
        "status is 'RUNING'; allowed are PENDING, RUNNING, COMPLETED, RETRYING, DEAD_LETTERED, CANCELED",
    )


def test_drain_sends_workers_home(system: System, client: Peer, topic: str) -> None:
    """An operator's drain of all tells each worker not to come back, and gives it nothing more."""
    with system.worker("home", topics=[topic]) as worker:
        (held,) = client.submit(new_job(topic=topic))
        worker.job()
        system.ask_supervisor("drain", all=True)
        assert worker.expect("drain") == {"reconnect": False}
        (waiting,) = client.submit(new_job(topic=topic))
        assert worker.done((held, 1)) == []
        assert worker.idle()
    with system.worker("next", topics=[topic]) as worker:
        assert worker.job() == (waiting, 1)
        worker.done((waiting, 1))


def test_who_reads_many_long_pages_late_gets_them_all(system: System, topic: str) -> None:
    """They are worked out one after the other, as far as they are read; nobody is cut off, and others are served."""
    asked = 16  # together more than a connection may leave unread
    with system.client() as slow, system.client() as other:
        for _ in range(4):
            other.submit(*(new_job(topic=topic, args=json.dumps({"pad": "x" * 4000})) for _ in range(250)))
        for number in range(1, asked + 1):
            slow.send("jobs.list", number, topic=topic, limit=1000)
        for _ in range(2 * asked):
            assert len(other.call("jobs.list", topic=topic, limit=100)["jobs"]) == 100
        assert [len(slow.answer(number)["jobs"]) > 900 for number in range(1, asked + 1)] == [True] * asked
