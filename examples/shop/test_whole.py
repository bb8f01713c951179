"""The whole way, with a real server and a worker: what customers do, and what they get."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from fastapi.testclient import TestClient
from PIL import Image

import pulse
from pulse.testing import PulseServer
from shop.mail import send_mail
from shop.payments import charge
from shop.pictures import thumbnail
from shop.reports import Sales, sales
from shop.stand_in import StandIn
from shop.web import web


@pytest.fixture
def browser(pulse_server: PulseServer, database: str) -> Iterator[TestClient]:
    """The application with its lifespan; its client finds the server of the test by itself."""
    with TestClient(web) as client:
        client.post("/customers", json={"email": "ada@shop.example", "cents": 1000}).raise_for_status()
        yield client
    with psycopg.connect(database) as connection:
        connection.execute("TRUNCATE orders, customers")


def order(browser: TestClient, prints: int) -> dict[str, Any]:
    """Ada orders prints."""
    wanted = {"email": "ada@shop.example", "picture": str(uuid4()), "prints": prints}
    placed: dict[str, Any] = browser.post("/orders", json=wanted).raise_for_status().json()
    return placed


def test_an_order(browser: TestClient, pulse_server: PulseServer, stand_in: StandIn) -> None:
    """It is charged, both e-mails are sent, and the report of the night has it."""
    number = order(browser, prints=3)["order"]
    pulse_server.run_until_idle()
    assert browser.get(f"/orders/{number}").json() == {"order": number, "cents": 600, "is_paid": True}
    assert {f"mail to ada@shop.example: {what} {number}" for what in ("Order", "Receipt for order")} <= {
        *stand_in.lines
    }
    pulse_server.advance(days=1)
    pulse_server.run_until_idle()
    (report,) = pulse_server.submitted(sales)
    assert report.result_as(Sales) == Sales(orders=1, cents=600)
    assert report.occurrence is not None
    assert f"mail to staff@shop.example: Sales until {report.occurrence:%Y-%m-%d}" in stand_in.lines


def test_a_picture(browser: TestClient, pulse_server: PulseServer) -> None:
    """A worker makes its thumbnails, in processes of their own."""
    data = io.BytesIO()
    Image.new("RGB", (1600, 1200), "teal").save(data, "PNG")
    uploaded = browser.post("/pictures", content=data.getvalue()).raise_for_status().json()
    pulse_server.run_until_idle()
    assert [browser.get(f"/jobs/{job}").json()["status"] for job in uploaded["jobs"]] == ["COMPLETED"] * 2
    assert browser.get(f"/jobs/{uuid4()}").status_code == 404
    answer = browser.get(f"/pictures/{uploaded['picture']}/800")
    with Image.open(io.BytesIO(answer.content)) as made:
        assert (made.format, made.size) == ("WEBP", (800, 600))


def test_who_is_killed_charges_once(browser: TestClient, pulse_server: PulseServer, database: str) -> None:
    """Five orders, and a worker that dies while it charges them."""
    for _ in range(5):
        order(browser, prints=1)
    pulse_server.kill_worker()
    pulse_server.run_until_idle()
    assert {job.status for job in pulse_server.submitted(charge)} == {"COMPLETED"}
    assert len(pulse_server.submitted(send_mail)) == 10
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT cents FROM customers").fetchall() == [(0,)]


def test_what_fails_is_seen(pulse_server: PulseServer, stand_in: StandIn) -> None:
    """Sentry gets the error, and the staff an e-mail about the job that was given up."""
    pulse_server.client.submit(pulse.call(thumbnail, uuid4(), 200), max_attempts=1)
    pulse_server.run_until_idle()
    assert "mail to staff@shop.example: thumbnail was given up" in stand_in.lines
    assert stand_in.wait_for("sentry: FileNotFoundError:")


def test_without_a_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What only the server knows is not there for a moment; the rest goes on, as test_orders.py shows."""
    monkeypatch.setenv("PULSE_CONNECT", f"unix://{tmp_path}/pulse.sock")
    with TestClient(web) as browser:
        assert browser.get(f"/jobs/{uuid4()}").status_code == 503
