"""Logging of every pulse process: structlog to standard error, JSON for machines, plain coloured lines on a
terminal.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Final, Literal

import structlog

from pulse.logtap import TAP

_LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}


def configure_logging(level: str = "info", log_format: Literal["json", "console"] | None = None) -> None:
    """
    Set structlog up for this process.

    Args:
        level: Lowest level that is shown.
        log_format: None chooses: console when standard error is a terminal, JSON otherwise.
    """
    console = log_format == "console" or (log_format is None and sys.stderr.isatty())
    final: structlog.typing.Processor
    if console:
        final = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    else:
        final = structlog.processors.JSONRenderer()
    processors: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if not console:
        processors.append(structlog.processors.format_exc_info)
    TAP.open_by(os.environ)
    structlog.configure(
        processors=[*processors, TAP, final],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=logging.ERROR, format="%(message)s", stream=sys.stderr)
