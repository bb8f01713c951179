"""Spans of attempts and where they belong, without a worker; and log lines that can always be read."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import structlog
from opentelemetry import context, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pulse import logs
from pulse.app import tracing
from pulse.app.outcome import RELEASED, Outcome
from pulse.app.tracing import Spans, current_traceparent, with_parent
from pulse.client import requests
from pulse.protocol import Assignment

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> Spans:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Spans(provider.get_tracer("test"))


@pytest.fixture
def clean_context() -> Iterator[None]:
    """No test leaves a current span behind."""
    token = context.attach(context.Context())
    yield
    context.detach(token)


def _job(**extra: object) -> Assignment:
    raw = {key: msgspec.Raw(msgspec.msgpack.encode(value)) for key, value in extra.items()}
    return Assignment(bytes(16), 3, "n", "images", '{"secret": 1}', None, 30.0, raw or None)


@pytest.mark.parametrize(("ending", "error", "words"), [
    (Outcome("ok", '{"secret": 1}'), None, None),
    (Outcome("snooze", 5.0), None, None),
    (RELEASED, None, None),
    (Outcome("error", "KeyError: 'x'\nTraceback ..."), "error", "KeyError: 'x'"),
    (Outcome("retry", (5.0, "busy")), "retry", "busy"),
    (Outcome("discard", "x" * 1000), "discard", "x" * tracing.MAX_STATUS),
    (Outcome("crash", ("SIGKILL", -9)), "crash", "SIGKILL"),
])  # fmt: skip
def test_a_span_ends_as_its_attempt(
    exporter: InMemorySpanExporter, spans: Spans, ending: Outcome, error: str | None, words: str | None
) -> None:
    """Its status is an error where the attempt failed, with the first line of it; args and results are not in it."""
    spans.end(spans.detached(_job(traceparent=PARENT)), ending)
    (span,) = exporter.get_finished_spans()
    assert (span.name, span.kind, span.status.description) == ("process images", trace.SpanKind.CONSUMER, words)
    assert span.parent is not None
    assert f"{span.parent.trace_id:032x}" in PARENT
    attributes = dict(span.attributes or {})
    told = [attributes.get(name) for name in ("pulse.attempt", "pulse.outcome", "error.type")]
    assert told == [3, ending.outcome, error]
    assert "secret" not in span.to_json()


@pytest.mark.usefixtures("clean_context")
@pytest.mark.parametrize("traceparent", [None, 5, "nonsense", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
def test_what_is_no_parent_is_none(spans: Spans, exporter: InMemorySpanExporter, traceparent: object) -> None:
    spans.end(spans.begin(_job(traceparent=traceparent)), RELEASED)
    assert exporter.get_finished_spans()[0].parent is None


def _numbered(number: int, **extra: object) -> Assignment:
    return msgspec.structs.replace(_job(**extra), id=bytes([number]) * 16)


@pytest.mark.usefixtures("clean_context")
def test_each_job_of_a_batch_has_its_span_and_the_call_links_to_them(
    spans: Spans, exporter: InMemorySpanExporter
) -> None:
    jobs = [_numbered(1, traceparent=PARENT), _numbered(2)]
    batch = spans.begin_batch(jobs)
    current = trace.get_current_span().get_span_context()
    batch.end({(jobs[0].id, 3): Outcome("ok", None), (jobs[1].id, 3): Outcome("error", "KeyError")})
    first, second, call = exporter.get_finished_spans()
    assert (first.parent is not None, second.parent, call.parent) == (True, None, None)
    assert [one.attributes and one.attributes["pulse.outcome"] for one in (first, second)] == ["ok", "error"]
    assert (call.name, call.kind, call.get_span_context()) == ("process images", trace.SpanKind.CONSUMER, current)
    assert call.attributes is not None
    assert call.attributes["messaging.batch.message_count"] == 2
    assert [link.context for link in call.links] == [first.get_span_context(), second.get_span_context()]


@pytest.mark.usefixtures("clean_context")
def test_the_span_of_a_job_that_is_called_alone_is_the_calls(spans: Spans, exporter: InMemorySpanExporter) -> None:
    job = _numbered(1, traceparent=PARENT)
    batch = spans.begin_batch([job])
    current = trace.get_current_span().get_span_context()
    batch.end({(job.id, 3): RELEASED})
    (span,) = exporter.get_finished_spans()
    assert span.get_span_context() == current
    assert span.parent is not None


@pytest.mark.usefixtures("clean_context")
def test_in_a_process_of_its_own_the_span_of_a_batch_is_inherited(
    monkeypatch: pytest.MonkeyPatch, spans: Spans
) -> None:
    monkeypatch.setattr(tracing, "_is_set_up", lambda: True)
    cell, job = tracing.for_cell(), _numbered(1, traceparent=PARENT)
    assert cell is not None
    batch = cell.begin_batch([job])
    assert f"{trace.get_current_span().get_span_context().span_id:016x}" in PARENT
    batch.end({(job.id, 3): RELEASED})


@pytest.mark.usefixtures("clean_context")
def test_a_submit_takes_the_current_span_along(spans: Spans) -> None:
    """Unless the caller says otherwise, job by job; without a span there is nothing to say."""
    assert current_traceparent() is None
    assert "traceparent" not in _submitted({"name": "n"})
    span = spans.begin(_job(traceparent=PARENT))
    current = current_traceparent()
    assert current == f"00-{PARENT[3:35]}-{span.get_span_context().span_id:016x}-01"
    assert _submitted({"name": "n"})["traceparent"] == current
    assert _submitted({"name": "n", "traceparent": PARENT})["traceparent"] == PARENT


def _submitted(job: Any) -> dict[str, object]:
    bodies: Any = requests.submit([job]).body["jobs"]
    return dict(bodies[0])


def test_a_span_names_the_group(exporter: InMemorySpanExporter, spans: Spans) -> None:
    for extra in ({"group_key": "tenant-7"}, {"group_key": 7}, {}):
        spans.detached(_job(**extra)).end()
    named = [(span.attributes or {}).get("pulse.group_key") for span in exporter.get_finished_spans()]
    assert named == ["tenant-7", None, None]


def test_another_process_is_told_of_the_span(spans: Spans) -> None:
    span = spans.detached(_job(traceparent=PARENT, tries=2))
    extra = with_parent(_job(traceparent=PARENT, tries=2), span).extra
    assert extra is not None
    told = {key: msgspec.msgpack.decode(raw) for key, raw in extra.items()}
    assert told == {"traceparent": f"00-{PARENT[3:35]}-{span.get_span_context().span_id:016x}-01", "tries": 2}


def test_spans_go_where_the_app_says(monkeypatch: pytest.MonkeyPatch, spans: Spans) -> None:
    for name in tracing.ENDPOINTS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: TracerProvider(shutdown_on_exit=False))
    assert tracing.for_attempts() is not None
    assert tracing.for_cell() is not None
    spans.end(None, RELEASED)  # of an attempt that began before tracing was on
    assert tracing._parent(None) is None
    assert tracing._parent(_job(tries=2).extra) is None


def test_nobody_wants_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an import of OpenTelemetry nothing is made, and nothing is imported."""
    for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
        monkeypatch.delitem(sys.modules, name)
    assert (tracing.for_attempts(), tracing.for_cell(), current_traceparent()) == (None, None, None)
    assert not any(name.startswith("opentelemetry") for name in sys.modules)


class _Sulky:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.BytesIO]:
    written, root = io.BytesIO(), logging.getLogger()
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(written, errors="backslashreplace", line_buffering=True))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO()))
    monkeypatch.setattr(root, "handlers", [])
    level, before = root.level, structlog.get_config()
    logs.configure_logging("info", "json")
    yield written
    root.setLevel(level)
    structlog.configure(**before)


@pytest.mark.parametrize(
    "value",
    [float("nan"), _Sulky(), {1: {2}}, "\ud800\x00\u2028\n", {(1, 2): 3}, b"\xff", 10**400],
    ids=["nan", "sulky", "set", "odd text", "odd key", "bytes", "long"],
)
def test_every_line_can_be_read(lines: io.BytesIO, value: object) -> None:
    token = logs.LOGGED.set(_job())
    try:
        structlog.get_logger().info("event", value=value)
        logging.getLogger("other").warning("%r and %s", "\n", "\x1b")
        logging.getLogger("other").error("failed", exc_info=ValueError("\x00\u2028"))
    finally:
        logs.LOGGED.reset(token)
    told = [json.loads(line, parse_constant=pytest.fail) for line in lines.getvalue().splitlines()]
    assert [one["event"] for one in told] == ["event", "'\\n' and \x1b", "failed"]
    job = {"job": "00000000-0000-0000-0000-000000000000", "attempt": 3, "topic": "images", "handler": "n"}
    for one in told:
        assert one.items() >= job.items()
        assert "secret" not in str(one)
    assert told[2]["exception"].startswith("ValueError: ")
    assert told[1]["logger"] == "other"
