"""What a restart costs: workers come back to the same socket with all their jobs, and no attempt is charged."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

import pytest

from tests.support.servers.postgres import Postgres
from tests.support.systems.system import Peer, Refused, System, Worker, new_job, running
from tests.support.waiting import until

pytestmark = [pytest.mark.postgres, pytest.mark.process, pytest.mark.system]

# No poll can help a wake-up that is missing.
SETTINGS: Final = {"PULSE_POLL_S": "60", "PULSE_SWEEP_S": "0.2"}
ALLOW: Final = "UPDATE pg_database SET datallowconn = $1 WHERE datname = current_database()"
CUT: Final = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


@pytest.fixture
def client(system: System) -> Iterator[Peer]:
    with system.client() as made:
        yield made


def restart(system: System) -> None:
    system.wait_actor("dispatcher", not_pid=system.kill_actor("dispatcher"))


def hold(worker: Worker, client: Peer, topic: str, count: int) -> list[bytes]:
    ids = client.submit(*(new_job(topic=topic) for _ in range(count)))
    assert [tuple(job[:2]) for job in worker.jobs(count)] == [(identity, 1) for identity in ids]
    return ids


def test_running_jobs_are_readopted(system: System, client: Peer, topic: str) -> None:
    """A worker that comes back keeps the attempts that it lists; the others are free."""
    with system.worker("back", topics=[topic], capacity=3) as worker:
        kept, finished, unknown = hold(worker, client, topic, 3)
        worker.send("started", None, jobs=[[kept, 1]])
        restart(system)
        assert worker.expect_end() == []
    # `finished` ended while nobody was there to hear of it, and `unknown` was assigned in a frame that never arrived.
    with system.worker("back", topics=[topic], capacity=3, running=[[kept, 1], [finished, 1]]) as worker:
        assert worker.welcome["lost"] == []
        assert worker.job() == (unknown, 2)
        assert worker.report([finished, 1, "ok", '"kept"']) == []
        assert worker.done((kept, 1), (unknown, 2)) == []
        for identity, attempts, uncharged in ((kept, 1, 0), (finished, 1, 0), (unknown, 2, 1)):
            row = system.row(identity)
            assert (row["status"], row["attempts"], row["uncharged"]) == ("COMPLETED", attempts, uncharged)
        assert system.row(finished)["result"] == '"kept"'


def test_nobody_is_refused_while_the_dispatcher_is_away(newest_server: Postgres) -> None:
    """The listening socket outlives the dispatcher: the next one serves connections from meanwhile; pauses stay."""
    with (
        newest_server.database() as dsn,
        running(dsn, {"PULSE_POLL_S": "60"}) as system,
        contextlib.ExitStack() as stack,
    ):
        with system.client() as client:
            client.call("dispatch.pause", topic="t")
        old = system.kill_actor("dispatcher")
        peers = [stack.enter_context(system.peer()) for _ in range(20)]
        for peer in peers:
            peer.send("hello", 0, protocol=1, role="client")
        worker = stack.enter_context(system.worker("early", topics=["t"]))
        assert {peer.answer(0)["protocol"] for peer in peers} == {1}
        assert system.wait_actor("dispatcher", not_pid=old)
        (waiting,) = peers[0].submit(new_job(topic="t"))
        assert worker.idle()
        peers[1].call("dispatch.resume", topic="t")
        assert worker.job() == (waiting, 1)
        worker.done((waiting, 1))


def test_an_outage_of_the_database(system: System, topic: str) -> None:
    """Meanwhile requests are refused, results are kept, workers come and go; then all goes on, nothing lost."""
    with contextlib.ExitStack() as stack:
        pids = system.pids()
        client = stack.enter_context(system.client())
        worker = stack.enter_context(system.worker("kept", topics=[topic]))
        first, second, third = hold(worker, client, topic, 3)
        system.rows(ALLOW, False)
        system.rows(CUT)
        reported = worker.ask("report", results=[[first, 1, "ok", "1"]])
        with pytest.raises(Refused, match="unavailable"):
            client.submit(new_job(topic=topic))
        with pytest.raises(Refused, match="unavailable"):
            worker.beat((second, 1))
        status = client.call("status")
        assert (status["database"]["ok"], status["jobs"]) == (False, None)
        with system.worker("kept", topics=[topic], running=[[second, 1], [third, 1]]) as again:
            assert again.welcome["lost"] is None
            system.rows(ALLOW, True)
            assert worker.expect("error")["code"] == "conflict"
            assert again.beat((second, 1), (third, 1)) == []
            until(lambda: system.row(first)["status"] == "COMPLETED", "the kept result is written")
            assert again.done((second, 1), (third, 1)) == []
            (job,) = client.submit(new_job(topic=topic))
            assert again.job() == (job, 1)
            again.done((job, 1))
        assert reported == 1
        assert {system.row(identity)["attempts"] for identity in (first, second, third)} == {1}
        assert system.pids() == pids
