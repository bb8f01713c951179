"""Connects a worker, and reconnects it: for ever, with back-off, with one log line per cause."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from typing import Final, NoReturn

import anyio

from pulse.client.async_transport import FrameStream, dial
from pulse.client.discovery import find_servers
from pulse.errors import (
    BadRequestError,
    ForbiddenError,
    PulseError,
    TooLargeError,
    UnauthorizedError,
    UnsupportedVersionError,
)
from pulse.protocol import Welcome
from pulse.system.failure_log import Log

__all__ = ["Dialer", "ReconnectBackoff", "WorkerRefusedError"]

FIRST_PAUSE_S: Final = 0.05  # a restarted dispatcher is back in less than half a second
LAST_PAUSE_S: Final = 2.0  # a thousand workers of a host in trouble try 500 times a second at most
PATIENCE_S: Final = 10.0  # a server that is started or restarted is back by then, which is nothing to warn of
_FOR_GOOD: Final = (BadRequestError, ForbiddenError, TooLargeError, UnauthorizedError, UnsupportedVersionError)


class WorkerRefusedError(PulseError):
    """The server will never accept this worker."""


class ReconnectBackoff:
    """
    Pauses between tries: doubling from 50 ms to 2 s, each shortened by chance up to a half, so that workers spread.

    Args:
        chance: Returns a random number from 0 to 1.
    """

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        self._chance = chance
        self._pause_s = FIRST_PAUSE_S

    def next_s(self) -> float:
        """The next pause, seconds."""
        pause_s = self._pause_s
        self._pause_s = min(2 * pause_s, LAST_PAUSE_S)
        return pause_s * (1 - self._chance() / 2)

    def reset(self) -> None:
        """A try succeeded."""
        self._pause_s = FIRST_PAUSE_S


class Dialer:
    """
    Makes the connections of one worker.

    Args:
        socket: The server's socket; None: it is looked for.
        hello: Returns the body of hello, for every try.
    """

    def __init__(self, socket: str | None, hello: Callable[[], Mapping[str, object]], log: Log) -> None:
        self._socket = socket
        self._hello = hello
        self._log = log
        self._backoff = ReconnectBackoff()
        self._cause = ""
        self._since_s: float | None = None  # since when no server answers, monotonic
        self._has_warned = False

    async def dial(self) -> tuple[FrameStream, Welcome]:
        """
        Connect, however long that takes; hello is answered.

        Raises:
            WorkerRefusedError: The server refuses this worker for good.
        """
        while True:
            try:
                found = await dial(find_servers(self._socket), self._hello())
            except PulseError as error:
                self._failed(error)
            else:
                self._cause, self._since_s, self._has_warned = "", None, False
                return found
            await anyio.sleep(self._backoff.next_s())

    def proved_good(self) -> None:
        """The connection worked for a while: the next pause is short again."""
        self._backoff.reset()

    async def pause(self) -> None:
        """Wait before reconnecting after a loss."""
        await anyio.sleep(self._backoff.next_s())

    def _failed(self, error: PulseError) -> None:
        if isinstance(error, _FOR_GOOD) or getattr(error, "code", "") == UnsupportedVersionError.code:
            self._refuse(error)
        now_s = time.monotonic()
        self._since_s = now_s if self._since_s is None else self._since_s
        is_long = now_s - self._since_s >= PATIENCE_S
        if is_long and (error.message != self._cause or not self._has_warned):
            self._has_warned = True
            self._log.warning("waiting_for_server", cause=error.message)
        elif error.message != self._cause:
            self._log.info("waiting_for_server", cause=error.message)
        self._cause = error.message

    def _refuse(self, error: PulseError) -> NoReturn:
        raise WorkerRefusedError(f"the server refuses this worker: {error.message}") from None
