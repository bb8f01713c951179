"""The supervisor's log: pulse's own, made so that it costs little memory and can never bring the supervisor down."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Literal, TextIO, cast

if TYPE_CHECKING:
    from types import ModuleType

    from structlog.typing import FilteringBoundLogger


class _Unbreakable:
    """A text stream whose reader may go away: what cannot be written is lost, and nobody fails for it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):  # a closed pipe, a terminal that is gone, a full disk
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()


def make_log(level: str, log_format: Literal["json", "console"] | None) -> FilteringBoundLogger:
    """
    Set logging up, and make the supervisor's logger.

    Args:
        level: Lowest level that is shown.
        log_format: None chooses: console on a terminal, JSON elsewhere.

    """
    sys.stderr = cast("TextIO", _Unbreakable(sys.stderr))
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
