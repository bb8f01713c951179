"""What Sentry gets from a worker: the real client of Sentry, a real pool, and a sink that takes what is sent."""

from __future__ import annotations

import gzip
import json
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import pytest

from pulse.contrib.sentry import install
from pulse.errors import HandlerError
from tests.support.servers.fake_server import Peer, job
from tests.support.systems.worker_kit import args, at_work
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.timed, pytest.mark.rest]

APP: Final = "tests.support.apps.sentry_app:app"


class Sink:
    """Takes envelopes, and keeps their items by type."""

    def __init__(self) -> None:
        self.items: list[tuple[str, dict[str, Any]]] = []
        sink = self

        class Taker(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                sink._take(gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body)
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, format: str, *args: object) -> None:
                """Quietly."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Taker)
        self.dsn = f"http://public@127.0.0.1:{self.server.server_port}/1"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def _take(self, envelope: bytes) -> None:
        _, *lines = envelope.splitlines()
        for head, body in zip(lines[::2], lines[1::2], strict=False):
            kind = json.loads(head)["type"]
            if kind in {"event", "transaction"}:
                self.items.append((kind, json.loads(body)))

    def of(self, kind: str, *jobs: list[Any]) -> list[dict[str, Any]]:
        wanted = {str(uuid.UUID(bytes=one[0])) for one in jobs}
        return [body for one, body in self.items if one == kind and body["tags"]["pulse.job_id"] in wanted]

    def wait(self, kind: str, *jobs: list[Any]) -> list[dict[str, Any]]:
        """One for each of these jobs."""
        until(lambda: len(self.of(kind, *jobs)) >= len(jobs), f"{kind} of each")
        return self.of(kind, *jobs)


@pytest.fixture(scope="module")
def sink() -> Iterator[Sink]:
    found = Sink()
    yield found
    found.server.shutdown()
    found.server.server_close()


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def child(sink: Sink, request: pytest.FixtureRequest) -> Iterator[Peer]:
    with at_work("--backend", request.param, app=APP, env={"SENTRY_DSN": sink.dsn}) as (peer, _):
        yield peer


def end(child: Peer, *jobs: list[Any]) -> None:
    child.assign(jobs)
    child.take_results(len(jobs))


def value_of(event: dict[str, Any]) -> str:
    found: str = event["exception"]["values"][-1]["value"]
    return found


def test_it_reports_for_an_app() -> None:
    wrong: Any = "shop:app"
    with pytest.raises(HandlerError, match=r"sentry: app is 'shop:app'; a pulse\.App is allowed"):
        install(wrong)


def test_attempts_that_run_at_once_share_nothing(child: Peer, sink: Sink) -> None:
    jobs = {user: job("fail", args(user=user), attempt=2) for user in ("anna", "bert")}
    end(child, *jobs.values())
    events = sink.wait("event", *jobs.values())
    for event in events:
        user = event["user"]["id"]
        assert value_of(event) == f"no such order of {user}"
        assert event["tags"] == {
            "pulse.job_id": str(uuid.UUID(bytes=jobs[user][0])), "pulse.name": "fail", "pulse.topic": "default",
            "pulse.attempt": "2",
        }  # fmt: skip
        assert [one["message"] for one in event["breadcrumbs"]["values"]] == [f"about to fail for {user}"]
        assert event["transaction"] == "fail"
        assert event["exception"]["values"][-1]["mechanism"] == {"type": "pulse", "handled": False}
    transactions = sink.wait("transaction", *jobs.values())
    traces = [{one["contexts"]["trace"]["trace_id"] for one in found} for found in (events, transactions)]
    assert traces[0] == traces[1]
    assert len(traces[0]) == 2
    assert {one["contexts"]["trace"]["status"] for one in transactions} == {"internal_error"}


def test_a_transaction_for_each_attempt(child: Peer, sink: Sink) -> None:
    done = job("fine", attempt=3)
    end(child, done)
    (found,) = sink.wait("transaction", done)
    trace = found["contexts"]["trace"]
    assert (found["transaction"], trace["op"], trace["origin"], trace["status"]) == (
        "fine", "queue.process", "auto.queue.pulse", "ok",
    )  # fmt: skip
    assert {key: value for key, value in trace["data"].items() if key.startswith("messaging.")} == {
        "messaging.system": "pulse", "messaging.message.id": str(uuid.UUID(bytes=done[0])),
        "messaging.destination.name": "default", "messaging.message.retry.count": 2,
    }  # fmt: skip
    assert sink.of("event", done) == []


@pytest.mark.parametrize(("name", "value"), [
    ("fail-plain", "in a thread"), ("fail-apart", "in a process of its own"), ("exit", "3"),
    ("fail", "argument 'user' is missing; it takes user"),
])  # fmt: skip
def test_whatever_fails_is_reported_once(name: str, value: str, child: Peer, sink: Sink) -> None:
    """Of a plain handler, of one in a process that ends at once, and of one that was never called."""
    one, later = job(name), job("fine")
    end(child, one)
    (event,) = sink.wait("event", one)
    assert value_of(event) == value
    assert event["tags"].get("thread") == ("yes" if name == "fail-plain" else None)
    assert event["tags"]["pulse.name"] == name
    end(child, later)
    sink.wait("transaction", later)
    assert len(sink.of("event", one)) == 1


@pytest.mark.parametrize("name", ["discard", "later"])
def test_answers_are_not_reported(name: str, child: Peer, sink: Sink) -> None:
    one = job(name)
    end(child, one)
    sink.wait("transaction", one)
    assert sink.of("event", one) == []
