"""
Logging of every pulse process: structlog to standard error, JSON for machines, plain coloured lines on a terminal.

Lines logged while a handler runs, by it or by code that it calls, through structlog or the standard library, name the
job, attempt, topic and handler. Args are never logged.
"""

from __future__ import annotations

import importlib.util
import io
import json
import logging
import os
import sys
from collections.abc import Mapping, MutableMapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Literal, cast
from uuid import UUID

from pulse.system import log_sink
from pulse.system.log_forward import TAP

# structlog imports rich if it is installed, for tracebacks that pulse does not use: 50 ms and 5 MB in every process.
# Programs import this module before any other that imports structlog.
_HIDES_RICH: Final = sys.modules.keys().isdisjoint({"rich", "structlog"})
if _HIDES_RICH:
    sys.modules["rich"] = None  # type: ignore[assignment]  # the import system takes it for: not installed
import structlog  # noqa: E402 - see above
from structlog.dev import ConsoleRenderer, plain_traceback  # noqa: E402
from structlog.stdlib import ProcessorFormatter  # noqa: E402

if _HIDES_RICH:  # an app that uses structlog.dev gets the whole of it: its first use imports it again
    del sys.modules["rich"]
    importlib.util.LazyLoader(cast("Loader", structlog.dev.__loader__)).exec_module(structlog.dev)

if TYPE_CHECKING:
    from importlib.abc import Loader

    from pulse.protocol import Assignment

_LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
LOGGED: Final[ContextVar[Assignment | None]] = ContextVar("pulse_job", default=None)  # whose handler runs here


def add_job(_logger: object, _name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A processor for structlog: the job whose handler logs this; for apps that configure structlog themselves, too."""
    job = LOGGED.get()
    if job is not None:
        event.setdefault("job", str(UUID(bytes=job.id)))
        event.setdefault("attempt", job.attempt)
        event.setdefault("topic", job.topic)
        event.setdefault("handler", job.name)
    return event


def configure_logging(
    level: str = "info", log_format: Literal["json", "console"] | None = None, *, runs_handlers: bool = False
) -> None:
    """
    Set structlog up for this process, and the standard library's logging from warnings on.

    From here on a write to standard error or standard output never blocks or fails.

    Args:
        level: Lowest level that is shown.
        log_format: None chooses: console when standard error is a terminal, JSON otherwise.
        runs_handlers: Handlers may print much here: so writing to a log file on a hanging disk blocks this process.
    """
    log_sink.install(_dropped, files_at_once=runs_handlers)
    console = log_format == "console" or (log_format is None and sys.stderr.isatty())
    final: structlog.typing.Processor
    if console:
        final = ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain_traceback)
    else:
        final = structlog.processors.JSONRenderer(serializer=_dumps)
    processors: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        add_job,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if not console:
        processors.append(structlog.processors.format_exc_info)
    TAP.open_by(os.environ)
    structlog.configure(
        processors=[*processors, TAP, final, cast("structlog.typing.Processor", _encoded)],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.BytesLoggerFactory(file=sys.stderr.buffer),  # past the text stream: a tenth less
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        ProcessorFormatter(
            foreign_pre_chain=[*processors, structlog.stdlib.add_logger_name],
            processors=[ProcessorFormatter.remove_processors_meta, TAP, final],
        )
    )
    handler.addFilter(_means_something)
    logging.basicConfig(level=max(logging.WARNING, _LEVELS[level]), handlers=[handler])


def _means_something(record: logging.LogRecord) -> bool:
    """
    Whether a line of another library is worth showing.

    anyio waits for a Unix socket by ``loop.add_reader(socket, future.set_result)``. Where the wait is cancelled in the
    turn in which the socket becomes readable, asyncio logs an error about that; nothing is lost.
    """
    error = record.exc_info[1] if record.exc_info else None
    is_late = type(error).__name__ == "InvalidStateError" and "Future.set_result(None)" in record.getMessage()
    return not (record.name == "asyncio" and is_late)


def _dropped(stream: str, count: int) -> bytes:
    """The log line about dropped lines; it is not attributed to a handler."""
    line = io.BytesIO()
    log = structlog.wrap_logger(structlog.BytesLogger(line))
    job = LOGGED.set(None)
    log.warning("log_lines_dropped", stream=stream, count=count)
    LOGGED.reset(job)
    return line.getvalue()


def _encoded(_logger: object, _name: str, line: str) -> bytes:
    return line.encode("utf-8", "backslashreplace")


def _dumps(event: Mapping[str, object], default: Any = repr, **_more: object) -> str:  # noqa: ANN401 - as json.dumps
    """JSON of any event: other values become text, so that the line is always valid."""
    try:
        return json.dumps(event, default=default, allow_nan=False)
    except Exception:  # noqa: BLE001 - a key, a NaN, a circle, or a repr that fails
        return json.dumps({str(key): _shown(value) for key, value in event.items()})


def _shown(value: object) -> object:
    if value is None or isinstance(value, str | int):
        return value
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - what cannot be shown at all
        return f"<{type(value).__name__} that cannot be shown>"
