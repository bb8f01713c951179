"""
OpenTelemetry traces from a submit to its attempts, if the application uses OpenTelemetry.

Nothing here imports it: an application that has a span has imported it. A submit carries the current span's context;
a worker makes a span for each attempt, a child of the submitting span, and the handler's own spans are children of
that. Without OpenTelemetry all this costs a look into ``sys.modules``.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol, cast
from uuid import UUID

import msgspec

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

    from pulse.app.outcome import Outcome
    from pulse.protocol import Assignment

__all__ = ["BatchSpan", "Spans", "Tracing", "current_traceparent", "for_attempts", "for_cell", "preload", "with_parent"]

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
FLUSH_MS: Final = 1000  # for a process that ends with its handler to send the handler's spans
MAX_STATUS: Final = 200  # characters of an error in a span
_KEY: Final = "traceparent"


class Tracing(Protocol):
    """Called before and after each handler."""

    def begin(self, job: Assignment) -> Span | None:
        """Make the attempt's span the current one, in the context that calls."""
        ...

    def begin_batch(self, jobs: Sequence[Assignment]) -> BatchSpan:
        """Make the spans of attempts that share a call, and one for the call, which is the current one."""
        ...

    def end(self, span: Span | None, ending: Outcome) -> None:
        """The attempt is over."""
        ...


class BatchSpan:
    """
    The spans of one call for several jobs.

    Args:
        tracing: Ends them.
        spans: Of each attempt, by id and number.
        call: Of the call; None: the attempt's own is the call's.
    """

    def __init__(
        self, tracing: Tracing, spans: Mapping[tuple[bytes, int], Span | None], call: Span | None = None
    ) -> None:
        self._tracing = tracing
        self._spans = spans
        self._call = call

    def end(self, endings: Mapping[tuple[bytes, int], Outcome]) -> None:
        """The call is over; how each attempt has ended."""
        for pair, span in self._spans.items():
            self._tracing.end(span, endings[pair])
        if self._call is not None:
            self._call.end()


def current_traceparent() -> str | None:
    """The current span as W3C Trace Context; None: there is none."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def for_attempts() -> Spans | None:
    """For the handlers of this process, whose app is loaded; None: tracing is off."""
    if not _is_set_up():
        return None
    from opentelemetry import trace as api

    from pulse.common.version import VERSION  # takes 10 ms, which clients need not wait

    return Spans(api.get_tracer("pulse", VERSION))


def for_cell() -> Tracing | None:
    """For a process that runs one handler: the handler process has its span."""
    return _Inherited() if _is_set_up() else None


def preload() -> None:
    """Import once what ``for_cell`` needs in each such process; nothing is started."""
    if _is_wanted():
        with contextlib.suppress(ImportError):
            importlib.import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
            importlib.import_module("opentelemetry.sdk.trace.export")


def _is_set_up() -> bool:
    """Whether the app or the environment sets where spans go."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is not None and not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return True
    return _is_wanted() and _set_up()


def _is_wanted() -> bool:
    return any(os.environ.get(name) for name in ENDPOINTS)


def _set_up() -> bool:
    """Send spans where the environment says, if the packages for it are installed."""
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        return False
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return True


class Spans:
    """
    A span for each attempt.

    Args:
        tracer: Makes them.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def begin(self, job: Assignment) -> Span:
        """A consumer's span, by the conventions for messaging; ``end`` ends it."""
        span = self.detached(job)
        _make_current(span)
        return span

    def detached(self, job: Assignment) -> Span:
        """The same, not made current."""
        from opentelemetry.trace import SpanKind

        attributes: dict[str, str | int] = {
            "messaging.system": "pulse",
            "messaging.operation.type": "process",
            "messaging.operation.name": "process",
            "messaging.destination.name": job.topic,
            "messaging.message.id": str(UUID(bytes=job.id)),
            "pulse.job.name": job.name,
            "pulse.attempt": job.attempt,
        }
        group = _text(job.extra, "group_key")
        if group is not None:
            attributes["pulse.group_key"] = group
        parent = _parent(job.extra)
        return self._tracer.start_span(
            f"process {job.topic}", parent, kind=SpanKind.CONSUMER, attributes=attributes, record_exception=False
        )

    def begin_batch(self, jobs: Sequence[Assignment]) -> BatchSpan:
        """
        A span for each attempt, and one for the call, with links to them; a single attempt's span is the call's, too.

        The jobs come from several traces: the span of the call can be in none of these.
        """
        if len(jobs) == 1:
            return BatchSpan(self, {(jobs[0].id, jobs[0].attempt): self.begin(jobs[0])})
        from opentelemetry.context import Context
        from opentelemetry.trace import Link, SpanKind

        spans = {(job.id, job.attempt): self.detached(job) for job in jobs}
        attributes: dict[str, str | int] = {
            "messaging.system": "pulse",
            "messaging.operation.type": "process",
            "messaging.operation.name": "process",
            "messaging.batch.message_count": len(jobs),
        }
        links = [Link(span.get_span_context()) for span in spans.values()]
        call = self._tracer.start_span(
            f"process {jobs[0].topic}",
            Context(),
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=links,
            record_exception=False,
        )
        _make_current(call)
        return BatchSpan(self, spans, call)

    def end(self, span: Span | None, ending: Outcome) -> None:
        """End the span with the attempt's outcome; all but success, snooze and release are errors."""
        if span is None:
            return
        span.set_attribute("pulse.outcome", ending.outcome)
        if ending.outcome not in {"ok", "snooze", "wait", "release"}:
            from opentelemetry.trace import Status, StatusCode

            span.set_attribute("error.type", ending.outcome)
            span.set_status(Status(StatusCode.ERROR, _words(ending.detail)))
        span.end()


class _Inherited:
    """The current span belongs to another process."""

    def begin(self, job: Assignment) -> None:
        """Make it current."""
        from opentelemetry import context

        context.attach(_parent(job.extra) or context.get_current())

    def begin_batch(self, jobs: Sequence[Assignment]) -> BatchSpan:
        """Make the span of the only job current."""
        for job in jobs:
            self.begin(job)
        return BatchSpan(self, {(job.id, job.attempt): None for job in jobs})

    def end(self, span: Span | None, ending: Outcome) -> None:  # noqa: ARG002 - as Tracing has it
        """Send the handler's spans, within a short time: this process ends now."""
        flush = getattr(sys.modules["opentelemetry.trace"].get_tracer_provider(), "force_flush", None)
        if flush is not None:
            flush(FLUSH_MS)


def with_parent(job: Assignment, span: Span) -> Assignment:
    """*job* for the process that runs its handler, with *span* as the current one there."""
    context = span.get_span_context()
    text = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    extra = {**(job.extra or {}), _KEY: msgspec.Raw(msgspec.msgpack.encode(text))}
    return msgspec.structs.replace(job, extra=extra)


def _make_current(span: Span) -> None:
    from opentelemetry import context, trace

    context.attach(trace.set_span_in_context(span))  # of this call's own context, which ends with it


def _text(extra: Mapping[str, msgspec.Raw] | None, key: str) -> str | None:
    """A text of *extra*; None: there is none that can be read."""
    raw = None if extra is None else extra.get(key)
    if raw is None:
        return None
    try:
        return msgspec.msgpack.decode(raw, type=str)
    except msgspec.MsgspecError:
        return None


def _parent(extra: Mapping[str, msgspec.Raw] | None) -> Context | None:
    """The context of the span that submitted the job; None: there is none that can be read."""
    text = _text(extra, _KEY)
    if text is None:
        return None
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({_KEY: text}, context=Context())


def _words(detail: object) -> str:
    """The error in one line, without args of the handler."""
    parts = cast("tuple[object, ...]", detail) if isinstance(detail, tuple) else (detail,)
    text = next((one for one in parts if isinstance(one, str)), "")
    return text.strip().partition("\n")[0][:MAX_STATUS]
