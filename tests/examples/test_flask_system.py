"""examples/flask: requests in this process and in forked ones, a worker pool, and a real server."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator
from typing import Final

import pytest
from flask import Flask
from flask.testing import FlaskClient

import pulse
from examples.flask.web import create_app
from tests.support.systems.system_kit import END_S, Whole, run
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.patient]

DIGEST: Final = hashlib.sha256(b"Ada").hexdigest()
# As gunicorn --preload does it: the application is made, and has even asked, before its processes are forked.
PREFORK: Final = """
import os
from examples.flask.web import create_app
app = create_app()
def ask():
    return app.test_client().post("/digests", json={"text": "Ada"}).status_code
codes = [ask()]
children = []
for _ in range(3):
    child = os.fork()
    if child == 0:
        os._exit(0 if ask() == 202 else 1)
    children.append(child)
codes.append(ask())
codes += [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
codes.append(ask())
print(codes)
"""


@pytest.fixture(scope="module")
def web(whole: Whole) -> Iterator[Flask]:
    app = create_app({"PULSE_CONNECT": str(whole.path), "TESTING": True})
    yield app
    client: pulse.Client = app.extensions["pulse"]
    client.close()


@pytest.fixture
def browser(web: Flask) -> FlaskClient:
    return web.test_client()


@pytest.mark.rest
def test_a_request_submits_and_another_shows(whole: Whole, browser: FlaskClient) -> None:
    answer = browser.post("/digests", json={"text": "Ada"})
    assert answer.status_code == 202
    assert answer.json is not None
    place = f"/digests/{answer.json['job']}"
    assert browser.get(place).json == {"status": "PENDING", "result": None}
    whole.pool(app="examples.flask.jobs:app")
    done = {"status": "COMPLETED", "result": DIGEST}
    until(lambda: browser.get(place).json == done, "the digest", END_S)


@pytest.mark.rest
def test_what_is_wrong_has_its_status(browser: FlaskClient) -> None:
    wrong = browser.post("/digests", json={"txt": "Ada"})
    assert wrong.status_code == 400
    assert wrong.json is not None
    assert wrong.json["error"] == "digest: argument 'text' is missing; it takes text, rounds"
    assert browser.get(f"/digests/{uuid.uuid4()}").status_code == 404
    nobody = create_app({"PULSE_CONNECT": "/nowhere/pulse.sock"}).test_client()
    assert nobody.post("/digests", json={"text": "Ada"}).status_code == 503


def test_settings_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASK_PULSE_CONNECT", "unix:///run/shop/pulse.sock")
    assert create_app().config["PULSE_CONNECT"] == "unix:///run/shop/pulse.sock"
    assert create_app({"PULSE_CONNECT": "/given"}).config["PULSE_CONNECT"] == "/given"


@pytest.mark.rest
def test_each_process_has_a_connection_of_its_own(whole: Whole) -> None:
    (whole.directory / "prefork.py").write_text(PREFORK)
    done = run(
        "prefork", [], {**whole.env, "FLASK_PULSE_CONNECT": str(whole.path), "PYTHONPATH":
        f"{whole.directory}:{whole.env['PYTHONPATH']}"}, within_s=60,
    )  # fmt: skip
    assert done.stdout == "[202, 202, 0, 0, 0, 202]\n", done
