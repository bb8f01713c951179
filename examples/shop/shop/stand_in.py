"""
Stands for the mail service, and for Sentry: takes what is posted, and prints a line for each.

    python -m shop.stand_in 8025
"""

from __future__ import annotations

import gzip
import json
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SLOW = "slow@shop.example"
SLOW_S = 5.0


class StandIn(ThreadingHTTPServer):
    """
    Both services, on a port of this machine; *port* 0: any that is free.

    Attributes:
        lines: What was posted, a line each.
    """

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Posted)
        self.lines: list[str] = []
        self._keys: set[str] = set()
        self._more = threading.Condition()

    def take(self, path: str, key: str, body: bytes) -> None:
        """Of an e-mail its subject, of an event the exception."""
        if path == "/messages":
            mail = json.loads(body)
            seen = "again, not sent: " if key in self._keys else ""
            self._keys.add(key)
            self.tell(f"mail to {mail['to']}: {seen}{mail['subject']}")
            time.sleep(SLOW_S if mail["to"] == SLOW else 0)
            return
        for line in body.splitlines():
            for error in json.loads(line).get("exception", {}).get("values", []):
                self.tell(f"sentry: {error['type']}: {error['value']}")

    def tell(self, line: str) -> None:
        """Print it, and keep it."""
        print(line, flush=True)
        with self._more:
            self.lines.append(line)
            self._more.notify_all()

    def wait_for(self, begin: str, timeout_s: float = 10) -> bool:
        """Whether a line begins so, within that time."""
        with self._more:
            return self._more.wait_for(lambda: any(line.startswith(begin) for line in self.lines), timeout_s)


class _Posted(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, StandIn)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers["Content-Encoding"] == "gzip":
            body = gzip.decompress(body)
        self.server.take(self.path, self.headers.get("Idempotency-Key", ""), body)
        with suppress(ConnectionError):  # the worker that has asked may have been killed
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

    def log_message(self, format: str, *args: object) -> None:
        """Each request prints its line already."""


if __name__ == "__main__":
    StandIn(int(sys.argv[1])).serve_forever()
