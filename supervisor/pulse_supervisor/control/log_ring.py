"""
The newest log lines of the supervisor and its children, for `pulse ctl logs`, in a buffer of fixed size.

Lines come as datagrams (``pulse.system.log_forward``), so writers never wait; a reader asks for lines after a number,
and waits a while for more. So neither can keep the supervisor from its work.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import trio
from msgspec import Struct

from pulse.protocol import LogsRequest
from pulse.system.log_forward import LEVELS, MAX_LINE_BYTES, SOCKET_VARIABLE, TAP
from pulse.system.sockets.listeners import owner_only

SOCKET_NAME: Final = "logs.sock"
MAX_RING_BYTES: Final = 2 * 1024**2  # some ten thousand lines: hours of a quiet system, minutes of one in trouble
MAX_ANSWER_BYTES: Final = 48 * 1024  # a frame of this socket has 64 KiB
_PER_TURN: Final = 64  # datagrams per turn


class _LineFields(Struct):
    """The fields of a line by which it is filtered."""

    level: str = ""
    actor: str = ""


class LogEntry(msgspec.Struct, frozen=True):
    """A line, its number, and the fields by which it is filtered."""

    number: int
    text: str
    level: int
    actor: str


class LogRing:
    """
    The newest lines.

    Args:
        max_bytes: Most bytes of text to keep.
        first: Number of the first line; numbers of a later supervisor are higher.
    """

    def __init__(self, max_bytes: int = MAX_RING_BYTES, first: int | None = None) -> None:
        self._max_bytes = max_bytes
        self._entries: deque[LogEntry] = deque()
        self._bytes = 0
        self._next = time.time_ns() // 1000 if first is None else first
        self._first = self._next
        self._grown = trio.Event()

    def add(self, line: bytes) -> None:
        """Keep *line*, if it is JSON; the oldest lines are dropped."""
        try:
            told = msgspec.json.decode(line, type=_LineFields)
            text = line.decode("utf-8")
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return
        level = LEVELS.index(told.level) if told.level in LEVELS else 1
        self._entries.append(LogEntry(self._next, text, level, actor=told.actor))
        self._next += 1
        self._bytes += len(line)
        while self._bytes > self._max_bytes:
            self._bytes -= len(self._entries.popleft().text.encode())
        self._grown.set()
        self._grown = trio.Event()

    async def answer(self, request: LogsRequest) -> dict[str, object]:
        """
        The lines for *request*.

        Returns:
            ``lines``: JSON texts, the oldest first; ``next``: the number to continue after; ``more``: whether there are
            more now; ``lost``: how many lines after the given number were dropped.
        """
        with trio.move_on_after(request.wait_s):
            while request.after is not None and not self._chosen(request) and request.wait_s > 0:
                await self._grown.wait()
        chosen = self._chosen(request)
        if request.after is None:
            chosen = chosen[-request.lines :] if request.lines else []
        fitting = _fit(chosen[: max(1, request.lines)])
        more = len(fitting) < len(chosen)
        last = fitting[-1].number if more else self._next - 1
        return {"lines": [one.text for one in fitting], "next": last, "more": more, "lost": self._lost(request.after)}

    def _lost(self, after: int | None) -> int:
        oldest = self._entries[0].number if self._entries else self._next
        return 0 if after is None or after < self._first else max(0, oldest - 1 - after)

    def _chosen(self, request: LogsRequest) -> list[LogEntry]:
        after = -1 if request.after is None else request.after
        least = LEVELS.index(request.level) if request.level else 0
        return [
            one
            for one in self._entries
            if one.number > after and one.level >= least and request.actor in {None, one.actor}
        ]


def _fit(entries: list[LogEntry]) -> list[LogEntry]:
    """The first of *entries* that fit into one answer; at least one, if there is one."""
    left = MAX_ANSWER_BYTES
    for count, one in enumerate(entries):
        left -= len(one.text.encode()) + 8
        if left < 0 and count:
            return entries[:count]
    return entries


async def serve_ring(
    ring: LogRing,
    directory: Path,
    log: Callable[..., object],
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Receive lines until cancelled; if the socket cannot be made, that is logged and nothing is kept."""
    path = directory / SOCKET_NAME
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        try:
            path.unlink(missing_ok=True)  # of a dead supervisor: we hold the lock of the directory
            with owner_only():
                sock.bind(os.fspath(path))
        except OSError as error:
            log("logs_not_kept", reason=error.strerror)
            task_status.started()
            return
        sock.setblocking(False)
        os.environ[SOCKET_VARIABLE] = os.fspath(path)  # for the children, which are started after this
        TAP.open(os.fspath(path), "supervisor")
        task_status.started()
        try:
            while True:
                await trio.lowlevel.wait_readable(sock)
                with contextlib.suppress(BlockingIOError):
                    for _ in range(_PER_TURN):
                        ring.add(sock.recv(MAX_LINE_BYTES + 1))
        finally:
            TAP.close()
            os.environ.pop(SOCKET_VARIABLE, None)
            path.unlink(missing_ok=True)
