"""examples/fastapi: the web application in a uvicorn of its own, a worker pool, and a real server."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.support.systems.system_kit import END_S, ROOT, Whole
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.patient]

ADA: Final = {"customer": "Ada", "cents": 1200}


class Site:
    """The application, on a Unix socket."""

    def __init__(self, whole: Whole) -> None:
        self.whole = whole
        self.env = {**whole.env, "SHOP_DATABASE": whole.dsn.replace("postgresql://", "postgresql+asyncpg://")}
        self._path = whole.directory / "web"
        self._errors = whole.directory / "web-errors"
        with self._errors.open("wb") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "uvicorn", "examples.fastapi.web:web", "--uds", str(self._path)],
                env=self.env, stdout=sink, stderr=sink, cwd=ROOT,
            )  # fmt: skip

    def said(self) -> str:
        return self._errors.read_text("utf-8")

    def has_started(self) -> bool:
        assert self.process.poll() is None, self.said()
        return "startup complete" in self.said()

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(str(self._path))
        try:
            connection.request(method, path, json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(END_S)


@pytest.fixture(scope="module")
def web(whole: Whole) -> Iterator[Site]:
    made = Site(whole)
    try:
        until(made.has_started, "the application starts", END_S)
        yield made
    finally:
        made.process.kill()
        made.process.wait(END_S)


def test_an_order_and_its_job(web: Site) -> None:
    """The job is committed with its order, a worker confirms it, and a request shows that."""
    status, accepted = web.ask("POST", "/orders", ADA)
    assert status == 201, accepted
    job = f"/jobs/{accepted['job']}"
    assert web.ask("GET", job) == (200, {"status": "PENDING", "attempts": 0, "result": None, "error": None})
    web.whole.pool(app="examples.fastapi.jobs:app", env=web.env)
    done = until(lambda: (answer := web.ask("GET", job)[1])["status"] == "COMPLETED" and answer, "the job", END_S)
    assert done == {
        "status": "COMPLETED", "attempts": 1, "result": f"order {accepted['order']} is confirmed", "error": None
    }  # fmt: skip
    assert [row[0] for row in web.whole.rows("SELECT confirmed_at IS NOT NULL FROM orders")] == [True]


def test_a_refused_order_leaves_nothing(web: Site) -> None:
    before = [web.whole.rows(f"SELECT count(*) FROM {table}")[0][0] for table in ("orders", "pulse.jobs")]
    status, said = web.ask("POST", "/orders", {**ADA, "cents": 200_000})
    assert (status, said) == (422, {"detail": "a payment of 200000 cents was declined"})
    assert before == [web.whole.rows(f"SELECT count(*) FROM {table}")[0][0] for table in ("orders", "pulse.jobs")]


def test_a_job_that_is_not_there(web: Site) -> None:
    job = uuid.uuid4()
    status, said = web.ask("GET", f"/jobs/{job}")
    assert (status, str(job) in said["detail"]) == (404, True), said


def test_orders_are_taken_while_the_server_is_away(web: Site) -> None:
    """The last one here: the server is stopped."""
    assert web.whole.stop() == 0
    status, accepted = web.ask("POST", "/orders", ADA)
    assert status == 201
    assert web.ask("GET", f"/jobs/{accepted['job']}")[0] == 503
    assert web.stop() in {0, -signal.SIGTERM}
