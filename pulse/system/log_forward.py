"""
Sends every log line to the supervisor, too, which keeps the newest for `pulse ctl logs`.

It sends datagrams and never waits: if the supervisor is stopped, dead or busy, lines are lost and counted, and the next
line that is sent has the count.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from structlog.typing import EventDict, WrappedLogger

SOCKET_VARIABLE: Final = "PULSE_LOG_SOCKET"  # set by the supervisor for its children, and for nobody else
NAME_VARIABLE: Final = "PULSE_LOG_NAME"
LEVELS: Final = ("debug", "info", "warning", "error", "critical")
MAX_LINE_BYTES: Final = 16 * 1024  # a traceback of some depth
_KEPT_WHOLE: Final = ("event", "level", "timestamp", "actor")


class Tap:
    """A processor of structlog that sends a copy of what passes; nothing is sent before it was opened."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._path = ""
        self._name = ""
        self._lost = 0

    def open(self, path: str, name: str) -> None:
        """Send to *path* from now on; *name*: as whose lines that name no actor."""
        self.close()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._path, self._name = path, name

    def open_by(self, env: Mapping[str, str]) -> None:
        """The same as the environment says; without a word there, nothing happens."""
        if self._socket is None and env.get(SOCKET_VARIABLE):
            self.open(env[SOCKET_VARIABLE], env.get(NAME_VARIABLE, ""))

    def close(self) -> None:
        """Send nothing any more."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    def __call__(self, _logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        """Send a copy of *event*; it goes on as it is."""
        if self._socket is not None:
            with contextlib.suppress(Exception):  # whatever a log line holds, it must not bring anybody down
                self._send(method, event)
        return event

    def _send(self, method: str, event: EventDict) -> None:
        assert self._socket is not None  # noqa: S101 - asked a line above
        copy = dict(event)
        copy.setdefault("actor", self._name)
        copy.setdefault("level", method)
        if copy.get("exc_info"):
            from structlog.processors import format_exc_info

            copy = dict(format_exc_info(None, method, copy))
        if self._lost:
            copy["lines_lost"] = self._lost
        line = json.dumps(copy, default=repr).encode()
        if len(line) > MAX_LINE_BYTES:
            short = {key: str(copy[key])[:1000] for key in _KEPT_WHOLE if key in copy}
            line = json.dumps({**short, "cut": True, "text": line[: MAX_LINE_BYTES // 2].decode("ascii")}).encode()
        try:
            self._socket.sendto(line, self._path)
        except OSError:  # full, or there is no supervisor
            self._lost += 1
        else:
            self._lost = 0


TAP: Final = Tap()
