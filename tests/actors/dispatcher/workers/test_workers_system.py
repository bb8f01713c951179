"""The dispatcher and its workers, on the raw wire: hello, credit, reports, heartbeats, routing by name."""

from __future__ import annotations

import json
from typing import Final
from uuid import UUID

import pytest

from tests.support.systems.system import Body, Peer, Refused, System, Worker, new_job
from tests.support.systems.system_kit import END_S
from tests.support.waiting import until

pytestmark = [pytest.mark.postgres, pytest.mark.process, pytest.mark.system]

# No poll can help a wake-up that is missing.
SETTINGS: Final = {"PULSE_POLL_S": "60"}


def test_a_welcome(system: System, client: Peer, topic: str) -> None:
    """All get the times and the longest frame; a worker also its session, its identity, and its lost attempts."""
    terms = {"protocol": 1, "heartbeat_s": 10.0, "lease_s": 30.0, "max_frame_bytes": 8 * 1024 * 1024, "schema": "pulse"}
    assert client.welcome == {**terms, "server": client.welcome["server"]}
    assert client.welcome["server"].startswith("pulse ")
    with system.worker("w", topics=[topic], names=["b", "a"], capacity=3) as worker:
        assert len(worker.session) == 16
        (row,) = [row for row in worker.call("workers.list")["workers"] if row["topics"] == [topic]]
        own = {"session": worker.session, "lost": [], "worker": row["identity"]}
        assert worker.welcome == {**client.welcome, **own}
        assert (row["name"], row["names"], row["capacity"], row["running"]) == ("w", ["a", "b"], 3, [])


@pytest.mark.parametrize(("kind", "body", "code"), [
    ("ping", {}, "bad_request"),
    ("hello", {"protocol": 2, "role": "client"}, "unsupported_version"),
    ("hello", {"protocol": 1, "role": "worker"}, "bad_request"),
    ("hello", {"protocol": 1, "role": "worker", "worker": "w", "topics": ["a\0b"]}, "bad_request"),
    ("hello", {"protocol": 1, "role": "worker", "worker": "w", "handlers": {"n": {"topic": "\0"}}}, "bad_request"),
])  # fmt: skip
def test_a_wrong_hello_ends_the_connection(system: System, client: Peer, kind: str, body: Body, code: str) -> None:
    with system.peer() as peer:
        peer.send(kind, 0, **body)
        with pytest.raises(Refused) as refused:
            peer.answer(0)
        assert refused.value.code == code
        assert peer.expect_end() == []
    assert client.call("ping") == {}


@pytest.mark.rest
def test_no_hello_in_time_ends_the_connection(system: System, client: Peer) -> None:
    with system.peer() as silent, system.peer() as slow:
        slow.send_bytes(b"\0\0\0\x20\x93")
        for peer in (silent, slow):
            assert peer.expect("error") == {"code": "unavailable", "message": "no hello within 5 s"}
            assert peer.expect_end() == []
    assert client.call("ping") == {}


def test_an_assignment_has_all_that_a_handler_needs(system: System, client: Peer, topic: str) -> None:
    with system.worker("whole", topics=[topic]) as worker:
        (identity,) = client.submit(new_job(topic=topic, args='{"b":1,"a":"\u00e9"}', timeout_s=2.5))
        assert worker.jobs(1) == [[identity, 1, "n", topic, '{"a": "\u00e9", "b": 1}', 2.5, 30.0, None]]
        worker.done((identity, 1))


def test_a_worker_is_drained(system: System, client: Peer, topic: str) -> None:
    """It receives `drain` and gets no more jobs; the audit has an entry. Nobody else can be drained."""
    with system.worker("leaving", topics=[topic]) as worker:
        (row,) = [one for one in client.call("workers.list")["workers"] if one["topics"] == [topic]]
        assert not row["draining"]
        assert client.call("workers.drain", worker=row["identity"]) == {}
        assert worker.expect("drain") == {"reconnect": False, "replace": True}
        (row,) = [one for one in client.call("workers.list")["workers"] if one["topics"] == [topic]]
        assert row["draining"]
        (noted,) = client.call("audit.list", limit=1)["audit"]
        assert (noted["action"], json.loads(noted["detail"])) == (
            "workers.drain",
            {"pid": row["pid"], "worker": "leaving"},
        )
    assert client.refusal("workers.drain", worker="nobody")[0] == "not_found"


def test_a_worker_that_dies_with_its_last_answer_unread(system: System, client: Peer, topic: str) -> None:
    """The server logs the dead letter in its place; a worker that goes on logs it by itself."""
    with system.worker("quick", topics=[topic]) as worker:
        (dead,) = client.submit(new_job(topic=topic, max_attempts=1))
        assert worker.job() == (dead, 1)
        worker.send("report", 7, results=[[dead, 1, "error", "boom"]])
        system.wait_row(dead, status="DEAD_LETTERED")
    until(lambda: system.log("job_dead_lettered", id=str(UUID(bytes=dead))), "its line", END_S)


def test_workers_come_and_go(system: System, topic: str) -> None:
    with system.worker("gone", topics=[topic]) as worker:
        assert isinstance(worker, Worker)
    with system.client() as client:
        client.submit(new_job(topic=topic))
        assert topic not in {name for row in client.call("workers.list")["workers"] for name in row["topics"]}


def test_a_submit_that_no_handler_is_there_for(client: Peer, topic: str, system: System) -> None:
    """It is stored, and the answer names the missing handlers, and similar names."""
    with system.worker("w", topics=[topic], names=["send_mail"]):
        good, bad = [new_job(topic=topic, name=name) for name in ("send_mail", "sned_mail")]
        answer = client.call("submit", jobs=[good, bad])
        assert answer == {"ids": [good["id"], bad["id"]], "unhandled": [["sned_mail", topic, ["send_mail"]]]}
        assert client.call("submit", jobs=[new_job(topic=topic, name="send_mail")]).keys() == {"ids"}
    assert client.call("submit", jobs=[new_job(topic=topic, name="sned_mail")]).keys() == {"ids"}  # nobody serves it
