"""``pulse bridge nats-outbox`` between a real pulse and a real nats-server: each end is stored, whatever is killed."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator
from typing import Any, Final

import pytest

import pulse
from tests.pulse.bridge.nats_kit import BridgeProcess, DoneHold, NatsServer, Stream, nats_server
from tests.support.systems.system_kit import END_S, Whole
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system, pytest.mark.rest]

EXPIRED: Final = "UPDATE pulse.outbox SET taken_until = '-infinity'"


@pytest.fixture(scope="module")
def broker() -> Iterator[NatsServer]:
    with nats_server() as made:
        yield made


@pytest.fixture
def stream(broker: NatsServer, topic: str) -> Stream:
    """A stream of its own: the subjects begin with the topic."""
    return broker.stream(topic)


@pytest.fixture
def publishes(whole: Whole, topic: str) -> str:
    whole.rows("DELETE FROM pulse.outbox")
    whole.rows("SELECT pulse.set_topic($1, '{\"publish\": true}')", topic)
    return topic


class Publishers:
    def __init__(self, whole: Whole, stack: contextlib.ExitStack) -> None:
        self._whole = whole
        self._stack = stack

    def start(self, stream: Stream, *words: str) -> BridgeProcess:
        number = len(list(self._whole.directory.glob("outbox-*")))
        errors = self._whole.directory / f"outbox-{stream.name}-{number}"
        source = ["nats-outbox", "--url", stream.server.url, "--subject", "{topic}.{status}"]
        made = BridgeProcess(self._whole, [*source, *words], {}, errors)
        self._stack.callback(made.kill)
        made.wait_log("outbox_ready")
        return made


@pytest.fixture
def publishers(whole: Whole, stack: contextlib.ExitStack) -> Publishers:
    return Publishers(whole, stack)


def end(whole: Whole, topic: str, number: int) -> set[str]:
    """So many jobs that are canceled at once; returns their ids."""
    sql = "SELECT pulse.submit('mark', topic => $1, delay_s => 3600)::text AS id FROM generate_series(1, $2)"
    ids = [row["id"] for row in whole.rows(sql, topic, number)]
    with pulse.Client(whole.path, timeout_s=END_S) as client:
        client.cancel(*ids)
    return set(ids)


def told(stream: Stream) -> list[Any]:
    return [json.loads(message.data or b"") for message in stream.messages()]


def waiting(whole: Whole) -> int:
    [row] = whole.rows("SELECT count(*)::int AS ends FROM pulse.outbox")
    number: int = row["ends"]
    return number


def wait_empty(whole: Whole) -> None:
    until(lambda: not waiting(whole), "the outbox is empty", END_S)


def test_ends_become_messages(whole: Whole, stream: Stream, publishers: Publishers, publishes: str) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    publisher = publishers.start(stream)
    sql = "SELECT pulse.submit('mark', topic => $1, traceparent => $2)::text AS id"
    [row] = whole.rows(sql, publishes, trace)
    job = row["id"]
    whole.pool("--topic", publishes)
    until(lambda: told(stream), "its end", END_S)
    [message] = stream.messages()
    facts = json.loads(message.data or b"")
    assert (message.subject, facts["id"], facts["status"]) == (f"{publishes}.completed", job, "COMPLETED")
    assert (message.headers or {})["traceparent"] == trace
    assert (message.headers or {})["Nats-Msg-Id"].startswith(f"{job}.1.COMPLETED.")
    wait_empty(whole)
    assert publisher.stop("outbox_stopped")["published"] == 1


def test_killed_between_the_broker_and_the_server(
    whole: Whole, stream: Stream, publishers: Publishers, publishes: str
) -> None:
    """The ends come again when their time is over, and JetStream recognizes them."""
    ids = end(whole, publishes, 3)
    path = whole.directory / f"hold-{publishes}"
    with DoneHold(whole.path, path).running() as hold:
        publisher = publishers.start(stream, "--socket", str(path))
        assert hold.holds.wait(END_S)
        publisher.kill()
        assert (len(told(stream)), waiting(whole)) == (3, 3)
        whole.rows(EXPIRED)
        publishers.start(stream)
        wait_empty(whole)
    assert (len(told(stream)), {one["id"] for one in told(stream)}) == (3, ids)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_broker_restarts(
    whole: Whole, broker: NatsServer, stream: Stream, publishers: Publishers, publishes: str, number: signal.Signals
) -> None:
    publisher = publishers.start(stream)
    ids = end(whole, publishes, 20)
    wait_empty(whole)
    broker.end(number)
    publisher.wait_log("bridge_broker_failed")
    ids |= end(whole, publishes, 20)
    broker.start()
    publisher.wait_log("bridge_broker_back")
    whole.rows(EXPIRED)  # of some it may have been in the middle
    wait_empty(whole)
    assert {one["id"] for one in told(stream)} == ids


def test_two_publishers(whole: Whole, stream: Stream, publishers: Publishers, publishes: str) -> None:
    both = [publishers.start(stream) for _ in range(2)]
    ids = end(whole, publishes, 500)
    wait_empty(whole)
    assert {one["id"] for one in told(stream)} == ids
    assert len(told(stream)) == 500
    assert sum(one.stop("outbox_stopped")["published"] for one in both) == 500


def test_nobody_takes_the_subject(whole: Whole, stream: Stream, publishers: Publishers, publishes: str) -> None:
    """The end stays, and goes out once there is a stream."""
    end(whole, publishes, 1)
    publisher = publishers.start(stream, "--subject", "nobody.{topic}")
    said = publisher.wait_log("outbox_publish_failed")
    assert (said["messages"], waiting(whole)) == (1, 1)
    assert f"nobody.{publishes}: " in said["error"]
    publisher.stop("outbox_stopped")
    whole.rows(EXPIRED)
    publishers.start(stream)
    wait_empty(whole)
    assert len(told(stream)) == 1


def test_a_large_result(whole: Whole, stream: Stream, publishers: Publishers, publishes: str) -> None:
    end(whole, publishes, 1)
    whole.rows("UPDATE pulse.outbox SET result = to_jsonb(repeat('x', 1100000))")
    publishers.start(stream)
    wait_empty(whole)
    assert [one["result_omitted"] for one in told(stream)] == [True]
