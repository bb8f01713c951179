"""Answers scrapes by HTTP, on TCP or a Unix socket: few at once, and none for long."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import BaseServer, ThreadingMixIn
from typing import Any, Final

from prometheus_client import CollectorRegistry, MetricsHandler

from pulse.metrics.collector import Exported
from pulse.metrics.snapshot import Source

LOOPBACK: Final = "127.0.0.1"
SCRAPES: Final = 8  # at once; others are hung up on
SLOW_S: Final = 5.0  # for a peer to send its request, and to read the answer
_PATHS: Final = ("/", "/metrics")


class Address:
    """
    Where to listen.

    Args:
        text: The path of a Unix socket, ``host:port``, or a port, which then is loopback's.
    """

    def __init__(self, text: str) -> None:
        self.text: Final = text
        self.path: Final = Path(text) if "/" in text else None
        host, _, port = text.rpartition(":")
        self.host: Final = host.strip("[]") or LOOPBACK
        self.port: Final = 0 if self.path is not None else int(port)

    def listen(self) -> socket.socket:
        """
        A listening socket.

        Raises:
            OSError: The address is taken, or not ours.
        """
        if self.path is not None:
            return _listen_at(self.path)
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        return socket.create_server((self.host, self.port), family=family, backlog=SCRAPES)


def _listen_at(path: Path) -> socket.socket:
    """A Unix socket that only its owner may use; one that nobody listens on any more is replaced."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        if path.is_socket() and not _answers(path):
            path.unlink()
        mask = os.umask(0o177)
        try:
            sock.bind(str(path))
        finally:
            os.umask(mask)
        sock.listen(SCRAPES)
    except BaseException:
        sock.close()
        raise
    return sock


def _answers(path: Path) -> bool:
    """Whether somebody listens there."""
    with socket.socket(socket.AF_UNIX) as other:
        return other.connect_ex(str(path)) == 0


class Handler(MetricsHandler):
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


class Server(ThreadingMixIn, BaseServer):
    """
    The endpoint.

    Args:
        sock: Listens.
        source: Whom to ask.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, sock: socket.socket, source: Source) -> None:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(Exported(source))
        handler: Callable[[Any, Any, Any], BaseHTTPRequestHandler] = Handler.factory(registry)
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
        """Serve it, and make room."""
        try:
            super().process_request_thread(request, client_address)
        finally:
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
