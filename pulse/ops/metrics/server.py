"""Answers scrapes by HTTP, on TCP or a Unix socket: few at once, and none for long."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import BaseServer, ThreadingMixIn
from typing import Any, Final

from prometheus_client import CollectorRegistry, MetricsHandler

from pulse.errors import PathError
from pulse.ops.metrics.collector import Exported
from pulse.ops.metrics.snapshot import MetricsSource
from pulse.system.sockets import addresses, listeners

LOOPBACK: Final = "127.0.0.1"
SCRAPES: Final = 8  # at once; others are hung up on
SLOW_S: Final = 5.0  # for a peer to send its request, and to read the answer
SCRAPE_S: Final = 20.0  # for all of it: bytes that drip would keep a place for ever
_PATHS: Final = ("/", "/metrics")


class MetricsAddress:
    """
    Where to listen.

    Args:
        text: The path of a Unix socket, ``host:port``, or a port, which then is loopback's.
    """

    def __init__(self, text: str) -> None:
        self.text: Final = text
        self.path: Final = Path(text) if "/" in text else None
        where = None if self.path is not None else addresses.split(text if ":" in text else f"{LOOPBACK}:{text}")
        self.host, self.port = where or (LOOPBACK, 0)

    def listen(self) -> socket.socket:
        """
        A listening socket.

        Raises:
            PathError: A program listens there, it is not ours, or not a socket.
        """
        try:
            if self.path is not None:
                return listeners.unix(self.path, SCRAPES)
            return listeners.tcp(self.host, self.port, SCRAPES)
        except OSError as error:
            raise PathError(f"cannot listen on {self.text}: {listeners.reason(error)}") from None


class ScrapeHandler(MetricsHandler):
    """One scrape."""

    timeout = SLOW_S
    protocol_version = "HTTP/1.0"  # a connection for each, so none is held open

    def do_GET(self) -> None:  # noqa: N802 - http.server's name
        """The metrics, under their usual path."""
        if self.path.partition("?")[0] in _PATHS:
            super().do_GET()
        else:
            self.send_error(404)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Say what is wrong without repeating what was sent."""
        del message, explain
        self.send_response(code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def address_string(self) -> str:
        """A peer on a Unix socket has none."""
        return ""

    def version_string(self) -> str:
        """Not which Python this is."""
        return "pulse"


class MetricsServer(ThreadingMixIn, BaseServer):
    """
    The endpoint.

    Args:
        sock: Listens.
        source: Asks the servers.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, sock: socket.socket, source: MetricsSource) -> None:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(Exported(source))
        handler: Callable[[Any, Any, Any], BaseHTTPRequestHandler] = ScrapeHandler.factory(registry)
        super().__init__(sock.getsockname(), handler)
        self.socket = sock
        self._room = threading.BoundedSemaphore(SCRAPES)

    def fileno(self) -> int:
        """For the loop of BaseServer."""
        return self.socket.fileno()

    def get_request(self) -> tuple[socket.socket, Any]:
        """The next peer."""
        return self.socket.accept()

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as in socketserver
        """Serve it in a thread, if there is room."""
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as in socketserver
        """Serve it for a while at most, and make room."""
        ending = threading.Timer(SCRAPE_S, _cut, [request])
        ending.daemon = True
        ending.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            ending.cancel()
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as in socketserver
        """A peer that went away, or was too slow: its own trouble."""

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401 - as in socketserver
        """Hang up."""
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_WR)
        request.close()

    def server_close(self) -> None:
        """Listen no more."""
        self.socket.close()


def _cut(request: socket.socket) -> None:
    """End what is being read or written there."""
    with contextlib.suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)
