"""Traces and logs of real workers: spans by OTLP to a collector, and lines that say whose they are."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Final
from uuid import UUID

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.systems.system_kit import END_S, Jobs, Pool, Whole
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system]

TRACE: Final = "0af7651916cd43dd8448eb211c80319c"
SPAN: Final = "b7ad6b7169203331"
PARENT: Final = f"00-{TRACE}-{SPAN}-01"


@dataclass(frozen=True, slots=True)
class Seen:
    name: str
    trace: str
    id: str
    parent: str
    status: tuple[int, str]
    attributes: dict[str, object] = field(default_factory=dict)


class Collector:
    def __init__(self) -> None:
        spans = self.spans = list[Seen]()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                spans.extend(_decode(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def of(self, job: UUID) -> list[Seen]:
        found = [one for one in self.spans if one.attributes.get("messaging.message.id") == str(job)]
        return sorted(found, key=lambda one: int(str(one.attributes["pulse.attempt"])))


def _decode(data: bytes) -> Iterator[Seen]:
    for resource in ExportTraceServiceRequest.FromString(data).resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                attributes: dict[str, Any] = {
                    one.key: getattr(one.value, str(one.value.WhichOneof("value"))) for one in span.attributes
                }
                ids = (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex())
                yield Seen(span.name, *ids, (span.status.code, span.status.message), attributes)


@dataclass(frozen=True, slots=True)
class Traced:
    whole: Whole
    pool: Pool
    jobs: Jobs
    collector: Collector

    def spans(self, job: UUID, count: int = 1) -> list[Seen]:
        return until(
            lambda: found if len(found := self.collector.of(job)) >= count else [], f"{count} spans of {job}", END_S
        )

    def named(self, name: str) -> Seen:
        (found,) = until(lambda: [one for one in self.collector.spans if one.name == name], name, END_S)
        return found


@pytest.fixture(scope="module")
def site(whole: Whole) -> Iterator[Traced]:
    """A supervisor and a worker with OpenTelemetry, which nothing but the environment configures."""
    collector = Collector()
    threading.Thread(target=collector.server.serve_forever, daemon=True).start()
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "50"}
    yield Traced(whole, whole.pool(app="tests.support.apps.trace_app:app", env=env), whole.jobs(), collector)
    collector.server.shutdown()
    collector.server.server_close()


@pytest.mark.rest
def test_a_trace_goes_from_the_submit_through_its_jobs(site: Traced) -> None:
    """Attempts are children of the submit's span, the handler's spans of theirs; jobs that it submits go on in it."""
    job = site.jobs.submit("outer", traceparent=PARENT)
    inner = UUID(str(site.jobs.wait(job).result))
    site.jobs.wait(inner)
    (outer,) = site.spans(job)
    assert (outer.name, outer.trace, outer.parent, outer.status) == ("process default", TRACE, SPAN, (0, ""))
    assert outer.attributes == {
        "messaging.system": "pulse", "messaging.operation.type": "process", "messaging.operation.name": "process",
        "messaging.destination.name": "default", "messaging.message.id": str(job), "pulse.job.name": "outer",
        "pulse.attempt": 1, "pulse.outcome": "ok",
    }  # fmt: skip
    inside = site.named("inside")
    assert (inside.trace, inside.parent) == (TRACE, outer.id)
    first, second = site.spans(inner, 2)
    assert {one.trace for one in (first, second)} == {TRACE}
    assert {one.parent for one in (first, second)} == {inside.id}
    assert (first.status, first.attributes["error.type"]) == ((2, "ValueError: not yet"), "error")
    assert (second.status, second.attributes["pulse.attempt"]) == ((0, ""), 2)
    parents = {one.parent for one in site.collector.spans if one.name == "inside plain"}
    assert parents == {first.id, second.id}


@pytest.mark.rest
def test_isolated_attempts_have_spans_that_outlive_them(site: Traced) -> None:
    """The worker has the span: it ends as an error when the process is killed; the handler's are its children."""
    job, dead = site.jobs.submit("apart", traceparent=PARENT), site.jobs.submit("killed", traceparent=PARENT)
    site.jobs.wait(job)
    site.jobs.wait(dead, "DEAD_LETTERED")
    (attempt,), (crashed,) = site.spans(job), site.spans(dead)
    inside = site.named("inside apart")
    assert (inside.trace, inside.parent) == (TRACE, attempt.id)
    assert (crashed.trace, crashed.parent, crashed.status[0]) == (TRACE, SPAN, 2)
    assert crashed.attributes["error.type"] == "crash"


def test_what_handlers_log_says_whose_it_is(site: Traced) -> None:
    """Every line is JSON; those of a handler name job, attempt, topic, handler and worker; a failure is logged once."""
    job = site.jobs.submit("outer")
    inner = UUID(str(site.jobs.wait(job).result))
    site.jobs.wait(inner)

    def lines() -> list[dict[str, Any]]:
        return [json.loads(line) for line in site.pool.said.splitlines()]

    own = [one for one in lines() if one.get("job") == str(job)]
    assert [one["event"] for one in own] == ["at_work", "at work: \x1b[31m"]
    for one in own:
        assert (one["attempt"], one["topic"], one["handler"]) == (1, "default", "outer")
        assert one["worker"]
    assert [one["level"] for one in own] == ["info", "warning"]
    failed = [one for one in lines() if one.get("job") == str(inner)]
    assert [(one["event"], one["attempt"]) for one in failed] == [("handler_failed", 1)]
    assert failed[0]["exception"].startswith("Traceback (most recent call last):")
    assert failed[0]["exception"].endswith("ValueError: not yet\ncertainly not")
