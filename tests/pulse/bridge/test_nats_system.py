"""``pulse bridge nats`` between a real nats-server and a real pulse: what is lost, and what comes twice."""

from __future__ import annotations

import contextlib
import signal
import ssl
from collections.abc import Iterator
from functools import partial
from typing import Any, Final
from uuid import UUID

import pytest
from nats.js.api import AckPolicy, RetentionPolicy

from tests.pulse.bridge.nats_kit import AckHold, Bridges, NatsServer, Stream, nats_server
from tests.support.confidential import confidential
from tests.support.servers.certificates import Authority
from tests.support.systems.system import short_directory
from tests.support.systems.system_kit import END_S, Whole
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system, pytest.mark.rest]

PASSWORD: Final = confidential("correct horse battery", "password of ann")
TRACE: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def broker() -> Iterator[NatsServer]:
    with nats_server() as made:
        yield made


@pytest.fixture
def stream(broker: NatsServer, topic: str) -> Stream:
    return broker.stream(topic)


@pytest.fixture
def bridges(whole: Whole, stack: contextlib.ExitStack) -> Bridges:
    return Bridges(whole, stack)


def jobs(whole: Whole, topic: str) -> list[Any]:
    """The args of the jobs of a topic, in the order of their submits."""
    return [row["args"] for row in rows(whole, topic)]


def rows(whole: Whole, topic: str) -> list[Any]:
    sql = "SELECT id, name, args::text, status::text, traceparent FROM pulse.jobs WHERE topic = $1 ORDER BY next_run_at"
    return whole.rows(sql, topic)


def words(topic: str, *more: str, handler: str = "mark") -> list[str]:
    return ["--handler", handler, "--topic", topic, *more]


def test_messages_become_jobs(whole: Whole, stream: Stream, bridges: Bridges, topic: str) -> None:
    stream.publish(b'{"n": 1.10}', {"n": 2}, traceparent=TRACE)
    bridge = bridges.start(stream, *words(topic))
    stream.publish({"n": 3}, traceparent="wrong")
    info = stream.wait_done(3)
    assert jobs(whole, topic) == ['{"n": 1.10}', '{"n": 2}', '{"n": 3}']
    assert [row["traceparent"] for row in rows(whole, topic)] == [TRACE, TRACE, None]
    pool = whole.pool("--topic", topic)
    for row in rows(whole, topic):
        whole.wait_entry(row["id"], "end")
    assert (info.config.ack_wait, info.config.ack_policy, pool.stop()) == (30.0, AckPolicy.EXPLICIT, 0)
    said = bridge.stop()
    assert (said["jobs"], said["refused"], said["given_back"]) == (3, 0, 0)


def test_the_topic_of_the_handler(whole: Whole, stream: Stream, bridges: Bridges, topic: str) -> None:
    """The first job shows it, and its depth limits the bridge from then on."""
    whole.rows("INSERT INTO pulse.handlers (name, topic) VALUES ($1, $1)", topic)
    stream.publish(*({"n": n} for n in range(30)))
    bridges.start(stream, "--handler", topic, "--max-waiting", "10")
    until(lambda: len(jobs(whole, topic)) == 10, "the topic is full")
    whole.rows("DELETE FROM pulse.jobs WHERE topic = $1", topic)
    until(lambda: len(jobs(whole, topic)) == 10, "the next ones")


def test_killed_between_commit_and_ack(
    whole: Whole, broker: NatsServer, stream: Stream, bridges: Bridges, topic: str
) -> None:
    stream.consumer(ack_wait=1.0)
    stream.publish({"n": 1}, {"n": 2})
    with AckHold(broker.port).running() as hold:
        bridge = bridges.start(stream, *words(topic), url=hold.url)
        assert hold.holds.wait(END_S)
        bridge.kill()
        before = rows(whole, topic)
        assert [row["args"] for row in before] == ['{"n": 1}']
        assert stream.info().num_ack_pending
    bridges.start(stream, *words(topic))
    assert stream.wait_done(2).num_redelivered == 0
    assert jobs(whole, topic) == ['{"n": 1}', '{"n": 2}']
    assert rows(whole, topic)[0]["id"] == before[0]["id"]


def test_a_message_that_two_bridges_acknowledge(
    whole: Whole, broker: NatsServer, stream: Stream, bridges: Bridges, topic: str
) -> None:
    stream.consumer(ack_wait=0.5)
    stream.publish({"n": 1})
    with AckHold(broker.port).running() as hold:
        slow = bridges.start(stream, *words(topic), url=hold.url)
        assert hold.holds.wait(END_S)
        fast = bridges.start(stream, *words(topic))
        stream.wait_done(1)
        hold.released.set()
        assert (fast.stop()["jobs"], slow.stop()["jobs"]) == (1, 1)
    assert (jobs(whole, topic), stream.is_done(1)) == (['{"n": 1}'], True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_broker_restarts(
    whole: Whole, broker: NatsServer, stream: Stream, bridges: Bridges, topic: str, number: signal.Signals
) -> None:
    """A killed one forgets acknowledgements: their messages come again."""
    stream.consumer(ack_wait=1.0)
    stream.publish(*({"n": n} for n in range(50)))
    bridge = bridges.start(stream, *words(topic))
    stream.wait_done(50)
    broker.end(number)
    bridge.wait_log("bridge_broker_failed")
    broker.start()
    stream.publish(*({"n": n} for n in range(50, 100)))
    stream.wait_done(100)
    assert jobs(whole, topic) == [f'{{"n": {n}}}' for n in range(100)]
    assert bridge.stop()["jobs"] >= 100


def test_two_bridges_share_the_messages(whole: Whole, stream: Stream, bridges: Bridges, topic: str) -> None:
    both = [bridges.start(stream, *words(topic)) for _ in range(2)]
    stream.publish(*({"n": n} for n in range(500)))
    stream.wait_done(500)
    shares = [bridge.stop()["jobs"] for bridge in both]
    assert sorted(jobs(whole, topic)) == sorted(f'{{"n": {n}}}' for n in range(500))
    assert sum(shares) == 500
    assert min(shares) > 0


def test_the_topic_is_full(whole: Whole, stream: Stream, bridges: Bridges, topic: str) -> None:
    bridge = bridges.start(stream, *words(topic, "--max-waiting", "100"))
    stream.publish(*({"n": n} for n in range(300)))
    until(lambda: len(jobs(whole, topic)) >= 100, "the topic is full")
    assert stream.info().num_pending
    whole.pool("--topic", topic)
    most = 0

    def is_through() -> bool:
        nonlocal most
        (row,) = whole.rows("SELECT count(*) AS n FROM pulse.jobs WHERE topic = $1 AND status = 'PENDING'", topic)
        most = max(most, row["n"])
        return stream.is_done(300)

    until(is_through, "all become jobs", END_S)
    assert most <= 101
    assert bridge.stop()["jobs"] == 300


class TestWhatIsNoJob:
    """Each of these is refused by itself, and those around it become jobs."""

    POISON: Final = (b"not JSON", b"[1]", b'"x"', b"\xff", b'{"x": "\\u0000"}', b"")

    def test_it_is_terminated(self, whole: Whole, stream: Stream, bridges: Bridges, topic: str) -> None:
        stream.publish({"n": 1}, *self.POISON, {"n": 2})
        bridge = bridges.start(stream, *words(topic))
        stream.wait_done(2 + len(self.POISON))
        assert jobs(whole, topic) == ['{"n": 1}', '{"n": 2}']
        said = bridge.log("bridge_message_refused")
        assert [one["position"] for one in said] == [f"{topic}/{n}" for n in range(2, 2 + len(self.POISON))]
        assert {(one["subject"], one["deliveries"], one["level"]) for one in said} == {(f"{topic}.new", 1, "error")}
        assert said[1]["error"] == "args must be a JSON object of keyword arguments, not an array"
        assert bridge.stop()["refused"] == len(self.POISON)

    def test_a_handler_takes_it(self, whole: Whole, stream: Stream, bridges: Bridges, topic: str) -> None:
        refused = f"{topic}-refused"
        whole.rows("INSERT INTO pulse.handlers (name, topic) VALUES ($1, $1)", refused)
        stream.publish({"n": 1}, b"[1]", b"\xff", colour="red")
        bridge = bridges.start(stream, *words(topic, "--refused-handler", refused))
        stream.wait_done(3)
        text, raw = (whole_args(whole, row["id"]) for row in rows(whole, refused))
        assert text == {
            "subject": f"{topic}.new", "headers": {"colour": "red"}, "data": "[1]", "base64": False,
            "position": f"{topic}/2", "error": "args must be a JSON object of keyword arguments, not an array",
        }  # fmt: skip
        assert (raw["data"], raw["base64"], raw["error"]) == ("/w==", True, "args are not UTF-8 text")
        assert {one["level"] for one in bridge.log("bridge_message_refused")} == {"warning"}

    def test_a_second_message_with_the_id_of_another(
        self, whole: Whole, broker: NatsServer, bridges: Bridges, topic: str
    ) -> None:
        """JetStream forgets ids after a while: the same message again is the same job, another one is refused."""
        stream = broker.stream(topic, duplicate_window=0.1)
        for number, args in enumerate(({"n": 1}, {"n": 1}, {"n": 2}), 1):
            until(partial(put, stream, args, number), "the id is forgotten")
        bridge = bridges.start(stream, *words(topic))
        stream.wait_done(3)
        assert jobs(whole, topic) == ['{"n": 1}']
        (said,) = bridge.log("bridge_message_refused")
        assert (said["position"], "exists already with another name, topic or args" in said["error"]) == (
            f"{topic}/3", True,
        )  # fmt: skip

    def test_a_stream_that_forgets_it(self, broker: NatsServer, bridges: Bridges, topic: str) -> None:
        stream = broker.stream(topic, retention=RetentionPolicy.WORK_QUEUE)
        bridge = bridges.start(stream, *words(topic), wait=False)
        assert bridge.process.wait(END_S) == 1
        assert bridge.said.startswith("pulse: --refused-handler is not given: the stream forgets a message")
        bridges.start(stream, *words(topic, "--refused-handler", "see"))

    def test_it_is_too_long_for_any_handler(
        self, whole: Whole, broker: NatsServer, bridges: Bridges, topic: str
    ) -> None:
        """As text in JSON it is longer than args may be: it stays in the stream, and comes again."""
        stream = broker.stream(topic, retention=RetentionPolicy.WORK_QUEUE)
        stream.publish(b"\xff" * 900_000, {"n": 1})
        bridge = bridges.start(stream, *words(topic, "--refused-handler", "see"))
        assert bridge.wait_log("bridge_message_stuck")["position"] == f"{topic}/1"
        until(lambda: jobs(whole, topic) == ['{"n": 1}'], "the other one")
        until(lambda: stream.info().num_ack_pending == 1, "the other one is acknowledged")


def put(stream: Stream, args: object, number: int) -> bool:
    """Whether the stream has taken it as message *number*."""
    stream.publish(args, message_id="same")
    return stream.server.ask(lambda context: context.stream_info(stream.name)).state.messages == number


def whole_args(whole: Whole, job: UUID) -> Any:
    with contextlib.closing(whole.jobs().client) as client:
        return client.get(job).args


def test_messages_as_they_are(whole: Whole, stream: Stream, bridges: Bridges, topic: str) -> None:
    stream.publish(b"plain \xc3\xa4", b"\x00", colour="red")
    bridges.start(stream, *words(topic, "--as-message"))
    stream.wait_done(2)
    text, raw = (whole_args(whole, row["id"]) for row in rows(whole, topic))
    assert text == {"subject": f"{topic}.new", "headers": {"colour": "red"}, "data": "plain ä", "base64": False}
    assert (raw["data"], raw["base64"]) == ("AA==", True)


def test_a_job_that_was_moved_is_still_the_job_of_its_message(
    whole: Whole, broker: NatsServer, stream: Stream, bridges: Bridges, topic: str
) -> None:
    stream.consumer(ack_wait=1.0)
    stream.publish({"n": 1})
    with AckHold(broker.port).running() as hold:
        bridge = bridges.start(stream, *words(topic), url=hold.url)
        assert hold.holds.wait(END_S)
        bridge.kill()
    whole.rows("UPDATE pulse.jobs SET topic = $2 WHERE topic = $1", topic, f"{topic}-moved")
    bridge = bridges.start(stream, *words(topic))
    stream.wait_done(1)
    assert (jobs(whole, topic), len(jobs(whole, f"{topic}-moved"))) == ([], 1)
    assert bridge.stop()["refused"] == 0


def test_two_handlers_of_one_stream(whole: Whole, stream: Stream, bridges: Bridges, topic: str) -> None:
    """Each consumer makes a job of its own of the message."""
    stream.publish({"n": 1})
    bridges.start(stream, *words(topic))
    stream.wait_done(1)
    bridges.start(stream, *words(topic, "--consumer", "d", handler="mark-plain"))
    until(lambda: [row["name"] for row in rows(whole, topic)] == ["mark", "mark-plain"], "two jobs")


def test_it_logs_in(whole: Whole, bridges: Bridges, topic: str) -> None:
    """By TLS with a certificate of its own, and with a user."""
    with short_directory() as directory:
        authority = Authority(directory)
        server, own = authority.issue("server", "127.0.0.1"), authority.issue("own", "bridge")
        trusted = ssl.create_default_context(cafile=authority.file)
        trusted.load_cert_chain(own.cert, own.key)
        words_ = ["--tlsverify", "--tlscacert", authority.file, "--tlscert", server.cert, "--tlskey", server.key]
        user = ["--user", "ann", "--pass", PASSWORD]
        with nats_server(*map(str, words_), *user, tls=trusted, user="ann", password=PASSWORD) as broker:
            stream = broker.stream(topic)
            stream.publish({"n": 1})
            files = {"NATS_CA": str(authority.file), "NATS_CERT": str(own.cert), "NATS_KEY": str(own.key)}
            env = {**files, "NATS_USER": "ann", "NATS_PASSWORD": PASSWORD}
            bridge = bridges.start(stream, *words(topic), env=env)
            stream.wait_done(1)
            assert bridge.stop()["jobs"] == 1


def test_a_stop_while_the_broker_is_away(broker: NatsServer, stream: Stream, bridges: Bridges, topic: str) -> None:
    bridge = bridges.start(stream, *words(topic))
    broker.end()
    bridge.wait_log("bridge_broker_failed")
    assert bridge.stop()["jobs"] == 0
    broker.start()


class TestTheServerIsAway:
    def test_messages_are_kept_until_it_is_back(
        self, whole: Whole, stream: Stream, bridges: Bridges, topic: str
    ) -> None:
        """For longer than JetStream waits: no other bridge gets them meanwhile."""
        stream.consumer(ack_wait=4.0)
        both = [bridges.start(stream, *words(topic)) for _ in range(2)]
        whole.stop()
        stream.publish({"n": 1})
        until(lambda: max(len(bridge.log("bridge_waits")) for bridge in both) > 4, "one waits", END_S)
        whole.start()
        stream.publish({"n": 2})
        delivered = stream.wait_done(2).delivered
        assert delivered is not None
        assert delivered.consumer_seq == 2
        assert sorted(jobs(whole, topic)) == ['{"n": 1}', '{"n": 2}']
        assert {said["messages"] for bridge in both for said in bridge.log("bridge_waits")} == {1}

    def test_a_stop_gives_them_back(self, whole: Whole, stream: Stream, bridges: Bridges, topic: str) -> None:
        stream.publish({"n": 1})
        whole.stop()
        bridge = bridges.start(stream, *words(topic))
        bridge.wait_log("bridge_waits")
        assert bridge.stop()["given_back"] == 1
        whole.start()
        bridges.start(stream, *words(topic))
        assert stream.wait_done(1).config.ack_wait == END_S  # it has not been waited for
        assert jobs(whole, topic) == ['{"n": 1}']


class TestWhatItRefuses:
    def test_no_such_stream(self, broker: NatsServer, bridges: Bridges, topic: str) -> None:
        bridge = bridges.start(Stream(broker, topic), *words(topic), wait=False)
        assert bridge.process.wait(END_S) == 1
        assert bridge.said == f"pulse: --stream is {topic}: {broker.url} has no such stream\n"

    @pytest.mark.parametrize(("options", "said"), [
        ({"ack_policy": AckPolicy.NONE}, "has other acknowledgements"),
        ({"deliver_subject": "x"}, "pushes"),
    ])  # fmt: skip
    def test_a_consumer_that_does_not_suit(
        self, stream: Stream, bridges: Bridges, topic: str, options: dict[str, Any], said: str
    ) -> None:
        stream.consumer(**options)
        bridge = bridges.start(stream, *words(topic), wait=False)
        assert bridge.process.wait(END_S) == 1
        assert f"consumer c of stream {topic} {said}: a pull consumer with explicit" in bridge.said

    def test_another_subject_than_the_consumer_has(self, stream: Stream, bridges: Bridges, topic: str) -> None:
        bridges.start(stream, *words(topic, "--subject", f"{topic}.new")).stop()
        bridges.start(stream, *words(topic, "--subject", f"{topic}.new")).stop()
        bridge = bridges.start(stream, *words(topic, "--subject", f"{topic}.old"), wait=False)
        assert bridge.process.wait(END_S) == 1
        assert bridge.said.endswith(f"is there already, with {topic}.new\n")

    def test_a_consumer_that_is_deleted(self, stream: Stream, bridges: Bridges, topic: str) -> None:
        bridge = bridges.start(stream, *words(topic))
        stream.delete_consumer()
        assert bridge.process.wait(END_S) == 1
        assert f"pulse: consumer c of stream {topic} was deleted" in bridge.said
