"""Programs that send signals through a real dashboard to a real server, and its answers."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

import pulse
from tests.browser.kit import PASSWORD, USER, Dashboard, dashboard
from tests.support.systems.system_kit import Whole
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.patient, pytest.mark.rest]

LOGIN = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


@pytest.fixture(scope="module")
def ui(whole: Whole) -> Iterator[Dashboard]:
    with dashboard(whole, PULSE_AUTH_USERS=f"{USER}:{PASSWORD}") as made:
        yield made


def send(ui: Dashboard, job: object, name: str = "payment", body: bytes = b"", **more: str) -> tuple[int, Any]:
    """The status and the answer."""
    headers = {"authorization": f"Basic {LOGIN}", **({"idempotency-key": more["key"]} if more else {})}
    with contextlib.closing(http.client.HTTPConnection(ui.netloc, timeout=20)) as connection:
        connection.request("POST", f"/jobs/{job}/signals/{name}", body, headers)
        got = connection.getresponse()
        return got.status, json.loads(got.read())


def test_answers(whole: Whole, ui: Dashboard) -> None:
    whole.pool()
    with pulse.Client(whole.path) as client:
        job = client.submit("listen", {"signal": "payment"})
        until(lambda: client.get(job).awaited_signal, "it waits")
        assert send(ui, job, "other%2Fword", key="1") == (200, {"new": True})
        assert send(ui, job, "other%2Fword", b'"again"', key="1") == (200, {"new": False})
        assert [(one.name, one.payload) for one in client.get(job).signals] == [("other/word", None)]
        cases: list[tuple[int, str, dict[str, Any]]] = [
            (400, "JSON", {"body": b"{"}),
            (400, "65536", {"body": b"[" + b"1," * 32_000 + b"1]"}),  # longer, as the database writes it
            (400, "201", {"name": "x" * 201}),
            (400, "", {"key": "x" * 201}),
            (413, "65536", {"body": b"x" * 65537}),
        ]
        for status, error, given in cases:
            told = send(ui, job, **given)
            assert (told[0], error in told[1]["error"], "\n" in told[1]["error"]) == (status, True, False), told
        assert send(ui, job, body=b'{"receipt": 17}') == (200, {"new": True})
        assert client.result(job, timeout_s=60) == {"receipt": 17}
        assert send(ui, job)[0] == 409
        assert send(ui, uuid.UUID(int=5))[0] == 404
        whole.stop()
        assert send(ui, job)[0] == 503
