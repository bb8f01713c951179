"""The supervisor's log: pulse's own, made so that it costs little memory."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Literal, cast

if TYPE_CHECKING:
    from types import ModuleType

    from structlog.typing import FilteringBoundLogger


def make_log(level: str, log_format: Literal["json", "console"] | None) -> FilteringBoundLogger:
    """
    Set logging up, and make the supervisor's logger.

    Args:
        level: Lowest level that is shown.
        log_format: None chooses: console on a terminal, JSON elsewhere.

    """
    # structlog imports rich where it is installed, for tracebacks that a server never draws: 60 ms and 4 MB.
    modules = cast("dict[str, ModuleType | None]", sys.modules)
    blocks_rich = "rich" not in modules
    if blocks_rich:
        modules["rich"] = None
    try:
        import structlog

        from pulse.logs import configure_logging
    finally:
        if blocks_rich:
            del modules["rich"]
    configure_logging(level, log_format)
    logger: FilteringBoundLogger = structlog.get_logger()
    return logger
