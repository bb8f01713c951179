"""The dispatcher and its workers, on the raw wire: hello, credit, reports, heartbeats, routing by name."""

from __future__ import annotations

import contextlib
from typing import Final

import pytest

from tests.support.systems.system import Body, Peer, Refused, System, Worker, new_job

pytestmark = [pytest.mark.postgres, pytest.mark.process, pytest.mark.system]

# No poll can help a wake-up that is missing.
SETTINGS: Final = {"PULSE_POLL_S": "60"}


# Hello.


def test_a_client_is_welcome(client: Peer) -> None:
    """A client learns the protocol, the server, the times and the longest frame, and nothing that is for workers."""
    assert client.welcome == {
        "protocol": 1,
        "server": client.welcome["server"],
        "heartbeat_s": 10.0,
        "lease_s": 30.0,
        "max_frame_bytes": 8 * 1024 * 1024,
    }
    assert client.welcome["server"].startswith("pulse ")


def test_a_worker_is_welcome(system: System, topic: str) -> None:
    """A worker learns its session and what it has lost as well, and is then among the workers."""
    with system.worker("w", topics=[topic], names=["b", "a"], capacity=3) as worker:
        assert len(worker.session) == 16
        assert worker.welcome["lost"] == []
        assert worker.welcome.keys() - {"session", "lost"} == {
            "protocol",
            "server",
            "heartbeat_s",
            "lease_s",
            "max_frame_bytes",
        }
        (row,) = [row for row in worker.call("workers.list")["workers"] if row["topics"] == [topic]]
        assert (row["name"], row["names"], row["capacity"], row["running"]) == ("w", ["a", "b"], 3, [])


@pytest.mark.parametrize(
    ("kind", "body", "code"),
    [
        ("ping", {}, "bad_request"),
        ("hello", {"protocol": 2, "role": "client"}, "unsupported_version"),
        ("hello", {"protocol": 1, "role": "worker"}, "bad_request"),
        ("hello", {"protocol": 1, "role": "worker", "worker": "w", "topics": ["a\0b"]}, "bad_request"),
        ("hello", {"protocol": 1, "role": "worker", "worker": "w", "handlers": {"n": {"topic": "\0"}}}, "bad_request"),
    ],
)
def test_a_wrong_hello_ends_the_connection(system: System, client: Peer, kind: str, body: Body, code: str) -> None:
    """One error that names the request, then the end; everybody else goes on."""
    with system.peer() as peer:
        peer.send(kind, 0, **body)
        with pytest.raises(Refused) as refused:
            peer.answer(0)
        assert refused.value.code == code
        assert peer.expect_end() == []
    assert client.call("ping") == {}


def test_no_hello_in_time_ends_the_connection(system: System, client: Peer) -> None:
    """Whoever says nothing for five seconds, or half a hello, is told so and hung up on."""
    with system.peer() as silent, system.peer() as slow:
        slow.send_bytes(b"\0\0\0\x20\x93")
        for peer in (silent, slow):
            assert peer.expect("error") == {"code": "unavailable", "message": "no hello within 5 s"}
            assert peer.expect_end() == []
    assert client.call("ping") == {}


def test_a_second_hello_supersedes_the_first(system: System, client: Peer, topic: str) -> None:
    """The same identity once more: the older connection gets conflict and ends, the newer one has the jobs it lists."""
    with system.worker("twice", topics=[topic], capacity=2) as older:
        kept, unknown = client.submit(new_job(topic=topic), new_job(topic=topic))
        assert [job[:2] for job in older.jobs(2)] == [[kept, 1], [unknown, 1]]
        with system.worker("twice", topics=[topic], capacity=2, running=[[kept, 1]]) as newer:
            assert newer.session == older.session
            assert older.expect("error")["code"] == "conflict"
            assert older.expect_end() == []
            # What it does not list was never known to it: given back uncharged, and handed out again.
            assert newer.job() == (unknown, 2)
            row = system.row(unknown)
            assert (row["status"], row["attempts"], row["uncharged"]) == ("RUNNING", 2, 1)
            assert newer.done((kept, 1), (unknown, 2)) == []


def test_a_hello_tells_what_is_lost(system: System, client: Peer, topic: str) -> None:
    """What a worker lists but does not hold any more is named; its place is taken until its result is answered."""
    with system.worker("late", topics=[topic], capacity=1) as worker:
        (canceled,) = client.submit(new_job(topic=topic))
        assert worker.job() == (canceled, 1)
    client.call("jobs.cancel", ids=[canceled])
    with system.worker("late", topics=[topic], capacity=1, running=[[canceled, 1]]) as worker:
        assert worker.welcome["lost"] == [[canceled, 1]]
        (waiting,) = client.submit(new_job(topic=topic))
        assert worker.idle()
        assert worker.done((canceled, 1)) == [[canceled, 1]]
        assert worker.job() == (waiting, 1)
        worker.done((waiting, 1))


# Assignment.


def test_jobs_come_by_priority_then_in_order(system: System, client: Peer, topic: str) -> None:
    """Higher priorities first, equal ones as submitted, however they were spread over requests."""
    with system.worker("ordered", topics=[topic], capacity=0) as worker:
        low = client.submit(*(new_job(topic=topic, priority=-5) for _ in range(3)))
        high = client.submit(*(new_job(topic=topic, priority=9) for _ in range(3)))
        more = client.submit(new_job(topic=topic, priority=-5))
        assert worker.idle()
        worker.send("capacity", None, capacity=20)
        assert [job[0] for job in worker.jobs(7)] == [*high, *low, *more]
        worker.done(*([identity, 1] for identity in (*high, *low, *more)))


def test_an_assignment_has_all_that_a_handler_needs(system: System, client: Peer, topic: str) -> None:
    """Id, attempt, name, topic, args as jsonb prints them, time limit, length of the lease, and nothing extra."""
    with system.worker("whole", topics=[topic]) as worker:
        (identity,) = client.submit(new_job(topic=topic, args='{"b":1,"a":"\u00e9"}', timeout_s=2.5))
        assert worker.jobs(1) == [[identity, 1, "n", topic, '{"a": "\u00e9", "b": 1}', 2.5, 30.0, None]]
        worker.done((identity, 1))


def test_capacity_is_credit(system: System, client: Peer, topic: str) -> None:
    """Never more than capacity are held; each answered result makes room for one more."""
    with system.worker("credit", topics=[topic], capacity=3) as worker:
        client.submit(*(new_job(topic=topic) for _ in range(6)))
        first = worker.jobs(3)
        assert worker.idle()
        for job in first:
            assert worker.done(job) == []
            (following,) = worker.jobs(1)
            assert worker.idle()
            first.append(following)
            if len(first) == 6:
                break
        worker.done(*first[3:])


def test_a_lowered_capacity_takes_nothing_away(system: System, client: Peer, topic: str) -> None:
    """After lowering, what is held stays; nothing new comes until fewer are held than the new capacity."""
    with system.worker("lower", topics=[topic], capacity=4) as worker:
        client.submit(*(new_job(topic=topic) for _ in range(6)))
        held = worker.jobs(4)
        worker.send("capacity", None, capacity=1)
        assert worker.done(*held[:3]) == []
        assert worker.idle()
        assert worker.beat(*(job[:2] for job in held[3:])) == []
        assert worker.done(held[3]) == []
        (fifth,) = worker.jobs(1)
        assert worker.idle()
        worker.done(fifth)
        worker.done(*worker.jobs(1))


def test_work_is_spread(system: System, client: Peer, topic: str, stack: contextlib.ExitStack) -> None:
    """Workers of the same topics share what comes, instead of one of them having it all."""
    workers = [stack.enter_context(system.worker(f"spread{number}", topics=[topic])) for number in range(3)]
    client.submit(*(new_job(topic=topic) for _ in range(6)))
    for worker in workers:
        worker.done(*worker.jobs(2))


def test_workers_of_a_topic_with_different_names(
    system: System, client: Peer, topic: str, stack: contextlib.ExitStack
) -> None:
    """Each job of a topic goes to a worker that names it, and never to another."""
    workers = {
        name: stack.enter_context(system.worker(f"only-{name}", topics=[topic], names=[name], capacity=10))
        for name in ("red", "green", "blue")
    }
    jobs = [new_job(topic=topic, name=("red", "green", "blue")[number % 3]) for number in range(24)]
    client.submit(*jobs)
    for name, worker in workers.items():
        mine = worker.jobs(8)
        assert {job[0] for job in mine} == {job["id"] for job in jobs if job["name"] == name}
        assert worker.done(*mine) == []
    assert {system.row(job["id"])["status"] for job in jobs} == {"COMPLETED"}


def test_a_name_that_nobody_serves_waits_and_says_so(system: System, client: Peer, topic: str) -> None:
    """It is put back uncharged with the reason, does not hold up others, and runs once somebody serves it."""
    with system.worker("other", topics=[topic], names=["m"]) as worker:
        (unserved, served) = client.submit(new_job(topic=topic, name="x"), new_job(topic=topic, name="m"))
        assert worker.job() == (served, 1)
        worker.done((served, 1))
        row = system.wait_row(unserved, status="PENDING", attempts=1)
        assert row["last_error"] == f'no handler named "x" on topic "{topic}"'
        assert row["uncharged"] == 1
        with system.worker("serves", topics=[topic], names=["x"]) as late:
            assert late.job() == (unserved, 2)
            assert late.done((unserved, 2)) == []


# Heartbeats.


def test_a_heartbeat_extends_what_it_lists(system: System, client: Peer, topic: str) -> None:
    """Exactly the listed leases are extended, with their progress; what is not held is named as lost."""
    with system.worker("beats", topics=[topic]) as worker:
        listed, silent, done = client.submit(*(new_job(topic=topic) for _ in range(3)))
        worker.jobs(3)
        worker.done((done, 1))
        for identity in (listed, silent):
            system.set_lease(identity, 5.0)
        assert worker.beat((listed, 1, '{"at":0.5}'), (done, 1), (silent, 9)) == [[done, 1], [silent, 9]]
        assert system.lease_s(listed) > 20
        assert system.lease_s(silent) < 10
        assert system.row(listed)["progress"] == '{"at": 0.5}'
        assert worker.beat((listed, 1, "NaN")) == []
        assert system.row(listed)["progress"] == '{"at": 0.5}'
        worker.done((listed, 1), (silent, 1))


def test_a_checkpoint_reaches_the_next_attempt(system: System, client: Peer, topic: str) -> None:
    """What a worker saved for a job comes with its next attempt; what is no JSON is not kept, nor is the job lost."""
    with system.worker("saves", topics=[topic], capacity=1) as worker:
        (identity,) = client.submit(new_job(topic=topic))
        worker.job()
        jobs = [[identity, 1, '{"at":1}'], [identity, 2, "2"]]
        assert worker.call("checkpoint", jobs=jobs) == {"lost": [[identity, 2]]}
        assert worker.call("checkpoint", jobs=[[identity, 1, "NaN"]]) == {"lost": []}
        worker.report([identity, 1, "release", None])
        ((_, attempt, *_, extra),) = worker.jobs(1)
        assert attempt == 2
        assert extra["previous"]["outcome"] == "released"
        assert extra["previous"]["checkpoint"] == '{"at": 1}'
        worker.done((identity, 2))


def test_a_pool_parent_beats_for_its_child(system: System, client: Peer, topic: str) -> None:
    """A session and nil extend all leases of that session; a session that nobody has extends nothing."""
    with (
        system.worker("child", topics=[topic]) as child,
        system.worker("parent", capacity=0, names=[], topics=[]) as parent,
    ):
        first, second = client.submit(new_job(topic=topic), new_job(topic=topic))
        child.jobs(2)
        system.set_lease(first, 5.0)
        system.set_lease(second, 5.0)
        assert parent.call("heartbeat", session=b"?" * 16, jobs=None) == {"lost": []}
        assert system.lease_s(first) < 10
        assert parent.call("heartbeat", session=child.session, jobs=None) == {"lost": []}
        assert min(system.lease_s(first), system.lease_s(second)) > 20
        assert parent.name not in {row["name"] for row in client.call("workers.list")["workers"]}
        child.done((first, 1), (second, 1))


def test_stopped_and_lost_jobs_free_their_place(system: System, client: Peer, topic: str) -> None:
    """A canceled job takes its place until the worker has reported it, stale as that is."""
    with system.worker("stopped", topics=[topic], capacity=1) as worker:
        canceled, waiting = client.submit(new_job(topic=topic), new_job(topic=topic))
        assert worker.job() == (canceled, 1)
        client.call("jobs.cancel", ids=[canceled])
        assert worker.expect("stop") == {"jobs": [[canceled, 1, "canceled"]]}
        assert worker.beat((canceled, 1)) == [[canceled, 1]]
        assert worker.idle()
        assert worker.report([canceled, 1, "error", "stopped"]) == [[canceled, 1]]
        assert worker.job() == (waiting, 1)
        assert system.row(canceled)["status"] == "CANCELED"
        worker.done((waiting, 1))


def test_a_worker_may_ask_what_a_client_asks(system: System, topic: str) -> None:
    """A handler enqueues follow-up jobs over its worker's own connection."""
    with system.worker("asks", topics=[topic]) as worker:
        job = new_job(topic=topic)
        assert worker.call("submit", jobs=[job]) == {"ids": [job["id"]]}
        assert worker.job() == (job["id"], 1)
        assert worker.call("jobs.get", id=job["id"])["job"]["status"] == "RUNNING"
        worker.done((job["id"], 1))


def test_args_that_no_frame_can_carry(system: System, topic: str) -> None:
    """Args of any length may come by SQL: what no frame can carry is a dead letter with its reason, others go on."""
    (row,) = system.rows(
        "SELECT pulse.submit('n', jsonb_build_object('a', repeat('x', 9 * 1024 * 1024)), topic => $1) AS id", topic
    )
    with system.worker("short", topics=[topic]) as worker:
        dead = system.wait_row(row["id"].bytes, status="DEAD_LETTERED")
        assert dead["last_error"].startswith("args have 9437193 bytes as the database prints them; at most ")
        job = new_job(topic=topic)
        worker.submit(job)
        assert worker.job() == (job["id"], 1)
        worker.done((job["id"], 1))


def test_workers_come_and_go(system: System, topic: str) -> None:
    """A worker that has hung up is not listed, and gets nothing."""
    with system.worker("gone", topics=[topic]) as worker:
        assert isinstance(worker, Worker)
    with system.client() as client:
        client.submit(new_job(topic=topic))
        assert topic not in {name for row in client.call("workers.list")["workers"] for name in row["topics"]}
