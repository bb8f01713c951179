"""The process behind ``pulse ui``: uvicorn on one listening socket, until a signal."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Generator
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from pulse.system.sockets.peer_credentials import credentials_of
from pulse.ui.app import make_app
from pulse.ui.auth.address import ListenAddress, file_of, remove
from pulse.ui.site import Site

_STOP_S: Final = 2  # for pages under way; streams are cut
_MOST_CONNECTIONS: Final = 1000
_IDLE_S: Final = 30
HEAD_S: Final = 30.0  # a connection that has asked nothing by then makes room


class PeerProtocol(H11Protocol):
    """HTTP, with the uid of the peer of a Unix socket in each scope, as the kernel tells it."""

    uid: int | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Ask the kernel once for each connection."""
        super().connection_made(transport)
        self._give_up = self.loop.call_later(HEAD_S, self._end_where_silent)
        sock: socket.socket | None = transport.get_extra_info("socket")
        if sock is not None and sock.family == socket.AF_UNIX:
            self.uid = credentials_of(sock).uid
            inner = self.app

            async def with_uid(scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401 -- uvicorn's own types
                scope["pulse.uid"] = self.uid
                await inner(scope, receive, send)

            self.app = with_uid

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is left behind."""
        self._give_up.cancel()
        super().connection_lost(exc)

    def _end_where_silent(self) -> None:
        """No place is for those who never ask; what follows the first request is uvicorn's business."""
        if getattr(self, "cycle", None) is None:  # uvicorn sets it at the first request; its types say always
            self.transport.close()


class _DashboardServer(uvicorn.Server):
    """Ends with 0 when it is asked to end: uvicorn's own would die of the signal once more."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Let both signals end it in order, and a second one at once."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield


def run(site: Site, listening: socket.socket, address: ListenAddress) -> int:
    """
    Serve until SIGTERM or SIGINT.

    Args:
        site: What is served.
        listening: The socket.
        address: Where it is, for the message.

    Returns:
        The exit code.
    """
    config = uvicorn.Config(
        make_app(site),
        http=PeerProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        date_header=True,
        proxy_headers=False,
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_keep_alive=_IDLE_S,
        timeout_graceful_shutdown=_STOP_S,
    )
    server = _DashboardServer(config)
    site.say(
        f"The dashboard listens on {address.path or address.url}{' (read only)' if site.options.read_only else ''}"
    )
    made = None if address.path is None else file_of(address.path)
    try:
        server.run(sockets=[listening])
    finally:
        listening.close()
        if address.path is not None and made is not None:
            remove(address.path, made)
    return 0 if server.started else 1
